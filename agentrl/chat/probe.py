"""Finds out when a run starts whether a chat template rewrites earlier turns, and says what that means."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.chat.renderer import ChatRenderer
from agentrl.errors import TemplateError
from agentrl.types import JsonDict, Message

_THINK = "<think>\n"
_EMPTY_THOUGHT = re.compile(r"<think>\s*</think>\s*")
_PLAIN = "Let me see: it is 41."
_THOUGHT = f"{_THINK}I add one.\n</think>\n\nIt is 42."
_QUESTION: Message = {"role": "user", "content": "What is 41 + 1?"}
_AROUND = 12
"""Tokens shown before a difference; half as many are shown after it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the token stream and the canonical rendering of the same conversation diverge."""

    after: str
    """Role of the message that follows the rewritten turn: `tool` or `user`."""
    thinking: bool
    """True when the turn holds thinking."""
    position: int
    """Index of the first differing token."""
    stream_token: str
    canonical_token: str
    stream_text: str = ""
    """Text around the token in the stream."""
    canonical_text: str = ""
    """Text around it in the rendering."""
    calls: bool = False
    """True when the turn holds structured tool calls."""
    in_prompt: bool = False
    """True when the token comes before the turn, for example because the template moves the tools."""

    @property
    def turn(self) -> str:
        """What the message follows."""
        if self.in_prompt:
            return "an assistant turn"
        return "an assistant turn with " + ("thinking" if self.thinking else "a tool call" if self.calls else "text")

    @property
    def rewritten(self) -> str:
        """What the template rewrites."""
        return "the prompt" if self.in_prompt else self.turn


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """What the probe found about a template."""

    template: str
    """Name of the model whose template was probed."""
    differences: tuple[Difference, ...]
    refused: tuple[str, ...]
    """Kinds of conversation that the template does not accept, with its reason."""
    warnings: tuple[str, ...]

    @property
    def prefix_preserving(self) -> bool:
        """True when a longer conversation always renders to a continuation of a shorter one."""
        return not self.differences

    @property
    def message(self) -> str:
        """What a user should know; empty when there is nothing to report."""
        lines = [*self.warnings, *self.refused]
        for diff in self.differences:
            lines.append(
                f"The chat template of {self.template} does not preserve prefixes: when a {diff.after} message follows "
                f"{diff.turn}, token {diff.position} is {diff.canonical_token!r} in its rendering, but the model had "
                f"{diff.stream_token!r}. agentrl never rewrites what was sampled: each turn is generated after, and "
                "trained on, exactly the tokens the model saw. A server that renders the whole conversation again "
                "would show it different tokens."
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Play:
    """An assistant turn, and the ids that a model would sample to write it."""

    turn: Message
    sampled: list[int]
    again: bool = True
    """Whether it can also be the next turn, and be compared there."""


def probe_template(
    renderer: ChatRenderer, tools: Sequence[JsonDict] | None = None, after: Sequence[str] = ("tool", "user")
) -> TemplateReport:
    """Play short conversations as token streams and compare each with its canonical rendering.

    Args:
        renderer: whose template is probed.
        tools: schemas that the run offers; templates may move them as the conversation grows.
        after: which messages follow an assistant turn in this run: `tool`, `user` (an interaction), or both.
    """
    plays = _natural_answers(renderer, tools)
    name = str(tools[0]["function"]["name"]) if tools else "calculator"
    differences, refused = [], []
    for role in after:
        following = _following(role, name)
        try:
            renderer.delta(following[:1], sampled_ids=plays[0].sampled, tools=tools)
        except TemplateError as error:
            refused.append(str(error))
            continue
        # A template that needs structured calls before a result cannot render a plain turn there: nothing to compare.
        plain = not renderer.tails.following(role, bool(tools)).form.has_calls
        calls = [play for play in [_natural_call(renderer, tools, name)] if play and role == "tool"]
        for play in [*(plays if plain else []), *calls]:
            found = _compare(renderer, play, following[:1], role, tools)
            if found is not None:
                differences.append(found)
                break
    return TemplateReport(renderer.name, tuple(differences), tuple(refused), tuple(_warnings(renderer)))


def shows_parallel_results(renderer: ChatRenderer, tools: Sequence[JsonDict] | None = None) -> bool:
    """Whether several tool messages may follow one turn, and all of them are shown."""
    following = _following("tool", str(tools[0]["function"]["name"]) if tools else "calculator")
    try:
        text = renderer.encoder.decode(renderer.delta(following, sampled_ids=[], tools=tools))
    except TemplateError:
        return False
    return all(message["content"] in text for message in following)


def _following(role: str, name: str) -> list[Message]:
    if role != "tool":
        return [{"role": role, "content": "Are you sure?"}]
    return [
        {"role": "tool", "name": name, "content": content, "tool_call_id": f"call0000{index}"}
        for index, content in enumerate(("42", "The second result."))
    ]


def _natural_answers(renderer: ChatRenderer, tools: Sequence[JsonDict] | None) -> list[_Play]:
    """Answers that a model would give after this generation prompt, each with the ids that it would sample.

    The ids are what the template writes between the generation prompt and the end of the turn (a channel, an empty
    thought, the text). An answer that does not begin as the generation prompt does is not one that the model gives.
    A template that drops thoughts even from the last turn cannot show them; then the text is taken as it is. Where the
    template adds an empty thought, the model may also answer without one.
    """
    prompt = renderer.render_prompt([_QUESTION], tools)
    end = renderer.turn_end_ids[-1:]
    plays: list[_Play] = []
    for answer in (_THOUGHT, _PLAIN):
        turn: Message = {"role": "assistant", "content": answer}
        ids = renderer.render([_QUESTION, turn], tools)
        if ids[: len(prompt)] != prompt:
            continue
        ids = ids[len(prompt) :]
        while end and end[0] in ids and ids[-1] != end[0]:
            ids.pop()  # the separator after the end of turn
        plain = [*renderer.encode_text(answer), *end]
        whole = all(line in renderer.encoder.decode(prompt + ids) for line in answer.splitlines())
        plays.append(_Play(turn, ids if whole else plain))
        if answer == _PLAIN and _EMPTY_THOUGHT.match(renderer.encoder.decode(ids)):
            plays.append(_Play(turn, plain, again=False))
    silent = [*renderer.encode_text(_THOUGHT.removeprefix(_THINK)), *end]
    return plays or [_Play({"role": "assistant", "content": _THOUGHT}, silent)]


def _natural_call(renderer: ChatRenderer, tools: Sequence[JsonDict] | None, name: str) -> _Play | None:
    """A call as the template writes it; None if it writes no calls or begins them unlike the generation prompt."""
    try:
        follows = renderer.tails.following("tool", bool(tools))
        arguments: Any = {"x": "41 + 1"}
        function = {"name": name, "arguments": json.dumps(arguments) if follows.form.as_text else arguments}
        call = {"id": "call00000", "type": "function", "function": function}
        turn: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        ids = renderer.render([_QUESTION, turn], tools)
    except TemplateError:
        return None
    prompt = renderer.render_prompt([_QUESTION], tools)
    if ids[: len(prompt)] != prompt or "41 + 1" not in renderer.encoder.decode(ids[len(prompt) :]):
        return None
    ends = {*renderer.stop_token_ids, *renderer.turn_end_ids[-1:], *follows.end_ids[-1:]}
    sampled = ids[len(prompt) :]
    if ends & set(sampled):
        while sampled[-1] not in ends:
            sampled.pop()
    return _Play(turn, sampled, again=False)


def _compare(
    renderer: ChatRenderer,
    play: _Play,
    following: Sequence[Message],
    role: str,
    tools: Sequence[JsonDict] | None,
) -> Difference | None:
    """First difference between stream and canonical rendering of question, turn, `following` and the turn again."""
    # Two different end-of-turn ids at the same place are no difference: the sampled stop id stands for the template's.
    delta = renderer.delta(following, sampled_ids=play.sampled, tools=tools)
    stream = [*renderer.render_prompt([_QUESTION], tools), *play.sampled, *delta]
    canonical = _canonical(renderer, play, following, tools)
    if play.again:
        stream += play.sampled
    ends = {*renderer.stop_token_ids, *renderer.turn_end_ids[-1:]} if renderer.turn_end_ids else set()
    for place, left in enumerate(stream if canonical else []):
        right = canonical[place] if place < len(canonical) else None
        if left != right and not (left in ends and right in ends):
            decode, around = renderer.encoder.decode, slice(max(place - _AROUND, 0), place + _AROUND // 2)
            return Difference(
                after=role,
                thinking=play.turn["content"] == _THOUGHT,
                position=place,
                stream_token=decode([left]),
                canonical_token="" if right is None else decode([right]),
                stream_text=decode(stream[around]),
                canonical_text=decode(canonical[around]),
                calls="tool_calls" in play.turn,
                in_prompt=place < len(renderer.render([_QUESTION], tools)),
            )
    return None


def _canonical(
    renderer: ChatRenderer, play: _Play, following: Sequence[Message], tools: Sequence[JsonDict] | None
) -> list[int]:
    """Canonical ids; empty when the template refuses the conversation (a result after a turn without calls)."""
    conversation = [_QUESTION, play.turn, *following]
    try:
        if play.again:
            return renderer.render([*conversation, play.turn], tools)
        return renderer.render_prompt(conversation, tools)
    except TemplateError:
        return []


def _warnings(renderer: ChatRenderer) -> list[str]:
    """Warns of a model whose turns never end: no stop id follows the content of a last turn."""
    prompt = renderer.render_prompt([_QUESTION])
    ids = renderer.render([_QUESTION, {"role": "assistant", "content": _PLAIN}])
    end = renderer.turn_end_ids[-1:]
    if not end or any(token in renderer.stop_token_ids for token in ids[len(prompt) :]):
        return []
    return [
        f"The chat template of {renderer.name} ends a turn with {renderer.encoder.decode(end)!r} (id {end[0]}), "
        f"which is not among the model's stop ids {sorted(renderer.stop_token_ids)}: generation will not stop there. "
        "Add it to `actor_rollout_ref.rollout.stop_token_ids`."
    ]

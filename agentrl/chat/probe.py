"""R11: find out at the start whether a chat template rewrites earlier turns, and say what that means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.errors import TemplateError
from agentrl.types import JsonDict, Message

if TYPE_CHECKING:
    from agentrl.chat.renderer import ChatRenderer

_THINK = "<think>\n"
_PLAIN = "Let me see: it is 41."
_THOUGHT = f"{_THINK}I add one.\n</think>\n\nIt is 42."
_QUESTION: Message = {"role": "user", "content": "What is 41 + 1?"}
_NEXT: dict[str, Message] = {
    "tool": {"role": "tool", "name": "calculator", "content": "42", "tool_call_id": "call00000"},
    "user": {"role": "user", "content": "Are you sure?"},
}


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the token stream and the canonical rendering of the same conversation part."""

    after: str
    """Role of the message that follows the rewritten turn: `tool` or `user`."""
    thinking: bool
    """True when the turn holds thinking."""
    position: int
    """Index of the first differing token."""
    stream_token: str
    canonical_token: str


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """What the probe found about a template."""

    template: str
    """Whose template it is."""
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
        """What a user should know; empty when all is well."""
        lines = [*self.warnings, *self.refused]
        for diff in self.differences:
            turn = "an assistant turn with thinking" if diff.thinking else "an assistant turn"
            lines.append(
                f"The chat template of {self.template} does not preserve prefixes: when a {diff.after} message follows "
                f"{turn}, token {diff.position} is {diff.canonical_token!r} in its rendering, where the model had "
                f"{diff.stream_token!r}. agentrl never rewrites what was sampled: each turn is generated after, and "
                "trained on, exactly the tokens the model saw; a server that renders the conversation anew would show "
                "it other tokens."
            )
        return "\n".join(lines)


def probe_template(
    renderer: ChatRenderer, tools: Sequence[JsonDict] | None = None, after: Sequence[str] = ("tool", "user")
) -> TemplateReport:
    """Play short conversations as token streams and compare each with its canonical rendering.

    Args:
        renderer: whose template is probed.
        tools: schemas that the run offers; templates may move them as the conversation grows.
        after: which messages follow an assistant turn in this run: `tool`, `user` (an interaction), or both.
    """
    answers = _natural_answers(renderer, tools)
    differences, refused = [], []
    for role in after:
        for answer, sampled in answers.items():
            try:
                delta = renderer.delta([_NEXT[role]], sampled_ids=sampled, tools=tools)
            except TemplateError as error:
                refused.append(str(error))
                break
            if renderer.tails.following(role, bool(tools)).form.has_calls:
                break  # it wants the calls of a turn as a structure: there is no canonical text to compare with
            found = _compare(renderer, answer, sampled, delta, _NEXT[role], tools)
            if found is not None:
                position, stream, canonical = found
                differences.append(Difference(role, answer == _THOUGHT, position, stream, canonical))
                break
    return TemplateReport(renderer.name, tuple(differences), tuple(refused), tuple(_warnings(renderer)))


def _natural_answers(renderer: ChatRenderer, tools: Sequence[JsonDict] | None) -> dict[str, list[int]]:
    """Answers that a model would give after this generation prompt, each with the ids that it would sample.

    The template shows them: what it writes between the generation prompt and the end of the turn (a channel, an empty
    thought, the text). An answer that it opens otherwise than the generation prompt does is not one the model gives.
    A template that drops thoughts even from the last turn cannot show them; then the text is taken as it is.
    """
    prompt = renderer.render_prompt([_QUESTION], tools)
    end = renderer.turn_end_ids[-1:]
    answers: dict[str, list[int]] = {}
    for answer in (_THOUGHT, _PLAIN):
        ids = renderer.render([_QUESTION, {"role": "assistant", "content": answer}], tools)
        if ids[: len(prompt)] != prompt:
            continue
        ids = ids[len(prompt) :]
        while end and end[0] in ids and ids[-1] != end[0]:
            ids.pop()  # the separator after the end of turn
        whole = all(line in renderer.encoder.decode(prompt + ids) for line in answer.splitlines())
        answers[answer] = ids if whole else [*renderer.encode_text(answer), *end]
    return answers or {_THOUGHT: [*renderer.encode_text(_THOUGHT.removeprefix(_THINK)), *end]}


def _compare(
    renderer: ChatRenderer,
    answer: str,
    sampled: list[int],
    delta: list[int],
    following: Message,
    tools: Sequence[JsonDict] | None,
) -> tuple[int, str, str] | None:
    """First difference between stream and canonical rendering of question, answer, `following`, answer."""
    stream = [*renderer.render_prompt([_QUESTION], tools), *sampled, *delta, *sampled]
    turn: Message = {"role": "assistant", "content": answer}
    canonical = renderer.render([_QUESTION, turn, following, turn], tools)
    ends = {*renderer.stop_token_ids, *renderer.turn_end_ids[-1:]} if renderer.turn_end_ids else set()
    for position, left in enumerate(stream):
        right = canonical[position] if position < len(canonical) else None
        if left != right and not (left in ends and right in ends):
            decoded = "" if right is None else renderer.encoder.decode([right])
            return position, renderer.encoder.decode([left]), decoded
    return None


def _warnings(renderer: ChatRenderer) -> list[str]:
    """A model whose turns never end: no stop id follows the content of a last turn."""
    prompt = renderer.render_prompt([_QUESTION])
    ids = renderer.render([_QUESTION, {"role": "assistant", "content": _PLAIN}])
    end = renderer.turn_end_ids[-1:]
    if not end or any(token in renderer.stop_token_ids for token in ids[len(prompt) :]):
        return []
    return [
        f"The chat template of {renderer.name} ends a turn with {renderer.encoder.decode(end)!r} (id {end[0]}), "
        f"which is not among the model's stop ids {sorted(renderer.stop_token_ids)}: generation will run on. Add it to "
        "`actor_rollout_ref.rollout.stop_token_ids`."
    ]

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
        lines = [*self.warnings]
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


def probe_template(renderer: ChatRenderer, tools: Sequence[JsonDict] | None = None) -> TemplateReport:
    """Play short conversations as token streams and compare each with its canonical rendering.

    Args:
        renderer: whose template is probed.
        tools: schemas that the run offers; templates may move them as the conversation grows.
    """
    differences, refused = [], []
    opens_thinking = renderer.decode(renderer.render_prompt([_QUESTION], tools)).endswith(_THINK)
    for role in ("tool", "user"):
        for answer in [_THOUGHT] if opens_thinking else [_PLAIN, _THOUGHT]:
            try:
                found = _compare(renderer, answer, _NEXT[role], tools, opens_thinking)
            except TemplateError as error:
                refused.append(f"{role}: {error}")
                break
            if found is not None:
                position, stream, canonical = found
                differences.append(Difference(role, answer is _THOUGHT, position, stream, canonical))
                break
    return TemplateReport(renderer.name, tuple(differences), tuple(refused), tuple(_warnings(renderer)))


def _compare(
    renderer: ChatRenderer, answer: str, following: Message, tools: Sequence[JsonDict] | None, opens_thinking: bool
) -> tuple[int, str, str] | None:
    """First difference between stream and canonical rendering of question, answer, `following`, answer."""
    sampled = renderer.encode_text(answer.removeprefix(_THINK) if opens_thinking else answer)
    sampled = sampled + renderer.turn_end_ids[-1:]
    stream = [*renderer.render_prompt([_QUESTION], tools), *sampled]
    stream += [*renderer.delta([following], sampled_ids=sampled, tools=tools), *sampled]
    turn: Message = {"role": "assistant", "content": answer}
    canonical = renderer.render([_QUESTION, turn, following, turn], tools)
    for position, (left, right) in enumerate(zip(stream, canonical, strict=False)):
        if left != right:
            return position, renderer.encoder.decode([left]), renderer.encoder.decode([right])
    if len(canonical) < len(stream):
        return len(canonical), renderer.encoder.decode([stream[len(canonical)]]), ""
    return None


def _warnings(renderer: ChatRenderer) -> list[str]:
    end = renderer.turn_end_ids[-1:]
    if not end or end[0] in renderer.stop_token_ids:
        return []
    return [
        f"The chat template of {renderer.name} ends a turn with {renderer.encoder.decode(end)!r} (id {end[0]}), "
        f"which is not among the model's stop ids {sorted(renderer.stop_token_ids)}: generation will run on. Add it to "
        "`actor_rollout_ref.rollout.stop_token_ids` unless the model ends its turns otherwise."
    ]

"""What a chat template can and cannot do, as one table: `agentrl check --template`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agentrl.chat.probe import TemplateReport, probe_template, shows_parallel_results
from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.formats import detect
from agentrl.chat.turns import ANY_TOOL
from agentrl.errors import TemplateError
from agentrl.types import JsonDict, Message

_QUESTION: Message = {"role": "user", "content": "What is 41 + 1?"}
_AGAIN: Message = {"role": "user", "content": "Are you sure?"}
_THOUGHT = "I add one."


class TemplateVerdict(StrEnum):
    """How a line of the table rates the template."""

    OK = "ok"
    NOTE = "note"
    """The template works, with a limit that the user should know."""
    UNUSABLE = "unusable"
    """The run that was asked for cannot work with this template."""


@dataclass(frozen=True, slots=True)
class ConformanceLine:
    """One line of the table."""

    topic: str
    verdict: TemplateVerdict
    text: str


@dataclass(frozen=True, slots=True)
class Conformance:
    """The table, and where the template rewrites earlier turns."""

    lines: tuple[ConformanceLine, ...]
    report: TemplateReport

    @property
    def usable(self) -> bool:
        """True when a run can train with this template."""
        return all(line.verdict is not TemplateVerdict.UNUSABLE for line in self.lines)


def conformance(renderer: ChatRenderer, tools: Sequence[JsonDict] | None = None) -> Conformance:
    """Try a template out.

    Args:
        renderer: tokenizer and template.
        tools: schemas that a run would offer, which then must work; None: a neutral tool, which may fail.
    """
    report = probe_template(renderer, tools or [ANY_TOOL])
    if report.refused:
        report = probe_template(renderer, tools, [role for role in ("tool", "user") if _can_follow(renderer, role)])
    lines = [_prefix(report), _end_of_turn(renderer), _separator(renderer), *_tools(renderer, tools)]
    return Conformance((*lines, _thinking(renderer), _call_format(renderer)), report)


def _can_follow(renderer: ChatRenderer, role: str) -> bool:
    try:
        renderer.tails.following(role)
    except TemplateError:
        return False
    return True


def _prefix(report: TemplateReport) -> ConformanceLine:
    if report.prefix_preserving:
        return ConformanceLine("prefix-preserving", TemplateVerdict.OK, "yes")
    where = " and ".join(f"{diff.rewritten} when a {diff.after} message follows" for diff in report.differences)
    return ConformanceLine(
        "prefix-preserving", TemplateVerdict.NOTE, f"no: rewrites {where}; agentrl trains on what was sampled"
    )


def _end_of_turn(renderer: ChatRenderer) -> ConformanceLine:
    ids, topic = renderer.turn_end_ids, "end of turn"
    if not ids:
        return ConformanceLine(topic, TemplateVerdict.OK, "none of its own: the marker of the next role ends a turn")
    text = f"{renderer.encoder.decode(ids)!r} ({', '.join(map(str, ids))})"
    others = sorted(renderer.stop_token_ids - {ids[-1]})
    if others:
        named = ", ".join(f"{renderer.encoder.token_text(token)!r} ({token})" for token in others)
        text += f"; other stop ids: {named}"
    if ids[-1] in renderer.stop_token_ids or _last_turn_stops(renderer):
        return ConformanceLine(topic, TemplateVerdict.OK, text)
    return ConformanceLine(
        topic, TemplateVerdict.NOTE, text + "; it is not a stop id: add it to `rollout.stop_token_ids`"
    )


def _last_turn_stops(renderer: ChatRenderer) -> bool:
    """Whether a conversation's last turn holds a stop id. gpt-oss ends it differently from earlier turns."""
    prompt = renderer.render_prompt([_QUESTION])
    ids = renderer.render([_QUESTION, {"role": "assistant", "content": "Let me see."}])
    return bool(renderer.stop_token_ids & set(ids[len(prompt) :]))


def _separator(renderer: ChatRenderer) -> ConformanceLine:
    text = renderer.tails.separator
    return ConformanceLine(
        "separator", TemplateVerdict.OK, f"{text!r}, inserted after each end of turn" if text else "none"
    )


def _tools(renderer: ChatRenderer, tools: Sequence[JsonDict] | None) -> Iterator[ConformanceLine]:
    fatal = TemplateVerdict.UNUSABLE if tools else TemplateVerdict.NOTE
    offered = list(tools or [ANY_TOOL])
    text = renderer.encoder.decode(renderer.render_prompt([_QUESTION], offered))
    hidden = [name for tool in offered if (name := str(tool["function"]["name"])) not in text]
    if hidden:
        names = f" ({', '.join(hidden)})" if tools else ""
        yield ConformanceLine("tools shown", fatal, f"no: the prompt omits the tools that a run offers{names}")
    else:
        yield ConformanceLine("tools shown", TemplateVerdict.OK, "yes")
    try:
        follows = renderer.tails.following("tool", True)
    except TemplateError as error:
        yield ConformanceLine("tool messages", fatal, f"no: {error}")
        return
    how = "after the call that they answer" if follows.form.has_calls else "after any assistant turn"
    yield ConformanceLine("tool messages", TemplateVerdict.OK, f"yes, {how}")
    if shows_parallel_results(renderer, offered):
        yield ConformanceLine("parallel tool messages", TemplateVerdict.OK, "yes")
    else:
        advice = "no: set `multi_turn.max_parallel_calls` to 1"
        yield ConformanceLine("parallel tool messages", TemplateVerdict.NOTE, advice)


def _thinking(renderer: ChatRenderer) -> ConformanceLine:
    """What happens to the thinking of an earlier turn."""
    topic = "thinking"
    turn: Message = {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\nIt is 42."}
    if _THOUGHT not in _text(renderer, [_QUESTION, turn, _AGAIN]):
        return ConformanceLine(topic, TemplateVerdict.NOTE, "stripped from earlier turns")
    plain = _text(renderer, [_QUESTION, {"role": "assistant", "content": "It is 42."}, _AGAIN])
    if "</think>" in plain[: plain.index("It is 42.")]:
        return ConformanceLine(topic, TemplateVerdict.NOTE, "kept; turns without any get an empty block")
    return ConformanceLine(topic, TemplateVerdict.OK, "kept")


def _text(renderer: ChatRenderer, messages: Sequence[Message]) -> str:
    try:
        return renderer.encoder.decode(renderer.render(messages))
    except TemplateError:
        return ""


def _call_format(renderer: ChatRenderer) -> ConformanceLine:
    found = detect(renderer.template)
    if found is None:
        return ConformanceLine(
            "tool-call format", TemplateVerdict.NOTE, "`format: auto` finds none: name one in `multi_turn.format`"
        )
    chosen, signs = found
    shown = " and ".join(map(repr, signs))
    return ConformanceLine("tool-call format", TemplateVerdict.OK, f"`format: auto` takes {chosen.name}, for {shown}")

"""The demo's final report: what changed, in numbers, in a plot and in two conversations."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from agentrl.cli.demo.description import Curve, Demo
from agentrl.cli.demo.show import History
from agentrl.errors import UserInputError
from agentrl.observability.picture import new_picture
from agentrl.types import Message

_STYLES = {"user": "cyan", "assistant": "bold", "tool": "green"}
_SMOOTHING = 8


@dataclass(frozen=True, slots=True)
class Summary:
    """`summary.json`."""

    success_before: float
    """Share of the held-out questions answered correctly before reinforcement learning, sampled at temperature 1."""
    success_after: float
    second_before: float
    """The demo's second curve at the start: the share of held-out conversations that call the tool."""
    second_after: float
    curve: Curve
    """Names the second one; `summary.json` has it as `tool_rate_before`."""
    seconds: float
    """Wall-clock time of the whole demo."""
    rl_steps: int
    tokens_generated: int
    """Tokens sampled in training rollouts."""
    tokens_per_second_rollout: float
    """The same per second of rollout."""

    def line(self) -> str:
        """The last line of the demo."""
        return (
            f"demo: success {self.success_before:.2f} -> {self.success_after:.2f}, "
            f"{self.curve.title} {self.second_before:.2f} -> {self.second_after:.2f}, {self.seconds:.0f} s"
        )

    def numbers(self) -> dict[str, float]:
        """What `summary.json` holds."""
        written = asdict(self)
        key = written.pop("curve")["key"]
        return {
            name.replace("second_", f"{key}_", name.startswith("second_")): value for name, value in written.items()
        }

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(self.numbers(), indent=2) + "\n", encoding="utf-8")


def summarize(demo: Demo, history: History, seconds: float) -> Summary:
    """Summarise the numbers of a run."""
    success, second = history.series(demo.success)[1], history.series(demo.second.held_out)[1]
    return Summary(
        success_before=round(success[0], 4),
        success_after=round(success[-1], 4),
        second_before=round(second[0], 4),
        second_after=round(second[-1], 4),
        curve=demo.second,
        seconds=round(seconds, 1),
        rl_steps=max(history.steps),
        tokens_generated=history.tokens_generated,
        tokens_per_second_rollout=round(history.tokens_generated / max(history.total("timing_s/gen"), 1e-9), 1),
    )


def plot(demo: Demo, history: History, path: Path) -> None:
    """Draw success and the second curve over the steps as a PNG."""
    figure, axes = new_picture()
    for name, label, color in (
        ("critic/score/mean", "success in training", "tab:blue"),
        (demo.second.training, f"{demo.second.title} in training", "tab:orange"),
    ):
        steps, values = history.series(name)
        axes.plot(steps, values, color=color, alpha=0.2, linewidth=1)
        axes.plot(steps, _smooth(values), color=color, label=label)
    for name, label, color in (
        (demo.success, f"success on held-out {demo.questions}", "tab:blue"),
        (demo.second.held_out, f"{demo.second.title} on held-out {demo.questions}", "tab:orange"),
    ):
        axes.plot(*history.series(name), "o--", color=color, label=label, linewidth=1)
    axes.set(xlabel="training step", ylabel="share of conversations", ylim=(0, 1.02), title=demo.title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def _smooth(values: list[float]) -> list[float]:
    windows = (values[max(0, end - _SMOOTHING) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def pick_conversations(before: Path, after: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """One question before and after, preferably answered wrongly without the tool and then correctly with it.

    Args:
        before: validation dump of the start.
        after: validation dump of the end.

    Returns:
        The two records. If no question fits, one that improved; else the first question.
    """
    first, last = _by_question(before), _by_question(after)
    shared = [question for question in first if question in last]
    if not shared:
        raise UserInputError(f"{before} and {after} have no question in common")

    def interest(question: str) -> tuple[bool, bool, bool]:
        old, new = first[question], last[question]
        gained = new["score"] > old["score"]
        return gained, gained and not old["num_tool_calls"] and new["num_tool_calls"] > 0, len(question) > 4

    best = max(shared, key=interest)
    return first[best], last[best]


def _by_question(dump: Path) -> dict[str, dict[str, Any]]:
    with dump.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return {record["messages"][0]["content"]: record for record in records}


def show_conversations(console: Console, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Print two conversations side by side, or one below the other on a narrow terminal."""
    panels = [
        Panel(_transcript(record["messages"]), title=f"{title}: {_verdict(record)}", width=56)
        for title, record in (("before", before), ("after", after))
    ]
    console.print(Columns(panels))


def _verdict(record: dict[str, Any]) -> str:
    truth = record["gts"]
    wanted = (
        " or ".join(truth["target"]) if isinstance(truth, dict) else truth
    )  # questions with search may have several
    return "right" if record["score"] > 0 else f"wrong ({wanted} wanted)"


def _transcript(messages: list[Message]) -> Text:
    text = Text()
    for message in messages:
        text.append(f"{message['role']}: ", style="dim")
        text.append(f"{message['content']}\n", style=_STYLES.get(message["role"], ""))
    text.rstrip()
    return text

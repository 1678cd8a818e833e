"""Draw the curves of docs/runs: `python docs/images/plot_runs.py` writes `docs/images/NAME.png` for each name of a run.

One line for each seed: success on held-out rows, and beside it what else the run reports at these steps (tool calls).
The algorithms have one picture together, `demo_algorithms.png`, with a line for each.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from agentrl.observability.picture import new_picture

RUNS = Path(__file__).parent.parent / "runs"
ALGORITHMS = {
    "demo": "GRPO",
    "demo_rloo": "RLOO",
    "demo_reinforce_plus_plus": "REINFORCE++",
    "demo_remax": "ReMax",
    "demo_ppo": "PPO",
    "demo_gspo": "GSPO",
    "demo_dapo": "DAPO",
}
COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red")


def runs_by_name() -> dict[str, list[dict[str, Any]]]:
    """The summaries of each name, by seed."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in sorted(RUNS.glob("*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        found[run["name"]].append(run)
    return {name: sorted(runs, key=lambda run: run["seed"]) for name, runs in sorted(found.items())}


def draw(name: str, runs: list[dict[str, Any]], file: Path) -> None:
    """One picture."""
    figure, axes = new_picture()
    metrics = [key for key in runs[0]["curve"][0] if key not in ("step", "seconds")]
    for run in runs:
        steps = [point["step"] for point in run["curve"]]
        for metric, color in zip(metrics, COLORS, strict=False):
            values = [point.get(metric, float("nan")) for point in run["curve"]]
            label = metric.replace("_", " ") if run is runs[0] else None
            axes.plot(steps, values, "o-", color=color, alpha=0.7, markersize=3, linewidth=1, label=label)
    seeds = ", ".join(str(run["seed"]) for run in runs)
    axes.set(xlabel="training step", ylabel="share of held-out rows", ylim=(0, 1.02), title=f"{name} (seeds {seeds})")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(file, dpi=100)


def draw_algorithms(by_name: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """Success by step, one line for the first seed of each algorithm."""
    figure, axes = new_picture()
    for (name, label), marker in zip(ALGORITHMS.items(), "osv^D*x", strict=True):
        curve = by_name[name][0]["curve"]
        steps, success = zip(*((point["step"], point["success"]) for point in curve), strict=True)
        axes.plot(steps, success, f"{marker}-", markersize=3, linewidth=1, label=label)
    axes.set(xlabel="training step", ylabel="success on held-out rows", ylim=(0.3, 1.02), title="the calculator demo")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(file, dpi=100)


def main() -> None:
    """Draw every name."""
    folder, by_name = Path(__file__).parent, runs_by_name()
    draw_algorithms(by_name, folder / "demo_algorithms.png")
    for name, runs in by_name.items():
        if name == "demo" or name not in ALGORITHMS:
            draw(name, runs, folder / f"{name}.png")


if __name__ == "__main__":
    main()

"""The plot of an evaluation: pass@k and maj@k over k, by data source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MOST_LINES = 10
"""Colours that can be told apart; further data sources are in the table only."""


def draw_result(result: Mapping[str, Any], path: Path) -> None:
    """Draw the statistics of an evaluation as a PNG, with standard errors."""
    from agentrl.observability.picture import new_picture

    figure, axes = new_picture()
    sources = list(result["sources"].items())[:_MOST_LINES]
    for number, (source, found) in enumerate(sources):
        color = f"C{number}"
        mean = found["mean"]
        if mean["value"] is not None:
            label = f"{source}: mean@{found['n']} {mean['value']:.3f}"
            axes.axhline(mean["value"], color=color, linestyle=":", linewidth=1, label=label)
        for kind, style in (("pass", "o-"), ("maj", "s--")):
            known = {int(k): at for k, at in found[kind].items() if at["value"] is not None}
            if known:
                heights = [at["value"] for at in known.values()]
                errors = [at["error"] or 0.0 for at in known.values()]
                axes.errorbar(
                    list(known), heights, errors, fmt=style, color=color, capsize=3, label=f"{source}: {kind}@k"
                )
    ks = sorted({int(k) for _, found in sources for k in found["pass"]})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, labels=list(map(str, ks)))
    axes.set_xticks([], minor=True)
    axes.set(xlabel="k", ylabel="share of prompts, or score")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="best")
    figure.savefig(path, dpi=120)

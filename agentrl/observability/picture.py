"""A figure that needs no display: what commands draw their plots on."""

from __future__ import annotations

from typing import Any


def new_picture() -> tuple[Any, Any]:
    """A figure of matplotlib's own renderer, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()

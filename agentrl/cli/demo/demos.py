"""The demos by name."""

from __future__ import annotations

from agentrl.cli.demo.calculator import CALCULATOR
from agentrl.cli.demo.description import Demo
from agentrl.cli.demo.interaction import INTERACTION
from agentrl.cli.demo.python import PYTHON
from agentrl.cli.demo.search import SEARCH
from agentrl.errors import UserInputError, suggest

DEMOS: dict[str, Demo] = {demo.name: demo for demo in (CALCULATOR, SEARCH, PYTHON, INTERACTION)}


def demo_named(name: str) -> Demo:
    """The demo of this name.

    Raises:
        UserInputError: names the nearest one.
    """
    if name not in DEMOS:
        raise UserInputError(f"no demo is named {name!r}.{suggest(name, DEMOS)}")
    return DEMOS[name]

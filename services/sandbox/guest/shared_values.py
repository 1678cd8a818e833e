"""Values of a program of which its check has copies: its variables, and containers that its objects hold.

::

    node.children.append(Node(2))    # the check changes its copy of the list
    assert count(node) == 2          # so the program's own list is changed before this call

What a call changes comes back into the copy, which stays the same object.
"""

from __future__ import annotations

import json
import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agentrl.services.sandbox.guest import call_values
else:
    import call_values

_MOST_COPIES, _MOST_HELD = 16, 64
"""Containers of objects that a check, and its program, keep in step; of variables, all that the check uses."""
_OURS = 2
"""References to a copy that nobody else holds: the tuple's, and the one that counts them."""


class Copies:
    """The check's side.

    Args:
        ask: asks the program, without keeping copies in step.
        encode: a value in its form on the wire.
    """

    def __init__(self, ask: Callable[..., Any], encode: Callable[[Any], Any]) -> None:
        self.space: dict[str, Any] = {}
        """The names of the check."""
        self._ask, self._encode = ask, encode
        self._kept: dict[str | int, tuple[Any, str | bytes]] = {}
        """By the name of a variable, or the number of a container: the copy, and its content then."""

    def keep(self, key: str | int, value: Any) -> Any:
        """The copy that is to have the value's content: the one there is, if it is a container of the same type."""
        old = self._kept.pop(key, (None, ""))[0]
        kept = call_values.merge(old, value)
        self._kept[key] = kept, self._content(kept)
        return kept

    def find(self, name: str) -> tuple[Any] | None:
        """The copy of a variable; None: there is none."""
        return (self._kept[name][0],) if name in self._kept else None

    def key(self, value: Any) -> str | int | None:
        """The key of a container that is a copy, so that a call gets the program's own one."""
        return next((key for key, (kept, _) in self._kept.items() if kept is value), None)

    def push(self) -> None:
        """Give the program what the check has changed."""
        for key in list(self._kept):
            value, content = self._kept[key]
            if self._content(value) != content:
                self._ask("put", key, value)
            del value
            if isinstance(key, int) and sys.getrefcount(self._kept[key][0]) <= _OURS:
                del self._kept[key]
        held = [key for key in self._kept if isinstance(key, int)]
        for key in held[:-_MOST_COPIES]:
            del self._kept[key]

    def pull(self) -> None:
        """Take over what the program has changed."""
        if not self._kept:
            return
        for key, value in self._ask("kept", list(self._kept)):
            before = self._kept[key][0]
            now = self.keep(key, value)
            if isinstance(key, str) and self.space.get(key, self) is before:  # else the check has its own by this name
                self.space[key] = now

    def _content(self, value: Any) -> str | bytes:
        try:
            return marshal.dumps(value, 2)  # of plain data, thirty times as fast; later versions depend on references
        except ValueError:
            pass
        try:
            return json.dumps(self._encode(value))
        except (TypeError, ValueError):  # the check has put something there that cannot travel
            return ""


class Held:
    """The program's side: the containers of its objects that the check may have copies of.

    Args:
        variables: of the program.
    """

    def __init__(self, variables: dict[str, Any]) -> None:
        self._variables = variables
        self._held: dict[int, Any] = {}
        self._next = 0

    def take(self, value: Any) -> tuple[Any, int | None]:
        """What the check gets of an attribute: its value, and its number if that is a container."""
        if not call_values.is_container(value):
            return value, None
        number = next((number for number, one in self._held.items() if one is value), None)
        if number is None:
            number, self._next = self._next, self._next + 1
        self._held.pop(number, None)
        self._held[number] = value
        if len(self._held) > _MOST_HELD:
            del self._held[next(iter(self._held))]
        return value, number

    def own(self, key: str | int) -> Any:
        """The program's own value."""
        return self._variables[key] if isinstance(key, str) else self._held[key]

    def put(self, key: str | int, value: Any) -> None:
        """Give the program's own value the content of the check's copy."""
        if isinstance(key, str) or key in self._held:
            call_values.merge(self.own(key), value)

    def kept(self, keys: list[str | int]) -> list[tuple[str | int, Any]]:
        """The values that are still there; modules are no values."""
        known = [key for key in keys if key in (self._variables if isinstance(key, str) else self._held)]
        return [(key, self.own(key)) for key in known if not isinstance(self.own(key), type(sys))]

"""Stand-ins of a check for objects of the program, which runs in another sandbox.

The program decides nothing by itself:

* its object never equals a value of the check, and is neither less nor more than one;
* an operator that hands its object a value of the check gives an object that only its other objects can be compared
  with: `abs(f(1) - 2) < 1e-6` must not hold because the program has learned of the 2 and answers 0;
* `in` goes through its object item by item.
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNARY = ("neg", "pos", "invert")
_BINARY = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"),
    *("divmod",),
)
_ORDER = ("lt", "le", "gt", "ge")
_CONVERSIONS = ("abs", "bool", "bytes", "complex", "float", "int", "len", "repr", "reversed", "round", "str", "iter")


class StandIn:
    """Stands in for an object of the program.

    Args:
        peer: the check's end of the line.
        place: of the object.
        told: the program has been told a value that the check compares it with.
        plain: the object's class is derived from that of a container.
    """

    def __init__(self, peer: Any, place: int, told: bool = False, plain: bool = False) -> None:
        self.__dict__.update(_peer=peer, _place=place, _told=told, _plain=plain)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object."""
        return self._peer.call(usable(self), args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__", "__dict__"):
            raise AttributeError(name)
        return self._peer.take(usable(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("set", usable(self), name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StandIn):
            return bool(self._plain and self._peer.ask("plain", usable(self)) == other)
        return self._place == other._place or self._peer.ask("operator", self._place, "eq", [Operand(other)]) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        """The program's own, so that a set of its objects is as large as it says."""
        return hash(self._place) if self._told else hash(_convert("hash", self))

    def __instancecheck__(self, other: Any) -> bool:
        return isinstance(other, StandIn) and self._peer.ask("isinstance", usable(self), other) is True

    def __subclasscheck__(self, other: Any) -> bool:
        return isinstance(other, StandIn) and self._peer.ask("issubclass", usable(self), other) is True

    def __getitem__(self, key: Any) -> Any:
        return self._peer.ask("operator", usable(self), "getitem", [key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._peer.ask("operator", usable(self), "setitem", [key, value])

    def __delitem__(self, key: Any) -> None:
        self._peer.ask("operator", usable(self), "delitem", [key])

    def __next__(self) -> Any:
        return self._peer.ask("operator", usable(self), "next", [])

    def __contains__(self, value: Any) -> bool:
        return any(one is value or one == value for one in iter(self))

    def __enter__(self) -> Any:
        return self._peer.ask("enter", usable(self))

    def __exit__(self, *_: object) -> Any:
        return self._peer.ask("leave", usable(self))


class Operand:
    """An object of the program beside an operator, whatever the program has been told about it."""

    def __init__(self, value: StandIn) -> None:
        self.place: int = value._place


def usable(value: StandIn) -> int:
    """The place of an object from which the check may learn something.

    Raises:
        TypeError: the program has been told what the check compares it with.
    """
    if value._told:
        raise TypeError(
            "this object of the program came from an operator with a value of the check, and can only be compared with "
            "other objects of the program"
        )
    return int(value._place)


def _operate(name: str, value: StandIn, other: Any, ask: str) -> Any:
    if isinstance(other, StandIn):
        found = value._peer.ask(ask, value._place, name, [Operand(other)])
        told = value._told or other._told
    else:
        found, told = value._peer.ask(ask, value._place, name, [other]), True
    if not told:
        return found
    if not isinstance(found, StandIn):
        raise TypeError(f"{name}: the program's object gave {type(found).__name__} for a value of the check")
    return StandIn(value._peer, found._place, told=True)


def _compare(name: str, value: StandIn, other: Any) -> bool:
    if not isinstance(other, StandIn):
        raise TypeError(f"{name}: an object of the program is not compared with {type(other).__name__}")
    return value._peer.ask("operator", value._place, name, [Operand(other)]) is True


def _convert(name: str, value: StandIn, *args: Any) -> Any:
    found = value._peer.ask("operator", usable(value), name, list(args))
    return found if isinstance(found, StandIn) or name in ("abs", "iter", "reversed", "round") else _plain(name, found)


def _plain(name: str, found: Any) -> Any:
    return getattr(builtins, "int" if name == "len" else name if name != "repr" else "str")(found)


def _add_operators() -> None:
    def method(function: Any, *first: Any) -> Any:
        name, rest = first[0], first[1:]
        return lambda self, *args: function(name, self, *args, *rest)

    for name in _UNARY:
        setattr(StandIn, f"__{name}__", method(_convert_operator, name))
    for name in _CONVERSIONS:
        setattr(StandIn, f"__{name}__", method(_convert, name))
    StandIn.__index__ = lambda self: _convert("int", self)  # type: ignore[attr-defined]
    StandIn.__doc__ = property(lambda self: self._peer.take(usable(self), "__doc__"))  # type: ignore[assignment]
    for name in _ORDER:
        setattr(StandIn, f"__{name}__", method(_compare, name))
    for name in _BINARY:
        called = f"{name}_" if name in ("and", "or") else name
        setattr(StandIn, f"__{name}__", method(_operate, called, "operator"))
        setattr(StandIn, f"__r{name}__", method(_operate, called, "reversed_operator"))


def _convert_operator(name: str, value: StandIn) -> Any:
    return value._peer.ask("operator", usable(value), name, [])


_add_operators()

"""Values on their way between a program under test and its check: data by content, everything else by number.

JSON carries `None`, booleans, integers, floats and texts as they are. Whatever else is a list whose first entry names
its kind: `[1, (2, 3)]` is `["list", 0, [1, ["tuple", [2, 3]]]]`. Containers that can be changed have a number, so that
one that occurs twice stays one, and so that the caller sees what a call has changed in its arguments.
"""

from __future__ import annotations

import builtins
import collections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_COPIES: dict[tuple[str, str], Any] = {
    ("fractions", "Fraction"): lambda value: [str(value)],
    ("decimal", "Decimal"): lambda value: [str(value)],
    ("datetime", "date"): lambda value: [value.year, value.month, value.day],
    ("datetime", "timedelta"): lambda value: [value.days, value.seconds, value.microseconds],
    ("datetime", "time"): lambda value: [value.hour, value.minute, value.second, value.microsecond, value.tzinfo],
    ("datetime", "datetime"): lambda value: [
        *(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.tzinfo)
    ],
    ("datetime", "timezone"): lambda value: list(value.__getinitargs__()),
    ("uuid", "UUID"): lambda value: [str(value)],
    ("pathlib", "PosixPath"): lambda value: [str(value)],
    ("_io", "StringIO"): lambda value: [value.getvalue()],
}
"""Types of the standard library that are rebuilt from a few values; of times, those with a fixed time zone or none."""
_VIEWS: dict[str, Any] = {"keys": type({}.keys()), "items": type({}.items())}
"""Views of a dict, which equal sets."""
_MAKE: dict[str, Any] = {
    "list": list,
    "dict": dict,
    "set": set,
    "bytearray": bytearray,
    "deque": collections.deque,
    "Counter": collections.Counter,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
}
_MAPPINGS = ("dict", "Counter", "OrderedDict", "defaultdict")


def is_container(value: Any) -> bool:
    """Whether a value is a container that can be changed, and no object of a class derived from one."""
    return type(value) in _MAKE.values()


def merge(old: Any, now: Any, done: dict[int, Any] | None = None) -> Any:
    """Give a container the content of another of its type, keeping what it holds where that is a container too.

    Returns:
        `old`; or `now` where the types differ or are no containers.
    """
    kind = type(now)
    if kind is not type(old) or kind not in _MAKE.values():
        return now
    done = {} if done is None else done
    if id(now) in done:
        return done[id(now)]
    done[id(now)] = old
    if isinstance(now, dict):
        items = {key: merge(old.get(key), value, done) for key, value in now.items()}
        old.clear()
        old.update(items)
    elif isinstance(now, list | collections.deque):
        parts = [merge(old[place] if place < len(old) else None, one, done) for place, one in enumerate(now)]
        old.clear()
        old.extend(parts)
    else:
        old.clear()
        (old.update if isinstance(old, set) else old.extend)(now)
    return old


class Table:
    """The containers of one call: arguments, and then what it answers, in the order in which they are met.

    Args:
        export: gives what cannot be copied a description that the other side understands.
        resolve: the reverse.
        known: describes a container that the other side has too; None: it has it not.
    """

    def __init__(
        self,
        export: Callable[[Any], list[Any]],
        resolve: Callable[[list[Any]], Any],
        known: Callable[[Any], list[Any] | None] = lambda _: None,
    ) -> None:
        self._export, self._resolve, self._known = export, resolve, known
        self.containers: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._before: list[Any] = []

    def encode(self, value: Any) -> Any:
        """A value in its form on the wire."""
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if id(value) in self._numbers:
            return ["ref", self._numbers[id(value)]]
        if kind.__name__ in _MAKE and kind is _MAKE[kind.__name__]:
            if (known := self._known(value)) is not None:
                return known
            number = self._add(value)
            made = [self.encode(value.default_factory)] if kind is collections.defaultdict else []
            return [kind.__name__, number, self._content(value), *made]
        if kind in (tuple, frozenset):
            return [kind.__name__, [self.encode(one) for one in value]]
        return self._encode_rare(value, kind)

    def decode(self, wire: Any) -> Any:
        """The value again.

        Raises:
            ValueError: the other side wrote something else.
        """
        if not isinstance(wire, list):
            if isinstance(wire, dict):
                raise ValueError("got an object")
            return wire
        kind = wire[0]
        if kind == "ref":
            return self.containers[wire[1]]
        if kind in _MAKE:
            container = _MAKE[kind]()
            if self._add(container) != wire[1]:
                raise ValueError("got a container out of order")
            if kind == "defaultdict":
                container.default_factory = self.decode(wire[3])
            self._fill(container, wire[2])
            return container
        if kind == "tuple":
            return tuple(map(self.decode, wire[1]))
        if kind == "frozenset":
            return frozenset(map(self.decode, wire[1]))
        return self._decode_rare(kind, wire[1:])

    def note(self) -> None:
        """Remember the content of all containers so far."""
        self._before = [_shallow(container) for container in self.containers]

    def changes(self) -> list[Any]:
        """What has changed in containers since `note`: their numbers and new contents."""
        changed = []
        for number, before in enumerate(self._before):
            container = self.containers[number]
            now = _shallow(container)
            if len(now) != len(before) or any(one is not other for one, other in zip(now, before, strict=True)):
                changed.append([number, self._content(container)])
        return changed

    def apply(self, changes: list[Any]) -> None:
        """Make the other side's changes here too."""
        for number, content in changes:
            container = self.containers[number]
            container.clear()
            self._fill(container, content)

    def _add(self, container: Any) -> int:
        self._numbers[id(container)] = len(self.containers)
        self.containers.append(container)
        return len(self.containers) - 1

    def _content(self, container: Any) -> Any:
        if isinstance(container, bytearray):
            return container.hex()
        if isinstance(container, dict):
            return [[self.encode(key), self.encode(value)] for key, value in container.items()]
        return [self.encode(one) for one in container]

    def _fill(self, container: Any, content: Any) -> None:
        kind = type(container).__name__
        if kind == "bytearray":
            container.extend(bytes.fromhex(content))
        elif kind in _MAPPINGS:
            for key, value in content:
                container[self.decode(key)] = self.decode(value)
        elif kind == "set":
            container.update(map(self.decode, content))
        else:
            container.extend(map(self.decode, content))

    def _encode_rare(self, value: Any, kind: type) -> Any:
        kind_name = (kind.__module__, kind.__name__)
        if kind is bytes:
            return ["bytes", value.hex()]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind in (range, slice):
            return [kind.__name__, value.start, value.stop, value.step]
        if value is Ellipsis or value is NotImplemented:
            return ["named", repr(value)]
        if isinstance(value, type):
            type_name = value.__name__
            if vars(builtins).get(type_name) is value:
                return ["type", type_name]
        if kind_name in _COPIES and _copied_zone(value):
            return ["copy", *kind_name, [self.encode(part) for part in _COPIES[kind_name](value)]]
        for name, view in _VIEWS.items():
            if isinstance(value, view):
                return ["view", name, [self.encode(part) for part in value]]
        if kind_name[0] == "numpy" and hasattr(value, "tolist"):
            plain = value.tolist()
            if not hasattr(value, "ndim") or value.ndim == 0:
                return self.encode(plain)
            return ["ndarray", str(value.dtype), self.encode(plain)]
        return self._encode_derived(value, kind)

    def _encode_derived(self, value: Any, kind: type) -> Any:
        """An object of a class of its own: what it is at bottom where that is data, else its number."""
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__index__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, tuple) and isinstance(fields := getattr(kind, "_fields", None), tuple):
            return ["namedtuple", kind.__name__, list(fields), [self.encode(one) for one in tuple(value)]]
        return self._export(value)

    def _decode_rare(self, kind: str, rest: list[Any]) -> Any:
        if kind == "bytes":
            return bytes.fromhex(rest[0])
        if kind == "complex":
            return complex(*rest)
        if kind in ("range", "slice"):
            return {"range": range, "slice": slice}[kind](*rest)
        if kind == "named":
            return {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}[rest[0]]
        if kind == "type":
            return _type(rest[0])
        if kind == "copy":
            module, name, parts = rest
            if (module, name) not in _COPIES:
                raise ValueError(f"got a value of {module}.{name}")
            return getattr(__import__(module), name)(*map(self.decode, parts))
        if kind == "view":
            parts = [self.decode(part) for part in rest[1]]
            return dict(parts).items() if rest[0] == "items" else dict.fromkeys(parts).keys()
        if kind == "ndarray":
            return __import__("numpy").array(self.decode(rest[1]), dtype=rest[0])
        if kind == "namedtuple":
            return collections.namedtuple(rest[0], rest[1])(*map(self.decode, rest[2]))
        return self._resolve([kind, *rest])


def _copied_zone(value: Any) -> bool:
    """Whether a value's time zone, if it has one, is rebuilt too."""
    zone = type(getattr(value, "tzinfo", None))
    return zone is type(None) or (zone.__module__, zone.__name__) in _COPIES


def _type(name: str) -> type:
    found = vars(builtins)[name]
    if not isinstance(found, type):
        raise ValueError(f"got {name}, which is no type")
    return found


def _shallow(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return [part for item in container.items() for part in item]
    return list(container)

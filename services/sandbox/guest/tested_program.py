"""The program's side of a check: answers calls of what the program has defined.

Nothing here is trusted: the program shares this process and may do what it likes with it. It can answer calls, which is
all that the check wants of it; it never sees the check, nor what its answers are compared with.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

    from agentrl.services.sandbox.guest import call_peer, shared_values
else:
    import call_peer
    import shared_values


def answer_calls(main: ModuleType, control: int) -> int:
    """Answer calls until the check hangs up."""
    call_peer.long_integers()
    peer = _Program(main, control)
    try:
        peer.flush()
        peer.send(["ready"])
        while True:
            peer.answer(peer.receive())
    except call_peer.HungUp:
        return 0


_CONTAINERS = (list, tuple, dict, set, frozenset)


class _Theirs:
    """An object of the check: a function that the program may call, or an instance of one of its classes."""

    def __init__(self, peer: _Program, place: int) -> None:
        self.__dict__.update(_peer=peer, _place=place)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._peer.ask("call", self._place, list(args), kwargs)

    def __iter__(self) -> Any:
        return self._peer.ask("iter", self._place)

    def __next__(self) -> Any:
        return self._peer.ask("next", self._place)

    def __len__(self) -> Any:
        return self._peer.ask("len", self._place)

    def __lt__(self, other: Any) -> Any:
        return self._peer.ask("lt", self._place, other)

    def __eq__(self, other: object) -> Any:
        return self._peer.ask("eq", self._place, other)

    def __hash__(self) -> int:
        return hash(self._place)

    def __str__(self) -> str:
        return str(self._peer.ask("str", self._place))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._peer.ask("get", self._place, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("set", self._place, name, value)


class _Program(call_peer.Peer):
    def __init__(self, main: ModuleType, control: int) -> None:
        super().__init__(control)
        self._main = main
        self._held = shared_values.Held(vars(main))

    def flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # the program may have put anything there
                continue

    def do(self, what: str, values: list[Any]) -> Any:
        try:
            if what == "names":
                return self._names(values[0])
            if what == "put":
                return self._held.put(*values)
            if what == "kept":
                return self._held.kept(values[0])
            if what == "seed":
                return __import__(values[0], fromlist=["seed"]).seed(*values[1])
            place, *rest = values
            if what == "take":
                return self._held.take(getattr(self.given(place), *rest))
            return _DO[what](self.given(place), *rest)
        finally:
            self.flush()

    def export(self, value: Any) -> list[Any]:
        if type(value) is _Theirs:
            return ["yours", value.__dict__["_place"]]
        return ["object", self.give(value), _facts(value)]

    def resolve(self, wire: list[Any]) -> Any:
        if wire[0] == "yours":
            return self.given(wire[1])
        if wire[0] == "builtin":
            return vars(__import__("builtins"))[wire[1]]
        return self._held.own(wire[1]) if wire[0] == "kept" else _Theirs(self, wire[1])

    def raise_theirs(self, error: Any) -> NoReturn:
        classes, _, text = error
        for module, name in classes:
            found = vars(__import__("builtins")).get(name)
            if module == "builtins" and isinstance(found, type) and issubclass(found, Exception):
                raise found(text)
        raise RuntimeError(text)

    def _names(self, names: list[str]) -> dict[str, Any]:
        """What the program has under these names; of modules, and of what it took from them, where it is from."""
        space = vars(self._main)
        return {name: space[name] for name in names if name in space and not isinstance(space[name], type(sys))}


def _call(value: Any, args: list[Any], kwargs: dict[str, Any], streams: dict[str, Any]) -> Any:
    """The result; and if the check has streams of its own, what was printed, and how much of its input was read."""
    if not streams:
        return value(*args, **kwargs)
    import builtins
    import io

    said, typed = io.StringIO(), io.StringIO(streams.get("stdin"))
    before = sys.stdout, sys.stdin, builtins.input
    sys.stdout = said if "capture" in streams else before[0]
    sys.stdin = typed if "stdin" in streams else before[1]
    builtins.input = streams.get("input", before[2])
    try:
        found = value(*args, **kwargs)
    finally:
        sys.stdout, sys.stdin, builtins.input = before
    return (found, said.getvalue(), typed.tell())


def _operate(value: Any, name: str, args: list[Any]) -> Any:
    import builtins
    import operator

    function = getattr(operator, name, None) or getattr(builtins, name)
    return function(value, *args)


def _operate_reversed(value: Any, name: str, args: list[Any]) -> Any:
    import operator

    return (divmod if name == "divmod" else getattr(operator, name))(args[0], value)


def _plain(value: Any) -> Any:
    """An object of a class that is derived from a container, as that container."""
    base = next(base for base in _CONTAINERS if isinstance(value, base))
    return base(value.items()) if base is dict else base(iter(value))


def _wait_for(value: Any) -> Any:
    import asyncio

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())


_DO: dict[str, Any] = {
    "call": _call,
    "set": setattr,
    "operator": _operate,
    "reversed_operator": _operate_reversed,
    "enter": lambda value: type(value).__enter__(value),
    "leave": lambda value: type(value).__exit__(value, None, None, None),
    "isinstance": lambda value, other: isinstance(other, value),
    "issubclass": lambda value, other: issubclass(other, value),
    "await": _wait_for,
    "plain": _plain,
}
"""What the check may ask of an object of the program."""


def _facts(value: Any) -> dict[str, Any]:
    """What the check has to know of an object to stand in for it."""
    facts: dict[str, Any] = {"awaits": hasattr(type(value), "__await__"), "plain": isinstance(value, _CONTAINERS)}
    if isinstance(value, type) and issubclass(value, BaseException):
        facts["raises"] = [[one.__module__, one.__qualname__] for one in value.__mro__]
    return facts

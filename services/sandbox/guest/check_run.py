"""The check's side: runs code that must not fail, with the names of a program that runs in another sandbox.

Functions and objects of the program are represented here by stand-ins; what they return comes as data and is compared
here, out of the program's reach. So the program decides nothing by itself:

* its object never equals a value of the check, and is neither less nor more than one;
* an operator that hands its object a value of the check gives an object that only its other objects can be compared
  with: `abs(f(1) - 2) < 1e-6` must not hold because the program has learned of the 2 and answers 0;
* `in` goes through its object item by item.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
import traceback
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, NoReturn

    from agentrl.services.sandbox.guest import call_peer, call_values, check_names, unittest_watch
else:
    import call_peer
    import call_values
    import check_names
    import unittest_watch

_PROGRAM_NAMES = ("main", "solution", "__main__")
_UNARY = ("neg", "pos", "invert")
_BINARY = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"),
    *("divmod",),
)
_ORDER = ("lt", "le", "gt", "ge")
_CONVERSIONS = ("abs", "bool", "bytes", "complex", "float", "int", "len", "repr", "reversed", "round", "str", "iter")
PASSED, FAILED, NO_PROGRAM = 0, 1, 3
"""Exit codes."""


def run_check(job: dict[str, Any], control: int, prepare: Callable[[dict[str, Any], str], ModuleType]) -> NoReturn:
    """Run the check of a job and end this process."""
    main = prepare(job, os.getcwd())
    sys.argv[:] = ["check.py"]
    os.set_inheritable(control, False)
    os.write(control, b"S")
    call_peer.long_integers()
    peer = _Check(control)
    try:
        if peer.receive() != ["ready"]:
            raise ValueError("the program wrote to the line of the check")
    except (call_peer.HungUp, ValueError):
        os._exit(NO_PROGRAM)
    failures = unittest_watch.failures() if "unittest" in job["code"] else []
    code = PASSED
    try:
        own = job["code"].encode(errors="surrogatepass")
        tree = ast.parse(own, "check.py")
        _fill(main.__dict__, tree, job["program"], peer)
        exec(compile(tree, "check.py", "exec", dont_inherit=True), main.__dict__)
    except SystemExit as error:
        if error.code or error is peer.raised:  # `unittest.main()` of the check ends so; a call must not
            code = FAILED
            _show(error)
    except BaseException as error:
        code = FAILED
        _show(error)
    code = FAILED if failures else code
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            continue
    os._exit(code)


def _show(error: BaseException) -> None:
    if isinstance(error, call_peer.HungUp):
        sys.stderr.write("The program ended before its check had run.\n")
        return
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        sys.stderr.write("".join(traceback.format_exception(type(error), error, frames)))
    except BaseException:  # the check may have put anything there
        return


def _fill(space: dict[str, Any], tree: ast.Module, program: str, peer: _Check) -> None:
    """Give the check the names of the program that it uses.

    A program must not replace what the check is made of: `abs`, or `isclose` of math. Only a check that uses nothing
    else of the program is about such a name: `assert sum(10, 15) == 6`.
    """
    used = check_names.identifiers(tree)
    theirs = peer.ask("names", sorted(used))
    imported = check_names.helpers(tree, theirs.keys()) | check_names.imported(program, used)
    for name in theirs.keys() & (vars(builtins).keys() | imported.keys()):
        if theirs.keys() - vars(builtins).keys() - imported.keys():
            del theirs[name]
    space.update(imported)
    space.update({name: peer.keep(name, value) for name, value in theirs.items()})
    peer.space = space
    for name in _PROGRAM_NAMES:
        module = _Program(name)
        module.__dict__["_peer"] = peer
        if name != "__main__":
            sys.modules[name] = module


class _Program(types.ModuleType):
    """The program as a module: `from main import f`."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            peer = self.__dict__["_peer"]
            if name in peer.copies:
                return peer.copies[name][0]
            found = peer.ask("names", [name])
            if name in found:
                return peer.keep(name, found[name])
        raise AttributeError(f"the program has no {name}")


class _Check(call_peer.Peer):
    def __init__(self, control: int) -> None:
        super().__init__(control)
        self._classes: dict[tuple[str, str], type[BaseException]] = {}
        self._stdout = sys.stdout
        self.space: dict[str, Any] = {}
        self.copies: dict[str, tuple[Any, str]] = {}
        """Variables of the program that are data: what the check has of each, and its content then."""
        self.raised: BaseException | None = None
        """What the program raised last, in the call that the check made."""

    def ask(self, what: str, *values: Any) -> Any:
        """See the base class. What the check has changed in copies goes to the program, and its changes come back."""
        if what in ("names", "put", "plain") or not self.copies:
            return super().ask(what, *values)
        for name, (value, content) in self.copies.items():
            if self._content(value) != content:
                super().ask("put", name, value)
        try:
            return super().ask(what, *values)
        finally:
            for name, value in super().ask("names", list(self.copies)).items():
                kept = self.copies[name][0]
                now = self.keep(name, value)
                if self.space.get(name, self) is kept:  # else the check has its own under this name
                    self.space[name] = now

    def keep(self, name: str, value: Any) -> Any:
        """A variable of the program as the check sees it: data are copies that are kept in step with its calls."""
        if isinstance(value, _Object) and name not in self.copies:
            return value
        kept = call_values.merge(self.copies[name][0] if name in self.copies else None, value)
        self.copies[name] = kept, self._content(kept)
        return kept

    def _content(self, value: Any) -> str:
        try:
            return json.dumps(self._table().encode(value))
        except (TypeError, ValueError):  # the check has put something there that cannot travel
            return ""

    def call(self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call something of the program; what it prints goes to where the check has sent its own output."""
        capture = sys.stdout is not self._stdout
        found = self.ask("call", place, list(args), kwargs, capture)
        if not capture:
            return found
        found, said = found
        sys.stdout.write(said)
        return found

    def do(self, what: str, values: list[Any]) -> Any:
        """What the program asks: to call what it was given as a function, to read and set public attributes."""
        value, *rest = self.given(values[0]), *values[1:]
        if what == "call":
            if not callable(value):
                raise TypeError(f"{type(value).__name__} cannot be called")
            return value(*rest[0], **rest[1])
        if what in ("next", "iter", "len", "str"):
            return getattr(builtins, what)(value)
        if what in ("lt", "eq"):
            return value < rest[0] if what == "lt" else value == rest[0]
        if what not in ("get", "set") or not _is_own(value) or rest[0].startswith("_"):
            raise AttributeError(what)
        return getattr(value, rest[0]) if what == "get" else setattr(value, *rest)

    def export(self, value: Any) -> list[Any]:
        if isinstance(value, _Object):
            return ["yours", _usable(value)]
        if isinstance(value, _Operand):
            return ["yours", value.place]
        name = str(getattr(value, "__name__", ""))
        if vars(builtins).get(name, self) is value:
            return ["builtin", name]
        if callable(value) or _is_own(value) or hasattr(type(value), "__next__"):
            return super().export(value)
        raise TypeError(f"a value of type {type(value).__name__} cannot be handed to the program")

    def resolve(self, wire: list[Any]) -> Any:
        if wire[0] == "yours":
            return self.given(wire[1])
        if wire[0] != "object":
            raise ValueError(f"got a value of the kind {wire[0]!r:.40}")
        _, place, facts = wire
        if facts.get("raises"):
            return self._exception(facts["raises"])
        if facts.get("awaits"):
            return self._awaited(place)
        return _Object(self, int(place), plain=bool(facts.get("plain")))

    async def _awaited(self, place: int) -> Any:
        return self.ask("await", place)

    def raise_theirs(self, error: Any) -> NoReturn:
        classes, arguments, text = error
        table = self._table()
        raised = self._exception(classes)
        arguments = list(map(table.decode, arguments))
        made = raised.__new__(raised, *arguments)
        if isinstance(made, SystemExit):
            made.code = arguments[0] if arguments else None
        if type(made).__module__ == "__main__":
            made.__dict__["_text"] = str(text)
        self.raised = made
        raise made

    def _exception(self, classes: list[list[str]]) -> type[BaseException]:
        """The class of the first name: a known one, or one made here with the nearest known one as its base."""
        module, name = classes[0]
        if module in check_names.MODULES or module == "builtins":
            found: Any = getattr(__import__(module, fromlist=["*"]), name, None)
            if isinstance(found, type) and issubclass(found, BaseException):
                return found
        if (module, name) not in self._classes:
            base = self._exception(classes[1:])
            body = {"__module__": "__main__", "__str__": lambda self: self.__dict__.get("_text", base.__str__(self))}
            self._classes[module, name] = type(name, (base,), body)
        return self._classes[module, name]


def _is_own(value: Any) -> bool:
    """An instance of a class that the check defines."""
    return not isinstance(value, type) and type(value).__module__ == "__main__"


class _Object:
    """Stands in for an object of the program."""

    def __init__(self, peer: _Check, place: int, told: bool = False, plain: bool = False) -> None:
        self.__dict__.update(_peer=peer, _place=place, _told=told, _plain=plain)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._peer.call(_usable(self), args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__", "__dict__"):
            raise AttributeError(name)
        return self._peer.ask("get", _usable(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("set", _usable(self), name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Object):
            return bool(self._plain and self._peer.ask("plain", _usable(self)) == other)
        return self._place == other._place or self._peer.ask("operator", self._place, "eq", [_Operand(other)]) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._place)

    def __instancecheck__(self, other: Any) -> bool:
        return isinstance(other, _Object) and self._peer.ask("isinstance", _usable(self), other) is True

    def __subclasscheck__(self, other: Any) -> bool:
        return isinstance(other, _Object) and self._peer.ask("issubclass", _usable(self), other) is True

    def __getitem__(self, key: Any) -> Any:
        return self._peer.ask("operator", _usable(self), "getitem", [key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._peer.ask("operator", _usable(self), "setitem", [key, value])

    def __delitem__(self, key: Any) -> None:
        self._peer.ask("operator", _usable(self), "delitem", [key])

    def __next__(self) -> Any:
        return self._peer.ask("operator", _usable(self), "next", [])

    def __contains__(self, value: Any) -> bool:
        return any(one is value or one == value for one in iter(self))

    def __enter__(self) -> Any:
        return self._peer.ask("enter", _usable(self))

    def __exit__(self, *_: object) -> Any:
        return self._peer.ask("leave", _usable(self))


class _Operand:
    """An object of the program beside an operator, whatever the program has been told about it."""

    def __init__(self, value: _Object) -> None:
        self.place: int = value._place


def _usable(value: _Object) -> int:
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


def _operate(name: str, value: _Object, other: Any, ask: str) -> Any:
    if isinstance(other, _Object):
        found = value._peer.ask(ask, value._place, name, [_Operand(other)])
        told = value._told or other._told
    else:
        found, told = value._peer.ask(ask, value._place, name, [other]), True
    if not told:
        return found
    if not isinstance(found, _Object):
        raise TypeError(f"{name}: the program's object gave {type(found).__name__} for a value of the check")
    return _Object(value._peer, found._place, told=True)


def _compare(name: str, value: _Object, other: Any) -> bool:
    if not isinstance(other, _Object):
        raise TypeError(f"{name}: an object of the program is not compared with {type(other).__name__}")
    return value._peer.ask("operator", value._place, name, [_Operand(other)]) is True


def _convert(name: str, value: _Object, *args: Any) -> Any:
    found = value._peer.ask("operator", _usable(value), name, list(args))
    return found if isinstance(found, _Object) or name in ("abs", "iter", "reversed", "round") else _plain(name, found)


def _plain(name: str, found: Any) -> Any:
    return getattr(builtins, "int" if name == "len" else name if name != "repr" else "str")(found)


def _add_operators() -> None:
    def method(function: Any, *first: Any) -> Any:
        name, rest = first[0], first[1:]
        return lambda self, *args: function(name, self, *args, *rest)

    for name in _UNARY:
        setattr(_Object, f"__{name}__", method(_convert_operator, name))
    for name in _CONVERSIONS:
        setattr(_Object, f"__{name}__", method(_convert, name))
    _Object.__index__ = lambda self: _convert("int", self)  # type: ignore[attr-defined]
    for name in _ORDER:
        setattr(_Object, f"__{name}__", method(_compare, name))
    for name in _BINARY:
        called = f"{name}_" if name in ("and", "or") else name
        setattr(_Object, f"__{name}__", method(_operate, called, "operator"))
        setattr(_Object, f"__r{name}__", method(_operate, called, "reversed_operator"))


def _convert_operator(name: str, value: _Object) -> Any:
    return value._peer.ask("operator", _usable(value), name, [])


_add_operators()

"""The check's side: runs code that must not fail, with the names of a program that runs in another sandbox.

Functions and objects of the program are represented here by stand-ins (`stand_ins`); what they return comes as data and
is compared here, out of the program's reach.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import sys
import traceback
import types
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, NoReturn

    from agentrl.services.sandbox.guest import call_peer, check_names, shared_values, stand_ins, unittest_watch
else:
    import call_peer
    import check_names
    import shared_values
    import stand_ins
    import unittest_watch

_PROGRAM_NAMES = ("main", "solution", "__main__")
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
        _fill(main.__dict__, job["code"], tree, job["program"], peer)
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


def _fill(space: dict[str, Any], code: str, tree: ast.Module, program: str, peer: _Check) -> None:
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
    peer.copies.space = space
    if ".seed(" in code:
        _seed_both(peer, ("random", "numpy.random") if "numpy" in code else ("random",))
    for name in _PROGRAM_NAMES:
        module = _Program(name)
        module.__dict__["_peer"] = peer
        if name != "__main__":
            sys.modules[name] = module


def _seed_both(peer: _Check, modules: tuple[str, ...]) -> None:
    """`random.seed(1)` of the check is meant for the program, and counts in both."""
    for name in modules:
        module: Any = __import__(name, fromlist=["seed"])
        module.seed = _seed(peer, name, module.seed)


def _seed(peer: _Check, name: str, own: Callable[..., None]) -> Callable[..., None]:
    def seed(*args: Any) -> None:
        own(*args)
        peer.ask("seed", name, list(args))

    return seed


class _Program(types.ModuleType):
    """The program as a module: `from main import f`."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            peer = self.__dict__["_peer"]
            if kept := peer.copies.find(name):
                return kept[0]
            found = peer.ask("names", [name])
            if name in found:
                return peer.keep(name, found[name])
        raise AttributeError(f"the program has no {name}")


class _Check(call_peer.Peer):
    def __init__(self, control: int) -> None:
        super().__init__(control)
        self._classes: dict[tuple[str, str], type[BaseException]] = {}
        self._stand_ins: weakref.WeakValueDictionary[int, stand_ins.StandIn] = weakref.WeakValueDictionary()
        self._streams = sys.stdout, sys.stdin, builtins.input
        self._whole = False
        self.copies = shared_values.Copies(self._ask_whole, self._encode_whole)
        self.raised: BaseException | None = None
        """What the program raised last, in the call that the check made."""

    def ask(self, what: str, *values: Any) -> Any:
        """See the base class. What the check has changed in copies goes to the program, and its changes come back."""
        if what in ("names", "plain"):
            return super().ask(what, *values)
        self.copies.push()
        try:
            return super().ask(what, *values)
        finally:
            self.copies.pull()

    def keep(self, name: str, value: Any) -> Any:
        """A variable of the program as the check sees it: data are copies that are kept in step with its calls."""
        return (
            value
            if isinstance(value, stand_ins.StandIn) and not self.copies.find(name)
            else self.copies.keep(name, value)
        )

    def take(self, place: int, name: str) -> Any:
        """An attribute of an object; a container is a copy that is kept in step."""
        value, number = self.ask("take", place, name)
        return value if number is None else self.copies.keep(number, value)

    def call(self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call something of the program, which prints to and reads from where the check has sent its own streams."""
        stdout, stdin, reader = self._streams
        streams: dict[str, Any] = {"capture": True} if sys.stdout is not stdout else {}
        if builtins.input is not reader:
            streams["input"] = builtins.input
        typed = sys.stdin if sys.stdin is not stdin and isinstance(sys.stdin, io.StringIO) else None
        if typed is not None:
            streams["stdin"] = typed.getvalue()[typed.tell() :]
        found = self.ask("call", place, list(args), kwargs, streams)
        if not streams:
            return found
        found, said, used = found
        if "capture" in streams:
            sys.stdout.write(said)
        if typed is not None:
            typed.read(used)
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

    def _ask_whole(self, what: str, *values: Any) -> Any:
        self._whole = True
        try:
            return super().ask(what, *values)
        finally:
            self._whole = False

    def _encode_whole(self, value: Any) -> Any:
        self._whole = True
        try:
            return self._table().encode(value)
        finally:
            self._whole = False

    def known(self, value: Any) -> list[Any] | None:
        key = None if self._whole else self.copies.key(value)
        return None if key is None else ["kept", key]

    def export(self, value: Any) -> list[Any]:
        if isinstance(value, stand_ins.StandIn):
            return ["yours", stand_ins.usable(value)]
        if isinstance(value, stand_ins.Operand):
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
        found = self._stand_ins.get(place)  # the same one, so that `get() is get()`
        if found is None:
            found = self._stand_ins[place] = stand_ins.StandIn(self, int(place), plain=bool(facts.get("plain")))
        return found

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

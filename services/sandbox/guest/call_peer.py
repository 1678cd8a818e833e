"""Calls between a program under test and its check, which run in two sandboxes and share nothing but this line.

Each side may call what the other has given it, also while it is being called itself: the check calls `f`, and `f` calls
the `lambda` that it got as an argument. Frames are JSON behind eight digits of length.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from agentrl.services.sandbox.guest import call_values
else:
    import call_values

_HEADER = 8
_MOST_BYTES = 64 << 20


class HungUp(BaseException):
    """The other side is gone."""


class Peer:
    """One end of the line; each side is a subclass.

    Args:
        fd: the line.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._given: list[Any] = []
        """Objects that the other side knows by their places here."""
        self._places: dict[int, int] = {}

    def ask(self, what: str, *values: Any) -> Any:
        """Let the other side do something and wait for it; what it asks meanwhile is answered.

        Raises:
            HungUp: it is gone.
            Exception: what it raised.
        """
        table = self._table()
        self.send(["ask", what, [table.encode(value) for value in values]])
        while True:
            frame = self.receive()
            if frame[0] == "ask":
                self.answer(frame)
                continue
            _, kind, value, changes = frame
            if kind == "ok":
                found = table.decode(value)
                table.apply(changes)
                return found
            self.raise_theirs(value)

    def answer(self, frame: list[Any]) -> None:
        """Do what the other side asks."""
        table = self._table()
        try:
            values = [table.decode(value) for value in frame[2]]
            table.note()
            reply = ["answer", "ok", table.encode(self.do(frame[1], values)), table.changes()]
            text = json.dumps(reply)
        except HungUp:
            raise
        except BaseException as error:
            text = json.dumps(["answer", "error", self.describe(error), []])
        self.send_text(text)

    def do(self, what: str, values: list[Any]) -> Any:
        """What the other side asks for."""
        raise NotImplementedError

    def export(self, value: Any) -> list[Any]:
        """How this side describes what cannot be copied."""
        return ["object", self.give(value), {}]

    def known(self, value: Any) -> list[Any] | None:
        """How this side describes a container of which the other side has its own; None: it has none."""
        return None

    def resolve(self, wire: list[Any]) -> Any:
        """What stands here for what the other side has described."""
        raise NotImplementedError

    def raise_theirs(self, error: Any) -> NoReturn:
        """Raise what was raised on the other side."""
        raise NotImplementedError

    def describe(self, error: BaseException) -> Any:
        """What the other side has to know of an exception: its classes, its arguments as far as they are data."""
        table = call_values.Table(_refuse, _refuse)
        try:
            arguments = [table.encode(one) for one in error.args]
            json.dumps(arguments)
        except BaseException:
            arguments = []
        try:
            text = str(error)
        except BaseException:
            text = ""
        classes = [[one.__module__, one.__qualname__] for one in type(error).__mro__]
        return [classes, arguments, text]

    def give(self, value: Any) -> int:
        """The number by which the other side knows an object."""
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self._given)
            self._given.append(value)  # it stays, so its id stays its own
        return place

    def given(self, place: int) -> Any:
        """The object of a number."""
        return self._given[place]

    def send(self, frame: Any) -> None:
        """Write a frame."""
        self.send_text(json.dumps(frame))

    def send_text(self, text: str) -> None:
        """Write a frame that is JSON already."""
        data = text.encode()
        data = b"%08d" % len(data) + data
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            raise HungUp from None

    def receive(self) -> Any:
        """Read a frame.

        Raises:
            HungUp: there is none any more.
            ValueError: it is too long, or no frame.
        """
        size = int(self._read(_HEADER))
        if size > _MOST_BYTES:
            raise ValueError(f"got a value of {size} bytes, wanted at most {_MOST_BYTES}")
        return json.loads(self._read(size))

    def _table(self) -> call_values.Table:
        return call_values.Table(self.export, self.resolve, self.known)

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = os.read(self._fd, min(size, 1 << 20))
            except OSError:
                part = b""
            if not part:
                raise HungUp
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _refuse(value: Any) -> Any:
    raise ValueError("not data")


def long_integers() -> None:
    """Let integers of any length be written in decimal, as JSON has them."""
    sys.set_int_max_str_digits(0)

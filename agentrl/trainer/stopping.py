"""Ctrl-C and SIGTERM: stop immediately if nothing is lost, else after the update that is changing the weights."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopGuard:
    """Turns the first signal into a clean `KeyboardInterrupt`, delayed inside `deferred`.

    A second signal interrupts whatever is running.

    Attributes:
        at_once: a second signal came.
    """

    def __init__(self) -> None:
        self.at_once = False
        self._deferred = False
        self._requested = False

    def __enter__(self) -> Self:
        self._in_main = threading.current_thread() is threading.main_thread()
        if self._in_main:
            self._old = [signal.signal(number, self._handle) for number in SIGNALS]
        return self

    def __exit__(self, *_error: object) -> None:
        if self._in_main:
            for number, handler in zip(SIGNALS, self._old, strict=True):
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, a stop waits for the end of the block."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self._requested:
            raise KeyboardInterrupt

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._deferred and not self._requested:
            self._requested = True
            logger.warning(
                "%s: stopping after this update or checkpoint; send it again to stop now", signal.Signals(number).name
            )
            return
        self.at_once = self._requested
        self._requested = True
        raise KeyboardInterrupt

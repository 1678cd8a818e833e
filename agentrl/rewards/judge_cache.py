"""Replies of the judge that are known: equal requests are sent once, also while the first one is on its way."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.observability.said_once import say_once

logger = logging.getLogger(__name__)

_REMEMBERED = 65536


class ReplyCache:
    """Replies by request, in memory and, with a folder, in one file each. Use it in one event loop.

    Args:
        folder: shared by workers and runs; None: memory only.
        enabled: False: every request is sent.

    Raises:
        ConfigError: the folder cannot be made.
    """

    def __init__(self, folder: str | None, enabled: bool) -> None:
        self._folder = Path(folder) if folder is not None and enabled else None
        self._enabled = enabled
        self._known: OrderedDict[str, asyncio.Task[str]] = OrderedDict()
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"reward_model.judge.cache_dir: {self._folder} cannot be made: {error}") from error

    async def reply(self, request: Any, send: Callable[[], Awaitable[str]]) -> tuple[str, bool]:
        """The reply to a request (plain JSON), and whether it was known.

        A request that fails is not remembered; those that waited for it fail with it.
        """
        if not self._enabled:
            return await send(), False
        key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        task, known = self._known.get(key), True
        if task is None:
            if (kept := self._read(key)) is not None:
                return kept, True
            known = False
            task = self._known[key] = asyncio.ensure_future(self._sent(key, send))
            task.add_done_callback(lambda done: self._settle(key, done))
        # Shielded: a trajectory that is cancelled must not take the reply from those that wait for it too.
        return await asyncio.shield(task), known

    async def _sent(self, key: str, send: Callable[[], Awaitable[str]]) -> str:
        reply = await send()
        if self._folder is not None:
            part = self._folder / f"{key}.{os.getpid()}.part"
            try:
                part.write_text(reply, encoding="utf-8")
                part.replace(self._folder / f"{key}.txt")
            except OSError as error:  # the reply is good
                say_once(logger, logging.WARNING, f"reward_model.judge.cache_dir: a reply cannot be kept: {error}")
        return reply

    def _settle(self, key: str, task: asyncio.Task[str]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._known.pop(key, None)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _read(self, key: str) -> str | None:
        if self._folder is None:
            return None
        try:
            return (self._folder / f"{key}.txt").read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            return None

"""The pool of sandboxes that wait for a job."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
from sandbox_service import APART, needs_level

from agentrl.services.sandbox.filesystem_layout import make_layout
from agentrl.services.sandbox.isolation_choice import choose_isolation
from agentrl.services.sandbox.sandbox_pool import SandboxPool

UIDS = range(1_900_100, 1_900_110)


@pytest.mark.parametrize("level", APART)
async def test_a_request_that_ends_as_its_sandbox_comes_up_leaves_nothing(tmp_path: Path, level: str) -> None:
    needs_level(level)
    layout = make_layout(tmp_path, sys.executable, UIDS, 16)
    pool = SandboxPool(choose_isolation(tmp_path, layout, level, None), tmp_path, UIDS, 0, 1)

    async def use() -> None:
        async with pool.sandbox():
            raise AssertionError("it was to be cancelled before")

    request = asyncio.create_task(use())
    await asyncio.sleep(0)
    time.sleep(0.3)  # the launcher's word comes while nobody looks
    await asyncio.sleep(0)  # it is read
    await asyncio.sleep(0)
    request.cancel()
    started = time.monotonic()
    await asyncio.gather(request, return_exceptions=True)
    await pool.close()
    assert (pool.open, list(tmp_path.glob("run-*"))) == (set(), [])
    assert time.monotonic() - started < 10

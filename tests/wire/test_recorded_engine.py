"""The contract suite against the embedded engine as a server, and against what a real SGLang answered to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_contract import checks, make_case, run
from engine_servers import serve_embedded
from recorded_engine import CONTEXT, LONGEST, Replayer, load, models, serve

from agentrl.testing.engine_contract import EngineCheck


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine_models")
    models(folder)
    return folder


@pytest.fixture(scope="module")
def embedded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = ("--max-context-length", str(CONTEXT))
    with serve_embedded(folder / "0", tmp_path_factory.mktemp("log"), *options) as (address, _):
        yield address


def test_the_embedded_engine(folder: Path, embedded: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = make_case(embedded, folder / "0", folder / "5", CONTEXT)
    failed = asyncio.run(run(case, checks(seeds=True)))
    assert not failed, capsys.readouterr().out


async def _replayed(folder: Path, chosen: list[EngineCheck]) -> list[str]:
    replayer = Replayer(load(), str(folder))
    runner, address = await serve(replayer.handle)
    try:
        return await run(make_case(address, folder / "0", folder / "5", CONTEXT, LONGEST), chosen)
    finally:
        await runner.cleanup()


def test_the_recorded_answers_of_a_real_sglang(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = asyncio.run(_replayed(folder, checks(seeds=False)))
    assert not failed, capsys.readouterr().out

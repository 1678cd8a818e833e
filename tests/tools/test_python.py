"""The python tool against a real service that really runs the code."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Response
from fastapi.responses import JSONResponse
from sandbox_server import Sandbox

from agentrl.clients import RunResult, WorkerScope, service_line
from agentrl.errors import ToolServiceError
from agentrl.plugins import load_tools
from agentrl.tools.python import Python, describe


@pytest.fixture
async def scope() -> AsyncIterator[WorkerScope]:
    scope = WorkerScope()
    yield scope
    await scope.close()


def make(sandbox: Sandbox, **config: Any) -> Python:
    return Python({"sandbox_url": sandbox.url, "backoff_s": 0.001, "retries": 2, **config})


async def test_code_runs_and_its_errors_are_shown(sandbox: Sandbox) -> None:
    tool = make(sandbox)
    await tool.create(files={"data.txt": base64.b64encode(b"seven").decode()})
    code = "print(open('data.txt').read(), input())"
    for end in ("\n", "\r\n"):
        response = await tool.execute({"code": f"```python{end}{code}{end}```"}, stdin="eight")
        assert (response.text, response.is_error) == ("seven eight", False)
    assert response.metrics["code_failed"] == 0.0
    assert response.metrics["code_seconds"] > 0
    failed = await tool.execute({"code": "print('before')\n1 / 0"})
    assert failed.is_error
    assert failed.text.startswith("before\nTraceback")
    assert failed.text.endswith("ZeroDivisionError: division by zero")
    silent = await tool.execute({"code": "raise SystemExit(4)"})
    assert silent.text == "It failed with return code 4."
    assert (await tool.execute({"code": "x = 1"})).text == "(it printed nothing)"
    await tool.release()
    sent = sandbox.requests[0][1]
    assert {"language": "python", "compile_timeout": 10.0, "run_timeout": 10.0, "memory_limit_MB": -1}.items() <= (
        sent.items()
    )
    assert sent["code"] == code


async def test_code_that_never_ends_is_the_models_mistake(sandbox: Sandbox) -> None:
    tool = make(sandbox, run_timeout_s=0.3)
    response = await tool.execute({"code": "while True: pass"})
    assert response.is_error
    assert response.text == "Stopped: it ran longer than 0.3 s."
    await tool.release()


SANDBOX_ERROR = {"status": "SandboxError", "message": "no place left", "compile_result": None, "run_result": None}


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (Response("down", 503), "failed after 3 attempts: HTTP 503: down"),
        (Response("full", 504, {"Retry-After": "0"}), "failed after 3 attempts: HTTP 504: full"),
        (SANDBOX_ERROR, "failed after 3 attempts: SandboxError: no place left"),
        (Response("bad", 422), "failed after 1 attempt: HTTP 422: bad"),
        (Response("<html>"), "the answer is not JSON: <html>"),
        (JSONResponse({"ok": True}), "wanted a `status` of Success, Failed or SandboxError"),
        (JSONResponse({"status": "Failed", "run_result": "oh"}), "results that are not objects"),
    ],
)
async def test_a_sandbox_that_cannot_run_it_is_never_an_answer(sandbox: Sandbox, order: Any, says: str) -> None:
    tool = make(sandbox)
    sandbox.orders += [order] * 3
    with pytest.raises(ToolServiceError) as caught:
        await tool.execute({"code": "print(1)"})
    assert says in str(caught.value)
    await tool.release()


@pytest.mark.parametrize("order", [Response("full", 429), Response("oops", 500), SANDBOX_ERROR])
async def test_a_passing_trouble_is_got_over(sandbox: Sandbox, order: Any) -> None:
    tool = make(sandbox)
    sandbox.orders += [order, order]
    assert (await tool.execute({"code": "print(1)"})).text == "1"
    await tool.release()


async def test_a_full_sandbox_is_no_failure(sandbox: Sandbox) -> None:
    tool = make(sandbox, retries=0)
    sandbox.orders += [Response("full", 429, {"Retry-After": "0"})] * 20
    assert (await tool.execute({"code": "print(1)"})).text == "1"
    await tool.release()


async def test_a_sandbox_that_stays_full_is_one(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down and busy are told apart, and a wait in which nothing moves at all ends."""
    monkeypatch.setattr(service_line, "STALLED_S", 0.05)
    tool = make(sandbox)
    sandbox.orders += [Response("full", 429)] * 1000
    calls = [tool.execute({"code": "print(1)"}) for _ in range(5)]
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, ToolServiceError)
        assert "busy (HTTP 429), and it has answered nobody for" in str(outcome)
    await tool.release()


async def test_no_service_at_all() -> None:
    tool = Python({"sandbox_url": "http://127.0.0.1:9/run_code", "retries": 1, "backoff_s": 0.001})
    with pytest.raises(ToolServiceError, match=r"http://127\.0\.0\.1:9/run_code failed after 2 attempts: ConnectError"):
        await tool.execute({"code": "1"})
    await tool.release()


async def test_a_session_lasts_as_long_as_the_trajectory(sandbox: Sandbox, scope: WorkerScope) -> None:
    first, second = make(sandbox, session=True), make(sandbox, session=True)
    for tool in (first, second):
        tool.scope = scope
        await tool.create()
    assert sandbox.sessions == {}
    both = await asyncio.gather(first.execute({"code": "x = 1"}), first.execute({"code": "x += 41\nprint(x)"}))
    assert [response.text for response in both] == ["(it printed nothing)", "42"]
    assert (await second.execute({"code": "print(x)"})).is_error
    assert len(sandbox.sessions) == 2
    failed = await first.execute({"code": "print(x); boom"})
    assert failed.text.startswith("42\n")
    assert "NameError" in failed.text
    await first.release()
    assert len(sandbox.sessions) == 1
    sandbox.sessions.clear()  # the service has ended it already
    await second.release()


async def test_code_of_a_session_never_runs_twice(sandbox: Sandbox, scope: WorkerScope) -> None:
    tool = make(sandbox, session=True)
    tool.scope = scope
    await tool.create()
    await tool.execute({"code": "n = 0"})
    sandbox.orders += [Response("full", 429)]  # not begun: safe
    assert (await tool.execute({"code": "n += 1; print(n)"})).text == "1"
    sandbox.orders += [Response("oops", 500)]
    with pytest.raises(ToolServiceError, match="failed after 1 attempt: HTTP 500"):
        await tool.execute({"code": "n += 1"})
    sandbox.orders += [SANDBOX_ERROR]
    with pytest.raises(ToolServiceError, match=r"/run: SandboxError: no place left"):
        await tool.execute({"code": "n += 1"})
    assert (await tool.execute({"code": "print(n)"})).text == "1"
    sandbox.sessions.clear()
    with pytest.raises(ToolServiceError, match="HTTP 404"):
        await tool.execute({"code": "print(n)"})
    await tool.release()


async def test_a_session_that_cannot_be_had(sandbox: Sandbox) -> None:
    tool = make(sandbox, session=True)
    sandbox.orders += [JSONResponse({"name": "x"})]
    with pytest.raises(ToolServiceError, match="answered without a session id"):
        await tool.execute({"code": "1"})
    await tool.release()


async def test_a_cancelled_call_leaves_the_session_to_release(sandbox: Sandbox) -> None:
    tool = make(sandbox, session=True)
    await tool.execute({"code": "1"})
    sandbox.orders += [0.5]
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await tool.execute({"code": "2"})
    await tool.release()
    assert sandbox.sessions == {}
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, r"config\.sandbox_url"),
        ({"sandbox_url": "localhost:1"}, r"config\.sandbox_url"),
        ({"sandbox_url": "http://x", "sesion": True}, r"unknown key 'config\.sesion'\. Did you mean 'session'"),
    ],
)
def test_a_configuration_that_cannot_work(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Python(config)


def test_verls_keys_are_understood(tmp_path: Any) -> None:
    (tmp_path / "tools.yaml").write_text(
        "tools: [{class_name: python, config: {sandbox_fusion_url: 'http://x/run_code', num_workers: 10, "
        "rate_limit: 4, enable_global_rate_limit: true, default_timeout: 30, default_language: bash}}]"
    )
    (spec,) = load_tools(tmp_path / "tools.yaml")
    assert spec.config == {
        "sandbox_url": "http://x/run_code",
        "max_concurrency": 4,
        "limits_per": "run",
        "run_timeout_s": 30,
        "language": "bash",
    }


def test_a_compiler_that_refuses() -> None:
    result = RunResult(ok=False, stderr="line 1: oh", compile_failed=True)
    assert describe(result, 5) == "The code does not compile.\nline 1: oh"

"""Python: runs the model's code in a sandbox service, each call alone or all in one session per trajectory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from agentrl.interfaces import TOOL_CONFIG, BaseTool, RunResult, SandboxClient, check_config, without_fence
from agentrl.types import JsonDict, ToolResponse

_CONFIG = (
    *TOOL_CONFIG,
    *("sandbox_url", "language", "run_timeout_s", "compile_timeout_s", "memory_limit_mb", "session"),
    *("retries", "backoff_s", "headers"),
)


class Python(BaseTool):
    """Runs code. The model reads its output and its errors; a failure of the sandbox is an error of the run instead.

    Args:
        config: `sandbox_url` (required), `language` (python), `run_timeout_s` (10), `compile_timeout_s` (10),
            `memory_limit_mb` (-1: the service's default), `session` (false; true: variables live as long as the
            trajectory), `retries` (3), `backoff_s` (0.5, doubled at each retry), `headers`.
        tool_schema: None: the built-in one.

    A row's `create_kwargs.files` (base64 by path) are written into the code's folder, and its `execute_kwargs.stdin` is
    the code's standard input; both need `session: false`.
    """

    config_aliases: ClassVar[Mapping[str, str]] = {
        "sandbox_fusion_url": "sandbox_url",
        "default_language": "language",
        "default_timeout": "run_timeout_s",
        "num_workers": "max_concurrency",
        "rate_limit": "max_concurrency",
        "enable_global_rate_limit": "limits_per",
    }

    def __init__(self, config: JsonDict, tool_schema: JsonDict | None = None) -> None:
        super().__init__(config, tool_schema)
        check_config(config, _CONFIG)
        self._sandbox = SandboxClient.from_config(config)
        self._in_session = bool(config.get("session", False))
        self._session: str | None = None
        self._one_at_a_time = asyncio.Lock()
        self._files: dict[str, str] = {}

    @classmethod
    def default_schema(cls) -> JsonDict:
        """One text argument."""
        code = {"type": "string", "description": "The code. Print what you want to see."}
        return {
            "type": "function",
            "function": {
                "name": "python",
                "description": "Run Python code and read what it prints.",
                "parameters": {"type": "object", "properties": {"code": code}, "required": ["code"]},
            },
        }

    async def create(self, **create_kwargs: Any) -> None:
        """Keep the row's files. A session starts at the first call: a trajectory without calls needs none."""
        self._sandbox.service.scope = self.scope
        self._files = dict(create_kwargs.get("files") or {})

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Run one piece of code.

        Raises:
            ToolServiceError: the sandbox could not run it, after retries.
        """
        code = without_fence(str(arguments["code"]))
        if self._in_session:
            result = await self._run_in_session(code)
        else:
            result = await self._sandbox.run(code, str(execute_kwargs.get("stdin", "")), self._files)
        return ToolResponse(
            text=describe(result, self._sandbox.run_timeout_s),
            is_error=not result.ok,
            metrics={"code_failed": float(not result.ok), "code_seconds": result.seconds},
        )

    async def release(self, **kwargs: Any) -> None:
        """End the session."""
        session, self._session = self._session, None
        try:
            if session is not None:
                await self._sandbox.close_session(session)
        finally:
            await self._sandbox.service.aclose()

    async def _run_in_session(self, code: str) -> RunResult:
        """Run code in the session. Calls of one turn share its variables, so they run one after another, in order."""
        async with self._one_at_a_time:
            if self._session is None:
                self._session = await self._sandbox.open_session()
            return await self._sandbox.run_in_session(self._session, code)


def describe(result: RunResult, run_timeout_s: float) -> str:
    """The text for the model: the output, then the errors, then why the code was stopped or failed."""
    parts = [result.stdout.rstrip("\n"), result.stderr.rstrip("\n")]
    if result.timed_out:
        parts.append(f"Stopped: it ran longer than {run_timeout_s:g} s.")
    elif not result.ok and not result.stderr.strip():
        parts.append(f"It failed with return code {result.return_code}.")
    if result.compile_failed:
        parts.insert(0, "The code does not compile.")
    return "\n".join(part for part in parts if part) or "(it printed nothing)"

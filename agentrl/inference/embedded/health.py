"""Whether the engine is well, as SGLang tells it: a paused one gives no sign within 20 s."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from agentrl.errors import UserInputError
from agentrl.inference.embedded.frontend import Frontend
from agentrl.inference.embedded.http import Handler, refuse
from agentrl.inference.embedded.protocol import parse_generate

TIMEOUT_S = 20.0
_POLL_S = 0.02


class Health:
    """The routes; one object, which remembers whether the last check failed."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend, self._engine = frontend, frontend.engine
        self._ill = False

    def routes(self) -> dict[tuple[str, str], Handler]:
        """Handlers by method and path."""
        check = self.check
        return {
            ("GET", "/health"): check,
            ("GET", "/health_generate"): check,
            ("GET", "/ready"): self.ready,
            ("GET", "/ping"): self.ping,
        }

    async def check(self, _: HTTPRequest) -> Response:
        """200 once the engine's thread has sampled a token or answered a control call since the question."""
        if self._engine.failed:
            return refuse(self._engine.failed, 503)
        seen = self._engine.signs
        token = asyncio.create_task(self._one_token())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while self._engine.signs == seen and not self._engine.failed:
                    await asyncio.sleep(_POLL_S)
            self._ill = False
        except TimeoutError:
            self._ill = True
            return refuse(f"no sign of the engine within {TIMEOUT_S:g} s", 503)
        finally:
            token.cancel()
            with suppress(asyncio.CancelledError, UserInputError):
                await token
        return refuse(self._engine.failed, 503) if self._engine.failed else Response(status_code=200)

    async def ready(self, _: HTTPRequest) -> Response:
        """503 while paused, or after a check that failed."""
        well = not (self._ill or self._engine.failed or self._frontend.gate.paused)
        return Response(status_code=200 if well else 503)

    async def ping(self, _: HTTPRequest) -> Response:
        """503 after a check that failed; a paused engine is well."""
        return Response(status_code=503 if self._ill or self._engine.failed else 200)

    async def _one_token(self) -> None:
        """A request of one token, so that an idle engine has something to do."""
        if self._engine.scheduler.joins or not self._engine.scheduler.busy:
            body = {
                "input_ids": [0],
                "sampling_params": {"max_new_tokens": 1, "temperature": 0},
                "lora_path": self._engine.adapter,
                "rid": f"HEALTH_CHECK_{uuid.uuid4().hex}",
            }
            await self._frontend.finished(parse_generate(body, self._engine, number=0).requests)

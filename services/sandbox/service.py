"""The sandbox service as one object: what the routes call, and what starts and stops with the server."""

from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from agentrl.services.sandbox.admission import Admission
from agentrl.services.sandbox.home import own_folder
from agentrl.services.sandbox.isolation import UIDS_PER_SERVER, Isolation, choose_isolation, first_uid
from agentrl.services.sandbox.languages import Language, find_language, installed_languages
from agentrl.services.sandbox.layout import make_layout
from agentrl.services.sandbox.metrics import SandboxMetrics
from agentrl.services.sandbox.options import Options
from agentrl.services.sandbox.pool import Pool
from agentrl.services.sandbox.protocol import RunCode, RunCodeAnswer
from agentrl.services.sandbox.runner import Runner
from agentrl.services.sandbox.watch import Watch

_SET_DUMPABLE = 4


class SandboxService:
    """Everything between a request and a sandbox. Make it with `open_service`."""

    def __init__(self, options: Options, pool: Pool, languages: dict[str, Language], metrics: SandboxMetrics) -> None:
        self.options, self.isolation, self.pool = options, pool.isolation, pool
        self.languages, self.metrics = languages, metrics
        self.watch = Watch()
        self.admission = Admission(options.parallel, options.queue, options.queue_s)
        self.runner = Runner(pool, self.watch, options)

    async def run_code(self, request: RunCode, client: str) -> RunCodeAnswer:
        """Answer `POST /run_code`.

        Raises:
            HTTPException: 422, what is asked for cannot be.
            Busy: no place.
        """
        language = find_language(request.language, self.languages)
        run = self.runner.limits(request.run_timeout, request.memory_limit_mb)
        compiler = self.runner.limits(request.compile_timeout, self.options.max_memory_mb, "compile_timeout")
        async with self.admission.place(client):
            answer = await self.runner.run_code(
                *(language, request.code, request.stdin or "", request.files, request.fetch_files, compiler, run)
            )
        self.metrics.count(language.name, answer)
        return answer


@asynccontextmanager
async def open_service(options: Options, metrics: SandboxMetrics) -> AsyncIterator[SandboxService]:
    """Start a service and end it.

    Raises:
        UserInputError: no isolation that is strong enough, or the interpreter does not run.
    """
    # Other processes of the same user must not read this one's memory and environment.
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    async with AsyncExitStack() as stack:
        home = stack.enter_context(own_folder())
        isolation = _isolate(options, home)
        pool = Pool(isolation, home, _uids(), options.warm_count, options.output_mb)
        stack.push_async_callback(pool.close)
        service = SandboxService(options, pool, installed_languages(isolation.layout), metrics)
        stack.push_async_callback(service.watch.close)
        pool.fill()
        yield service


def check_options(options: Options) -> None:
    """Find out whether a service could start.

    Raises:
        UserInputError: no isolation that is strong enough, or the interpreter does not run.
    """
    with own_folder() as home:
        _isolate(options, home)


def _isolate(options: Options, home: Path) -> Isolation:
    layout = make_layout(home, options.python, _uids(), options.disk_mb)
    return choose_isolation(home, layout, options.isolation, options.require_isolation)


def _uids() -> range:
    return range(first_uid(), first_uid() + UIDS_PER_SERVER)

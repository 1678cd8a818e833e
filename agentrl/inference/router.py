"""Spreads trajectories over engines, and keeps out engines that fail or serve weights other than the run's.

A trajectory sticks to one engine, where its earlier turns are in the prefix cache. A new one goes to the engine with
the fewest trajectories. When a call fails, the engine's health decides. A healthy engine stays in and only the one
trajectory fails (a request that breaks engines must not walk through all of them). An unhealthy engine is taken out and
its trajectories move to others (their tokens stay exact, only the cache is cold). A turn whose deadline passed or whose
caller gave up also triggers a health check, and so does an engine that answers none of its waiting requests: one that
hangs is found long before their deadlines. An engine is admitted again once it is healthy and serves the weight version
that the run expects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from agentrl.chat.vision import SentPictures
from agentrl.errors import EngineError, EngineTimeout, EngineUnavailable, WeightVersionError
from agentrl.inference.client import EngineClient
from agentrl.inference.protocol import name_version, other_version
from agentrl.types import GenerationOutput, JsonDict

logger = logging.getLogger(__name__)

PROBE_INTERVAL_S = 1.0
WATCH_INTERVAL_S = 10.0
"""An engine with waiting requests that answers none for so long is asked whether it is well."""

Request = tuple[Sequence[int], JsonDict, str | None, SentPictures | None]  # what `EngineClient.generate` takes


@dataclass(slots=True, eq=False)
class _Server:
    client: EngineClient
    trajectories: set[str] = field(default_factory=set)
    """Trajectories that stick to this server."""
    reason_out: str | None = None
    """Why the server is out; None while it is in."""
    checkup: asyncio.Task[bool] | None = None
    """The health check in progress, shared by all trajectories whose calls failed."""
    waiting: set[asyncio.Timeout] = field(default_factory=set)
    """One for each request that waits for its answer; rescheduled to now, it ends the request."""
    answers: int = 0
    watch: asyncio.TimerHandle | None = None
    """The next look at the engine, while requests wait."""

    async def close(self) -> None:
        if self.checkup is not None:
            self.checkup.cancel()
        await self.client.close()


class Router:
    """Talks to all engines of a run. Create, use and close it in one event loop.

    Args:
        addresses: `http://host:port` of each engine.
        vocab_size: ids of this value or more are never sent.
        request_timeout_s: deadline of one weight update, and of a generation that brings none of its own.
        retries: how often a call to one engine is retried before the engine is taken out.
        weight_version: the version that engines must serve; None: any, until `expect_version` or `update_weights`.
        recovery_wait_s: how long a generation waits for an engine to come back when all are out.
        client: talks to an engine.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        vocab_size: int,
        request_timeout_s: float = 600.0,
        retries: int = 3,
        weight_version: int | None = None,
        recovery_wait_s: float = 0.0,
        client: type[EngineClient] = EngineClient,
    ) -> None:
        self._client = client
        self._options = {"vocab_size": vocab_size, "request_timeout_s": request_timeout_s, "retries": retries}
        self._request_timeout_s = request_timeout_s
        self._expected = weight_version
        self._recovery_wait_s = recovery_wait_s
        self._home: dict[str, _Server] = {}
        self._probe: asyncio.Task[None] | None = None
        self._look: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._admitted = asyncio.Event()
        self._servers = [self._make_server(address) for address in self._checked(addresses)]

    @property
    def addresses(self) -> list[str]:
        """Every engine, in or out."""
        return [server.client.address for server in self._servers]

    @property
    def out(self) -> dict[str, str]:
        """Engines that are out, and why."""
        return {s.client.address: s.reason_out for s in self._servers if s.reason_out is not None}

    def in_flight(self, address: str) -> int:
        """How many trajectories stick to an engine."""
        return next(len(s.trajectories) for s in self._servers if s.client.address == address.rstrip("/"))

    async def generate(
        self,
        trajectory_id: str,
        prompt_ids: Sequence[int],
        sampling_params: JsonDict,
        *,
        rid: str | None = None,
        pictures: SentPictures | None = None,
        timeout_s: float | None = None,
    ) -> GenerationOutput:
        """Sample one turn on the trajectory's engine, or on another one if that engine fails.

        Args:
            trajectory_id: sticks to its engine, where its earlier turns are cached.
            prompt_ids: ids of the whole context.
            sampling_params: as in `/generate`, `max_new_tokens` included.
            rid: request id; None: a random one.
            pictures: those that the ids show.
            timeout_s: the turn's only deadline. Retries, health checks and moves to other engines all happen within
                it: with 60 s, an engine that answers 503 for 50 s leaves 10 s to the next one.

        Raises:
            EngineUnavailable: a healthy engine keeps failing this request, or no engine is left (the message says what
                happened to each).
            EngineTimeout: no answer in time; names the engine, which is told to abort the request.
            EngineRequestError: as `EngineClient.generate`; another engine would not help.
        """
        deadline_s = self._request_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(deadline_s):
                return await self._generate(trajectory_id, (prompt_ids, sampling_params, rid, pictures))
        except TimeoutError:
            raise EngineTimeout(f"{self.engine_of(trajectory_id)} gave no answer within {deadline_s:g} s") from None

    async def _generate(self, trajectory_id: str, request: Request) -> GenerationOutput:
        # With 3 engines at most 4 tries: one more for an engine that came back meanwhile. Else one that passes its
        # health check but keeps serving other weights would be tried without end.
        for _ in range(len(self._servers) + 1):
            server = self._home.get(trajectory_id)
            if server is None or server.reason_out is not None:
                server = await self._assign(trajectory_id)
            try:
                output = await self._ask(server, request)
                self._check_versions(output)
            except WeightVersionError as error:
                self._take_out(server, str(error))
            except EngineUnavailable as error:
                # Healthy engine, failed request: on the next engine it could crash that one too.
                if server.reason_out is None:
                    if await self._is_well(server):
                        raise
                    self._take_out(server, str(error))
            except asyncio.CancelledError:  # the deadline passed, or the trajectory was ended
                self._spawn(self._take_out_if_ill(server))
                raise
            else:
                return output
        raise EngineUnavailable("no engine could serve this turn: " + self._reasons())

    async def _ask(self, server: _Server, request: Request) -> GenerationOutput:
        """One generation on an engine, which is watched meanwhile.

        Raises:
            EngineUnavailable: the engine hangs and was taken out: its requests must go to others.
        """
        patience = asyncio.timeout(None)
        server.waiting.add(patience)
        if server.watch is None:
            self._look_later(server)
        try:
            async with patience:
                output = await server.client.generate(*request)
                server.answers += 1
                return output
        except TimeoutError:
            raise EngineUnavailable(f"{server.client.address} hangs: {server.reason_out}") from None
        finally:
            server.waiting.discard(patience)
            if not server.waiting and server.watch is not None:
                server.watch.cancel()
                server.watch = None

    def _look_later(self, server: _Server) -> None:
        """Check an engine's health if it answers none of its waiting requests for a while, and so on."""
        seen = server.answers

        def look() -> None:
            if server.answers == seen:
                self._spawn(self._end_requests_if_ill(server))
            self._look_later(server)

        after_s = min(WATCH_INTERVAL_S, self._request_timeout_s / 4)
        server.watch = asyncio.get_running_loop().call_later(after_s, look)

    async def _end_requests_if_ill(self, server: _Server) -> None:
        answers = server.answers
        if await self._is_well(server) or server.answers != answers:
            return
        self._take_out(server, "requests wait for it, and it gives no answer to its health check")
        now = asyncio.get_running_loop().time()
        for patience in [each for each in server.waiting if not each.expired()]:
            patience.reschedule(now)

    def engine_of(self, trajectory_id: str) -> str:
        """Address of a trajectory's engine; while it has none, why."""
        home = self._home.get(trajectory_id)
        return f"no engine ({self._reasons()})" if home is None else home.client.address

    def release(self, trajectory_id: str) -> None:
        """Forget a trajectory that ended. Unknown ids are ignored."""
        server = self._home.pop(trajectory_id, None)
        if server is not None:
            server.trajectories.discard(trajectory_id)

    def expect_version(self, version: int | None) -> None:
        """From now on only engines that serve `version` may generate; None: any."""
        self._expected = version

    async def update_weights(self, path: str, version: int) -> None:
        """Load the weights in `path` on every engine, then verify that each reports `version`.

        An engine that cannot be reached or hangs is taken out; the others continue with the new weights.

        Raises:
            EngineRequestError: an engine refused the weights.
            WeightVersionError: an engine reports a version other than the one it was given.
            EngineUnavailable: no engine took the weights.
        """

        async def update(server: _Server) -> None:
            await server.client.update_weights_from_disk(path, version)
            served = await server.client.weight_version()
            if served != version:
                said = f"{server.client.address} serves weight version {name_version(served)}"
                raise WeightVersionError(f"{said} after an update to {version}")

        outcomes = await asyncio.gather(*map(update, self._servers), return_exceptions=True)
        self._expected = version
        for server, outcome in zip(self._servers, outcomes, strict=True):
            if outcome is None:
                self._admit(server)
            else:
                self._take_out_or_raise(server, outcome)
        if self._all_out():
            raise EngineUnavailable("no engine took the new weights: " + self._reasons())

    async def verify(self, version: int | None = None) -> None:
        """Check that every engine is healthy and serves `version` (default: the expected one).

        Raises:
            EngineUnavailable, WeightVersionError: names the engine.
        """
        wanted = self._expected if version is None else version
        for server in self._servers:
            if not await server.client.health():
                raise EngineUnavailable(f"{server.client.address} does not answer its health check")
            served = await server.client.weight_version()
            if wanted is not None and served != wanted:
                raise other_version(f"{server.client.address} serves", served, wanted)

    async def set_addresses(self, addresses: Sequence[str]) -> None:
        """Use these engines from now on; those that stay keep their trajectories and connections.

        An engine that was out and is named again starts afresh.
        """
        before = {server.client.address: server for server in self._servers}
        well = {address: server for address, server in before.items() if server.reason_out is None}
        self._servers = [well.get(address) or self._make_server(address) for address in self._checked(addresses)]
        for server in before.values():
            if server in self._servers:
                continue
            for trajectory_id in list(server.trajectories):
                self.release(trajectory_id)
            await server.close()

    async def pause(self, mode: str = "in_place") -> None:
        """Pause every engine that is in; one that hangs is taken out."""
        await self._tell_all(lambda client: client.pause(mode))

    async def resume(self) -> None:
        """Resume every engine that is in; one that hangs is taken out."""
        await self._tell_all(lambda client: client.resume())

    async def _tell_all(self, call: Callable[[EngineClient], Awaitable[None]]) -> None:
        servers = [server for server in self._servers if server.reason_out is None]
        outcomes = await asyncio.gather(*(call(server.client) for server in servers), return_exceptions=True)
        for server, outcome in zip(servers, outcomes, strict=True):
            if outcome is not None:
                self._take_out_or_raise(server, outcome)
        if self._all_out():
            raise EngineUnavailable("no engine is left: " + self._reasons())

    async def close(self) -> None:
        """Close all connections."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*(server.close() for server in self._servers))

    def _make_server(self, address: str) -> _Server:
        return _Server(self._client(address, **self._options))  # type: ignore[arg-type]

    @staticmethod
    def _checked(addresses: Sequence[str]) -> list[str]:
        unique = list(dict.fromkeys(address.rstrip("/") for address in addresses))
        if not unique:
            raise EngineUnavailable("a router needs at least one engine address")
        return unique

    async def _assign(self, trajectory_id: str) -> _Server:
        """The server with the fewest trajectories; waits for one when all are out."""
        self.release(trajectory_id)
        if self._all_out():
            await self._wait_for_one()
        server = min((s for s in self._servers if s.reason_out is None), key=lambda s: len(s.trajectories))
        server.trajectories.add(trajectory_id)
        self._home[trajectory_id] = server
        return server

    async def _wait_for_one(self) -> None:
        """Check all engines once, all callers together, then wait at most `recovery_wait_s` for one."""
        if self._look is None or self._look.done():
            self._look = self._spawn(self._probe_all())
        await asyncio.shield(self._look)
        try:
            async with asyncio.timeout(self._recovery_wait_s):
                while self._all_out():
                    self._admitted.clear()
                    await self._admitted.wait()
        except TimeoutError:
            raise EngineUnavailable("no engine is left: " + self._reasons()) from None

    def _check_versions(self, output: GenerationOutput) -> None:
        if self._expected is None:
            return
        wrong = [version for version in output.weight_versions if version != self._expected]
        if wrong:
            raise other_version("sampled by", wrong[0], self._expected)

    def _all_out(self) -> bool:
        return all(server.reason_out is not None for server in self._servers)

    def _reasons(self) -> str:
        return "; ".join(f"{address} ({reason})" for address, reason in self.out.items())

    def _take_out(self, server: _Server, reason: str) -> None:
        if server.reason_out is None:
            logger.warning("engine %s is taken out of use: %s", server.client.address, reason)
        server.reason_out = reason
        if self._probe is None or self._probe.done():
            self._probe = self._spawn(self._probe_until_all_in())

    def _take_out_or_raise(self, server: _Server, error: BaseException) -> None:
        if not isinstance(error, EngineUnavailable | EngineTimeout):
            raise error
        self._take_out(server, str(error))

    async def _is_well(self, server: _Server) -> bool:
        if server.checkup is None or server.checkup.done():
            server.checkup = asyncio.get_running_loop().create_task(server.client.health())
        return await asyncio.shield(server.checkup)

    async def _take_out_if_ill(self, server: _Server) -> None:
        if not await self._is_well(server):
            self._take_out(server, "a request timed out and the health check failed")

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _admit(self, server: _Server) -> None:
        if server.reason_out is not None:
            logger.warning("engine %s is back in use", server.client.address)
        server.reason_out = None
        self._admitted.set()

    async def _probe_until_all_in(self) -> None:
        while self.out:
            await asyncio.sleep(PROBE_INTERVAL_S)
            await self._probe_all()

    async def _probe_all(self) -> None:
        await asyncio.gather(*(self._probe_one(s) for s in self._servers if s.reason_out is not None))

    async def _probe_one(self, server: _Server) -> None:
        try:
            if not await server.client.health():
                return
            served = await server.client.weight_version()
        except EngineError:
            return
        if self._expected is None or served == self._expected:
            self._admit(server)
        else:
            server.reason_out = str(other_version("healthy again, but serves", served, self._expected))

"""Sends weights from the trainer to the engines, with a version that every server must then confirm."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

import psutil

from agentrl.config.weight_transport import Transport
from agentrl.errors import EngineUnavailable
from agentrl.inference.client import EngineClient
from agentrl.leftovers import owned_prefix, remove_leftovers
from agentrl.single_controller import WorkerGroup
from agentrl.trainer.sync_phases import EnginesInUpdate, begin_update, check_version, end_update
from agentrl.workers.weight_senders import SendJob, SendReport

SHARED_MEMORY = Path("/dev/shm")
_KIND = "agentrl-weights"
_ABANDONED_S = 7 * 86_400.0
"""A run changes its folder at every update, wherever it is."""


class WeightSync:
    """Brings the actor's weights to every engine, as a new version.

    Engines are paused first, with what they run taken back to their queues, then take the weights, forget what they
    computed with the old ones, are asked for their version, and go on. One that fails anywhere is left out.

    Args:
        actor: the actor's workers.
        make_client: builds a client for a server's address.
        mode: `disk` (servers read files that the ranks write), `ipc`, `distributed` or `tensor` (see
            `weight_senders`), or `adapter` (servers read the LoRA adapter).
        folder: where files go; None: shared memory if it has room, else the temporary folder.
        model_bytes: size of the files.
        timeout_s: how long engines may take for each phase; one that needs longer is left out.
        bucket_bytes: most bytes of weights that travel at once.
        engine_ranks: ranks of each engine.
    """

    def __init__(
        self,
        actor: WorkerGroup,
        make_client: Callable[[str], EngineClient],
        *,
        mode: Transport,
        folder: Path | None,
        model_bytes: int,
        timeout_s: float = 600.0,
        bucket_bytes: int = 2**29,
        engine_ranks: int = 1,
    ) -> None:
        self._actor = actor
        self._make_client = make_client
        self._mode = mode
        self._timeout_s, self._bucket_bytes, self._engine_ranks = timeout_s, bucket_bytes, engine_ranks
        self._folder: Path | None = None
        if mode in ("disk", "adapter"):
            parent = folder or _roomy_parent(model_bytes)
            remove_leftovers(parent, _KIND, unchanged_s=_ABANDONED_S)
            parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=owned_prefix(_KIND), dir=parent))

    @property
    def files_folder(self) -> Path | None:
        """Where whole weights are written for the engines; None: they travel without files."""
        return self._folder if self._mode == "disk" else None

    def sync(
        self, version: int, addresses: Sequence[str], fleet: Sequence[str] = (), *, resume: bool = True
    ) -> list[str]:
        """Send the actor's present weights to every server as `version`.

        A server that cannot be reached, hangs, refuses or ends up with another version must not be used until a later
        sync has succeeded.

        Args:
            version: number of the weights.
            addresses: the servers that are well.
            fleet: all servers of the run in their order, the GPUs of which are those of the ranks in theirs.
            resume: let the servers go on. False: their cache has no memory yet, and one that goes on could be asked
                for a token, if only by a health check.

        Returns:
            Addresses of the servers that confirmed the version, at least one.

        Raises:
            EngineError: no server took the weights.
            CheckpointError: their files cannot be written.
        """
        if not addresses:
            raise EngineUnavailable("no engine took the new weights: none is well")
        with self._files(version) as files, self._engines(addresses) as engines:
            tries = len(addresses) + 2  # each try leaves an engine out; two more for a group that was kept too long
            while not self._through(engines, version, files, fleet or addresses):
                tries -= 1
                if not tries:
                    raise EngineUnavailable(f"the engines {', '.join(engines.left)} never took all of the new weights")
            if resume:
                engines.run("continue", lambda client: client.resume())
                engines.check_any_left()
            return engines.left

    def close(self) -> None:
        """Remove the folder of files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _engines(self, addresses: Sequence[str]) -> EnginesInUpdate:
        return EnginesInUpdate(self._make_client, addresses, self._timeout_s)

    @contextmanager
    def _files(self, version: int) -> Iterator[Path | None]:
        """What servers read, written before any of them is paused; None: weights come in another way."""
        if self._folder is None:
            yield None
            return
        files = self._folder / f"version_{version}"
        try:
            if self._mode == "adapter":
                self._actor.export_adapter(str(files))
            else:
                self._actor.export_weights(str(files))
            yield files
        finally:
            shutil.rmtree(files, ignore_errors=True)

    def _through(self, engines: EnginesInUpdate, version: int, files: Path | None, fleet: Sequence[str]) -> bool:
        """Take the engines through all phases; False: what is left of them must begin again."""
        # An adapter is unloaded when nothing uses it, and requests that only wait still do.
        pause = "abort" if self._mode == "adapter" else "retract"
        engines.run("pause", lambda client: client.pause(pause))
        if files is not None:
            engines.run("load", lambda client: client.update_weights_from_disk(str(files), version))
        else:
            engines.run("begin", lambda client: begin_update(client, version, engines.timeout_s))
            if not self._send(engines, fleet):
                return False
            engines.run("end", lambda client: end_update(client, version, engines.timeout_s))
        engines.run("flush", lambda client: client.flush_cache())
        engines.run("version", lambda client: check_version(client, version))
        engines.check_any_left()
        return True

    def _send(self, engines: EnginesInUpdate, fleet: Sequence[str]) -> bool:
        """Let the ranks send; False: not all of it came to those that are left."""
        engines.check_any_left()
        numbers = {address: number for number, address in enumerate(fleet)}
        job = SendJob(
            transport=cast("Literal['distributed', 'ipc', 'tensor']", self._mode),
            engines={address: numbers[address] for address in engines.left},
            engine_ranks=self._engine_ranks,
            bucket_bytes=self._bucket_bytes,
            timeout_s=engines.timeout_s,
        )
        report: SendReport = self._actor.send_weights(job)[0]
        engines.drop("send", report.failed)
        engines.check_any_left()
        return not report.again


def _roomy_parent(needed: int) -> Path:
    """Shared memory if two exports fit into it (containers often give it 64 MB), else the temporary folder."""
    if (
        SHARED_MEMORY.is_dir()
        and os.access(SHARED_MEMORY, os.W_OK)
        and psutil.disk_usage(str(SHARED_MEMORY)).free > 2 * needed
    ):
        return SHARED_MEMORY
    return Path(tempfile.gettempdir())

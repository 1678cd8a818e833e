"""Sends weights from the trainer to the engines, with a version that every server must then confirm."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from safetensors.torch import load_file

from agentrl.errors import EngineTimeout, EngineUnavailable, WeightVersionError
from agentrl.inference.client import EngineClient
from agentrl.inference.protocol import name_version
from agentrl.single_controller import WorkerGroup

logger = logging.getLogger(__name__)
SHARED_MEMORY = Path("/dev/shm")
FOLDER_NAME = re.compile(r"agentrl-weights-(\d+)-")


class WeightSync:
    """Exports the actor's weights and loads them into every engine.

    Args:
        actor: the actor's workers.
        make_client: builds a client for a server's address.
        mode: `disk` (servers read the exported folder), `tensor` (weights are sent over HTTP) or `adapter` (servers
            read the LoRA adapter).
        folder: where exports go; None: shared memory if it has room, else the temporary folder.
        model_bytes: approximate size of an export.
    """

    def __init__(
        self,
        actor: WorkerGroup,
        make_client: Callable[[str], EngineClient],
        *,
        mode: str,
        folder: Path | None,
        model_bytes: int,
    ) -> None:
        self._actor = actor
        self._make_client = make_client
        self._mode = mode
        parent = folder or _roomy_parent(model_bytes)
        _remove_stale(parent)
        parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix=f"agentrl-weights-{os.getpid()}-", dir=parent))

    def sync(self, version: int, addresses: Sequence[str]) -> list[str]:
        """Send the actor's present weights to every server as `version`.

        A server that cannot be reached or hangs must not be used until a later sync has succeeded.

        Returns:
            Addresses of the servers that confirmed the version, at least one.

        Raises:
            EngineError: a server refused the weights, or none can be reached.
            WeightVersionError: a server reports another version afterwards.
        """
        export = self._folder / f"version_{version}"
        try:
            if self._mode == "adapter":
                self._actor.export_adapter(str(export))
            else:
                self._actor.export_weights(str(export))
            return asyncio.run(self._push_all(export, version, addresses))
        finally:
            shutil.rmtree(export, ignore_errors=True)

    def close(self) -> None:
        """Remove the export folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _push_all(self, export: Path, version: int, addresses: Sequence[str]) -> list[str]:
        clients = [self._make_client(address) for address in addresses]
        try:
            outcomes = await asyncio.gather(
                *(self._push(client, export, version) for client in clients), return_exceptions=True
            )
        finally:
            await asyncio.gather(*(client.close() for client in clients))
        failed = {a: outcome for a, outcome in zip(addresses, outcomes, strict=True) if outcome is not None}
        for error in failed.values():
            if not isinstance(error, EngineUnavailable | EngineTimeout):
                raise error
        if len(failed) == len(addresses):
            raise EngineUnavailable("no engine took the new weights: " + "; ".join(map(str, failed.values())))
        for error in failed.values():
            logger.warning("continuing without an engine: %s", error)
        return [address for address in addresses if address not in failed]

    async def _push(self, client: EngineClient, export: Path, version: int) -> None:
        if self._mode == "tensor":
            for file in sorted(export.glob("*.safetensors")):
                await client.update_weights_from_tensor(load_file(file), version)
        else:
            await client.update_weights_from_disk(str(export), version)
        served = await client.weight_version()
        if served != version:
            raise WeightVersionError(
                f"{client.address} serves weight version {name_version(served)} after an update to {version}: "
                "is another run using this server?"
            )


def model_bytes(folder: Path) -> int:
    """Bytes of the weight files in a model folder."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _roomy_parent(needed: int) -> Path:
    """Shared memory if two exports fit into it (containers often give it 64 MB), else the temporary folder."""
    if (
        SHARED_MEMORY.is_dir()
        and os.access(SHARED_MEMORY, os.W_OK)
        and psutil.disk_usage(str(SHARED_MEMORY)).free > 2 * needed
    ):
        return SHARED_MEMORY
    return Path(tempfile.gettempdir())


def _remove_stale(parent: Path) -> None:
    """Remove exports of runs that were killed."""
    for leftover in parent.glob("agentrl-weights-*"):
        match = FOLDER_NAME.match(leftover.name)
        if match and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(leftover, ignore_errors=True)

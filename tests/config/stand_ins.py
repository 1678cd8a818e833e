"""What takes the place of engines and Ray in a watched run, and listens to the parts that show what a key does."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from agentrl.clients.http import ServiceClient
from agentrl.config import RunConfig
from agentrl.inference import engine_host
from agentrl.inference.client import EngineClient
from agentrl.inference.engine_host import EngineHost
from agentrl.inference.fleet import EngineFleet
from agentrl.observability.health import Alarm, HealthMonitor
from agentrl.observability.tracker import RunInfo
from agentrl.observability.trackers import Trackers
from agentrl.own_time import OwnTimeLimit
from agentrl.rewards.prime import PrimeRewardManager
from agentrl.rewards.scores.code import CodeScore
from agentrl.rollout import setup
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.pools import ray_pool
from agentrl.rollout.pools.local import LocalPool
from agentrl.rollout.service_gate import ServiceGate
from agentrl.rollout.setup import RolloutSetup
from agentrl.single_controller import ray_placement, ray_runtime
from agentrl.trainer import processes, run
from agentrl.trainer.checkpoint import CheckpointManager
from agentrl.trainer.state import TrainerState
from agentrl.workers import fsdp_model


class StandIns:
    """Keeps what the parts of a run are told.

    Args:
        address: of the engine that answers in place of started ones.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.seen: dict[str, set[Any]] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put them in place."""
        self._replace_processes(patch)
        self._watch_updates(patch)
        self._watch_calls(patch)

    def keep(self, what: str, *details: Any) -> None:
        self.seen.setdefault("calls", set()).add(f"{what} {details!r:.2000}")

    def _replace_processes(self, patch: pytest.MonkeyPatch) -> None:
        def start_local(backend: str, pool: Any, worker: Any, *args: Any) -> Any:
            where = backend, pool.process_on_nodes, pool.use_gpu, pool.threads_per_rank
            self.keep("ranks", worker.__name__, args[1:], *where)
            # Groups of one pool stay on one, so that they take turns as in the run itself.
            own = pools.setdefault(id(pool), (type(pool)(threads_per_rank=1), pool))[0]
            return real_group("local", own, worker, *args)

        def ray_cluster(*args: Any, **kwargs: Any) -> Any:
            self.keep("ray", args, kwargs)
            return contextlib.nullcontext()

        def rollout_pool(config: RunConfig, addresses: list[str], slots: list[int]) -> LocalPool:
            self.keep("workers", slots)
            return LocalPool(RolloutSetup.load(config), addresses, slots[0])

        def spawn(host: EngineHost) -> None:
            port = host._port if host._config.actor_rollout_ref.rollout.server.port else "free"
            command = engine_host.launch_command(host._config, host._seat.index, host._listen, port)
            self.keep("engine", host._listen, command[1:])

        def healthy(servers: EngineFleet, limit_s: float) -> None:
            self.keep("engines", len(servers.addresses), limit_s)
            servers._given = [self._address]

        real_group, real_renderer = processes.create_worker_group, setup.load_renderer
        renderers: dict[str, Any] = {}
        pools: dict[int, tuple[Any, Any]] = {}

        def renderer(*args: Any, **kwargs: Any) -> Any:
            asked = repr((args, kwargs))
            if asked not in renderers:
                renderers[asked] = real_renderer(*args, **kwargs)
            return renderers[asked]

        patch.setattr(setup, "load_renderer", renderer)
        patch.setattr(processes, "create_worker_group", start_local)
        patch.setattr(ray_runtime, "init_ray", ray_cluster)
        patch.setattr(ray_placement, "reserve", lambda pools, _: self.keep("pools", sorted(pools)))
        patch.setattr(ray_pool, "RayPool", rollout_pool)
        patch.setattr(EngineHost, "_spawn", spawn)
        patch.setattr(EngineFleet, "_wait_until_healthy", healthy)
        patch.setattr(run, "dump_config", lambda config: "")  # its change shows nothing

    def _watch_updates(self, patch: pytest.MonkeyPatch) -> None:
        def watch_passes(name: str) -> None:
            real = getattr(fsdp_model.FSDPModel, name)

            def call(model: fsdp_model.FSDPModel, micros: Any, *args: Any) -> Any:
                shapes = [tuple(micro.mask.shape) for micro in micros.batches]
                self.keep(name, type(model.net).__name__, model.optimizer is None, shapes)
                return real(model, micros, *args)

            patch.setattr(fsdp_model.FSDPModel, name, call)

        watch_passes("passes")
        watch_passes("infer")
        real_later = asyncio.base_events.BaseEventLoop.call_later

        def call_later(loop: Any, delay: float, *args: Any, **kwargs: Any) -> Any:
            self.seen.setdefault("delays", set()).add(round(float(delay)))
            return real_later(loop, delay, *args, **kwargs)

        patch.setattr(asyncio.base_events.BaseEventLoop, "call_later", call_later)
        real_step = fsdp_model.FSDPModel.step

        def step(model: fsdp_model.FSDPModel, lr: float) -> Any:
            report = real_step(model, lr)
            assert model.optimizer is not None
            state = {**model.state_tensors(), **model.optimizer.state_tensors()}
            digest = hashlib.sha1(b"".join(_bytes(state[name]) for name in sorted(state)))
            self.keep("weights", type(model.net).__name__, digest.hexdigest())
            return report

        patch.setattr(fsdp_model.FSDPModel, "step", step)
        real_finish = TrainerState.finish_step

        def finish(state: TrainerState, step: int) -> None:
            self.keep("KL weight", step, state.kl_controller.state_dict())
            real_finish(state, step)

        patch.setattr(TrainerState, "finish_step", finish)

    def _watch_calls(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name in (
            (EngineClient, "__init__"),
            (ServiceGate, "__init__"),
            (CodeScore, "__init__"),
            (PrimeRewardManager, "__init__"),
            (ServiceClient, "__init__"),
            (asyncio.Semaphore, "__init__"),
            (CheckpointManager, "find"),
            (HealthMonitor, "__init__"),
            (LocalPool, "__init__"),
            (PreTrainedModel, "gradient_checkpointing_enable"),
            *(
                (PreTrainedModel, name)
                for name in ("activation_checkpointing_enable",)
                if hasattr(PreTrainedModel, name)
            ),
            (OwnTimeLimit, "__init__"),
            (Trackers, "on_start"),
            (Trackers, "on_validation"),
            (Trackers, "on_generations"),
            (AgentLoopManager, "generate_sequences"),
            (fsdp_model, "fully_shard"),
            (torch.distributed, "init_process_group"),
            (torch, "use_deterministic_algorithms"),
        ):
            self._spy(patch, owner, name)
        for name in ("timeout", "wait", "wait_for"):
            self._spy_delays(patch, name)

    def _spy(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)
        label = f"{getattr(owner, '__name__', owner)}.{name}"

        def call(*args: Any, **kwargs: Any) -> Any:
            skipped = int(isinstance(owner, type))  # `self`
            told = [_told(value) for value in args[skipped:]]
            named = {key: value for key, value in kwargs.items() if key not in ("mesh", "store")}
            self.keep(label, told, sorted(named.items(), key=str))
            return real(*args, **kwargs)

        patch.setattr(owner, name, call)

    def _spy_delays(self, patch: pytest.MonkeyPatch, name: str) -> None:
        real: Callable[..., Any] = getattr(asyncio, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            delay = kwargs.get("timeout", args[-1] if args else None)
            if isinstance(delay, int | float):
                self.seen.setdefault("delays", set()).add(round(float(delay), 1))
            return real(*args, **kwargs)

        patch.setattr(asyncio, name, call)


def _told(value: Any) -> Any:
    """What an argument says: a number, a text, a length, a dataclass of those."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, RunInfo):
        return value.project, value.experiment, value.total_steps
    if isinstance(value, list) and value and isinstance(value[0], Alarm):
        return value
    return len(value) if hasattr(value, "__len__") else type(value).__name__


def _bytes(tensor: torch.Tensor) -> bytes:
    whole = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return bytes(str(whole.dtype), "ascii") + whole.detach().reshape(-1).view(torch.uint8).numpy().tobytes()

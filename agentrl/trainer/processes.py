"""The processes of a run: Ray, engine servers, agent-loop workers, training workers, and the weight sync."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from agentrl.config import RunConfig
from agentrl.config.machine import OWN_ENGINES, engine_name, uses_cuda
from agentrl.config.machine_checks import ray_is_connected
from agentrl.config.resource_pools import roles_of
from agentrl.config.shared_gpus import frees_engines
from agentrl.config.weight_transport import weight_transport
from agentrl.data_proto import DataProto
from agentrl.errors import AgentRLError
from agentrl.inference.client import EngineClient
from agentrl.inference.clients import client_class
from agentrl.inference.engine_load import EngineLoad
from agentrl.inference.fleet import EngineFleet, MakePlaces
from agentrl.rollout.manager import AgentLoopManager
from agentrl.single_controller import Worker, WorkerGroup, create_worker_group
from agentrl.timeline import Timeline, span_here
from agentrl.trainer.engine_places import reserve_places, weights_folder
from agentrl.trainer.passes import Pass, Passes
from agentrl.trainer.phases import Phases
from agentrl.trainer.pools import make_pools
from agentrl.trainer.weight_sync import WeightSync

logger = logging.getLogger(__name__)


class RunProcesses:
    """Starts everything on entry and ends all of it on exit, however the run ends.

    Args:
        config: the run.
        vocab_size: number of ids that the model knows.
        total_steps: training steps of the run, for learning-rate schedules.
    """

    actor: WorkerGroup
    reference: WorkerGroup | None
    """Computes reference log-probs; with LoRA it is `actor`."""
    critic: WorkerGroup | None
    reward_model: WorkerGroup | None
    servers: EngineFleet
    manager: AgentLoopManager
    phases: Phases
    """Turns on GPUs that engines and ranks share."""
    _weight_sync: WeightSync
    _in_use: list[str]
    """The engines that rollouts use."""
    _restarts_told: int

    def __init__(self, config: RunConfig, vocab_size: int, total_steps: int) -> None:
        self._config = config
        self._vocab_size = vocab_size
        self._total_steps = total_steps
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stack.close()
        except AgentRLError as second:
            if error is None:
                raise
            logger.warning("while the run ends: %s", second)  # and not instead of why it ends

    def sync_weights(self, version: int) -> None:
        """Send the actor's weights as `version` to every engine that is well; rollouts use those that took them.

        Engines that ended or hang are restarted. The run goes on with the others, and a later call finds them.

        Raises:
            EngineError: no engine is well, or none took the weights.
        """
        with span_here("sync", f"version {version}"):
            if not self.phases.serve(version):
                self._use(self._send_weights(version, self.servers.tend()))

    def revive_engines(self, version: int) -> bool:
        """After a failure: restart engines that ended or hang, and send the present weights to those that are well.

        Returns:
            False if all engines are well, so that trying again would not help.
        """
        restarts = self.servers.restarts
        well = self.servers.tend()
        if self.servers.restarts == restarts and set(self._in_use) <= set(well):
            return False
        self._use(self._send_weights(version, well))
        return True

    def _send_weights(self, version: int, addresses: list[str], *, resume: bool = True) -> list[str]:
        return self._weight_sync.sync(version, addresses, self.servers.addresses, resume=resume)

    def _use(self, addresses: list[str]) -> None:
        """Roll out on these engines, all of which have the present weights, and on no others."""
        if (addresses, self.servers.restarts) != (self._in_use, self._restarts_told):
            self.manager.set_addresses(addresses)
            self._in_use, self._restarts_told = addresses, self.servers.restarts

    @property
    def num_ranks(self) -> int:
        """Training ranks of all pools; in this process all roles are on one."""
        return sum({id(pool): pool.world_size for pool in self._pools.values()}.values())

    @property
    def groups(self) -> list[WorkerGroup]:
        """The groups of training ranks."""
        return list(self.by_role.values())

    @property
    def by_role(self) -> dict[str, WorkerGroup]:
        """The groups of training ranks, each once."""
        reference = None if self.reference is self.actor else self.reference
        roles = {"actor": self.actor, "ref": reference, "critic": self.critic, "reward_model": self.reward_model}
        return {role: group for role, group in roles.items() if group}

    @property
    def engines(self) -> list[str]:
        """Addresses of all engines, well or not."""
        return self.servers.addresses

    def engine_loads(self, timeout_s: float) -> dict[str, EngineLoad]:
        """What they do for the agent-loop workers that answer in time; may be called in any thread."""
        return self.manager.engine_loads(timeout_s)

    def take_timelines(self, ranks_timeout_s: float | None) -> list[tuple[str, Timeline]]:
        """What the other processes did since they were asked last, as far as it was traced: their names and timelines.

        Args:
            ranks_timeout_s: how long ranks may take to answer; None: they are not asked.

        Raises:
            WorkerError: a rank is dead, or gives no answer in time.
        """
        taken = [(f"agent loops {worker}", timeline) for worker, timeline in self.manager.take_timelines()]
        for role, group in self.by_role.items() if ranks_timeout_s is not None else ():
            for rank, timelines in enumerate(group.take_timelines(ranks_timeout_s or 0.0)):
                taken += [(f"{role} rank {rank}", timeline) for timeline in timelines]
        return taken

    def start_columns(self, batch: DataProto, *, old_log_probs: bool, beside: WorkerGroup | None = None) -> Passes:
        """The passes that give a batch its log-probs and values, as far as the run has the roles.

        Args:
            batch: the rows' tensors.
            old_log_probs: whether they are computed.
            beside: a group that is at work meanwhile.
        """
        self.phases.train()
        passes = [Pass("old_log_prob", self.actor, "compute_log_prob")] if old_log_probs else []
        if self.reference is not None:
            passes.append(Pass("ref", self.reference, "compute_ref_log_prob"))
        if self.critic is not None:
            passes.append(Pass("values", self.critic, "compute_values"))
        return Passes(batch, passes, beside)

    @property
    def scores_beside_others(self) -> bool:
        """Whether the reward model is in another pool than one of the other models."""
        return self.reward_model is not None and any(group.pool is not self.reward_model.pool for group in self.groups)

    def start_updates(self, batch: DataProto, *, actor: bool) -> Passes:
        """The updates of the critic, if the run has one, and of the actor, if it learns now."""
        self.phases.train()
        if actor:
            self.phases.load()
        passes = [] if self.critic is None else [Pass("update_critic", self.critic, "update_critic")]
        return Passes(batch, [*passes, *([Pass("update_actor", self.actor, "update_actor")] if actor else [])])

    def wait_until_free(self, timeout_s: float | None) -> None:
        """Wait until the workers that learn have ended their last call.

        Raises:
            WorkerError: a rank is dead, or still busy after `timeout_s`.
        """
        for group in (self.actor, self.critic):
            if group is not None:
                group.wait_until_free(timeout_s)

    def count_updates(self) -> list[list[int | None]]:
        """The updates that actor and critic have taken, by rank; None: a rank is in the middle of one."""
        return [group.count_updates() for group in (self.actor, self.critic) if group is not None]

    @property
    def files_folder(self) -> Path | None:
        """Where weights are written for the engines; None: they travel without files."""
        return self._weight_sync.files_folder

    @property
    def learning(self) -> list[tuple[str, WorkerGroup]]:
        """The groups that a checkpoint holds, with the names of their folders in it."""
        return [("actor", self.actor), *([("critic", self.critic)] if self.critic is not None else [])]

    def load_workers(self, folder: Path) -> None:
        """Read the training workers' part of a checkpoint."""
        for name, group in self.learning:
            group.load_checkpoint(str(folder / name))

    def _start(self) -> None:
        """Start engines and workers: on CPUs together, so that they load their models at the same time.

        On GPUs engines start first and alone: they measure what memory is free and take their share of it.
        """
        self._pools = make_pools(self._config)
        on_gpus = uses_cuda(self._config)
        # A cluster that is too small is found before anything loads; a private one without GPUs has room for all.
        first = on_gpus or self._config.ray_init.address is not None or ray_is_connected()
        places = self._start_ray() if first else None
        fleet = EngineFleet.start(self._config, make_places=places, wait=on_gpus)
        self.servers = self._stack.enter_context(fleet)
        if not first:
            self._start_ray()
        for future in [group.submit("init_model", self._total_steps) for group in self._make_groups()]:
            future.get()
        self.servers.wait()
        self._in_use, self._restarts_told = self.servers.addresses, self.servers.restarts
        self.manager = AgentLoopManager(self._config, self._in_use)
        self._stack.callback(self.manager.shutdown)
        self._weight_sync = self._make_weight_sync()
        self._stack.callback(self._weight_sync.close)
        self.phases = self._make_phases()

    def _start_ray(self) -> MakePlaces | None:
        """Start Ray or connect to it, and reserve the places of all pools; what makes those of engines, if Ray has any.

        Raises:
            ConfigError: the cluster has too few machines, GPUs or CPUs, or its machines do not share the run's folders.
        """
        if self._config.trainer.backend != "ray":
            return None
        from agentrl.single_controller import ray_placement, ray_runtime

        ray = self._config.ray_init
        self._stack.enter_context(ray_runtime.init_ray(ray.num_cpus, ray.address, timeline=ray.timeline_json_file))
        self._stack.callback(ray_placement.free, list(self._pools.values()))
        return reserve_places(self._config, self._pools)

    def _make_groups(self) -> list[WorkerGroup]:
        from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
        from agentrl.workers.critic import CriticWorker
        from agentrl.workers.reward_model import RewardModelWorker

        config, roles = self._config, roles_of(self._config)

        def start(role: str, worker: type[Worker], *args: object) -> WorkerGroup:
            group = create_worker_group(config.trainer.backend, self._pools[role], worker, config, *args)
            return self._stack.enter_context(group)

        self.actor = start("actor", ActorRolloutRefWorker, "actor")
        self.reference = start("ref", ActorRolloutRefWorker, "ref") if "ref" in roles else None
        if config.has_adapters_off:
            self.reference = self.actor
        self.critic = start("critic", CriticWorker) if "critic" in roles else None
        self.reward_model = start("reward_model", RewardModelWorker) if "reward_model" in roles else None
        return self.groups

    def _make_client(self, address: str) -> EngineClient:
        server = self._config.actor_rollout_ref.rollout.server
        return client_class(self._config)(
            address,
            vocab_size=self._vocab_size,
            request_timeout_s=server.request_timeout_s,
            retries=server.retries,
            update_timeout_s=self._config.actor_rollout_ref.rollout.weight_sync_timeout_s,
        )

    def _make_phases(self) -> Phases:
        return Phases(
            self.servers,
            self._make_client,
            self._send_weights,
            self._use,
            actor=self.actor,
            groups=self.groups,
            frees=frees_engines(self._config),
            keeps_weights=self._config.actor_rollout_ref.rollout.weight_sync == "adapter",
        )

    @property
    def _engine_ranks(self) -> int:
        """Ranks of an engine: agentrl's own has one, whatever `tensor_model_parallel_size` says."""
        rollout = self._config.actor_rollout_ref.rollout
        own = rollout.server.addresses is None and engine_name(self._config) in OWN_ENGINES
        return 1 if own or not uses_cuda(self._config) else rollout.tensor_model_parallel_size

    def _make_weight_sync(self) -> WeightSync:
        rollout, transport = self._config.actor_rollout_ref.rollout, weight_transport(self._config)
        return WeightSync(
            self.actor,
            self._make_client,
            mode=transport,
            folder=weights_folder(self._config),
            model_bytes=self.actor.export_bytes()[0] if transport in ("disk", "adapter") else 0,
            timeout_s=rollout.weight_sync_timeout_s,
            bucket_bytes=rollout.sync_bucket_bytes,
            engine_ranks=self._engine_ranks,
        )

"""The plan of a run on the machines that it really has: those of Ray, or this one."""

from __future__ import annotations

import logging
from dataclasses import replace

from agentrl.config.machine import engine_name, uses_cuda
from agentrl.config.machine_checks import ray_is_connected
from agentrl.config.planned import planned_gpus
from agentrl.config.resource_pools import pools_in_use
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, InfrastructureError
from agentrl.placement.cluster import Cluster, Machine, as_asked, this_machine
from agentrl.placement.layout import RunPlacement
from agentrl.placement.lengths import Lengths
from agentrl.placement.planner import mode_of, plan
from agentrl.placement.verdict import memory_problems, with_engine
from agentrl.single_controller.ray_runtime import require_listener

logger = logging.getLogger(__name__)


def place(config: RunConfig, cluster: Cluster | None = None) -> RunPlacement:
    """Plan a run on its own machines, where `auto` means what it will mean when the run starts from this one.

    Args:
        config: the run.
        cluster: its machines; None: look.
    """
    cluster = cluster or cluster_of(config)
    placement = plan(with_engine(config, engine_name(config)), cluster)
    if not placement.on_gpus or uses_cuda(config):
        return placement
    asked = (
        f"trainer.device: got auto, which asks this machine, and it has no GPU: ranks would be processes on CPUs, but "
        f"{cluster.source} has {cluster.gpus} GPUs ({cluster}): set trainer.device=cuda to use them, or cpu"
    )
    return replace(placement, problems=(asked, *placement.problems))


def cluster_of(config: RunConfig) -> Cluster:
    """The machines of the Ray cluster that this process is connected to, else this machine.

    Of a cluster that is named by `ray_init.address` and not connected to yet, nothing is known: it counts as the
    machines that the run asks for.
    """
    if config.trainer.backend == "ray":
        if ray_is_connected():
            return _connected_cluster()
        if config.ray_init.address is not None:
            return as_asked(_parts(config), _gpu_here())
    return this_machine()


def _connected_cluster() -> Cluster:
    import ray

    return Cluster.of_ray(ray.nodes(), _gpu_here())


def _gpu_here() -> Machine | None:
    """This machine, if it has GPUs: their memory is measured."""
    (here,) = this_machine().machines
    return here if here.gpus else None


def ray_cluster(address: str) -> Cluster:
    """The machines of a running Ray cluster, to which this process is connected for a moment.

    Raises:
        ConfigError: none runs there.
    """
    import ray

    connected = ray.is_initialized()
    try:
        require_listener(address)
        ray.init(address=address, log_to_driver=False, logging_level="error", ignore_reinit_error=True)
        return _connected_cluster()
    except (InfrastructureError, OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"ray_init.address: got '{address}', but no Ray cluster can be reached there "
            f"({error.__cause__ or error}): run `ray start` "
            "first, or say what it will have: --cluster 4x8x80 (machines x GPUs x GiB)"
        ) from error
    finally:
        if not connected:
            ray.shutdown()


def engine_count(config: RunConfig) -> int:
    """How many engines the run starts: `server.launch`; else on GPUs as many as they have room for, on CPUs one.

    Raises:
        ConfigError: GPUs have room for none.
    """
    launch = config.actor_rollout_ref.rollout.server.launch
    if launch is not None or not uses_cuda(config):
        return launch or 1
    placement = place(config)
    if not placement.engines and placement.problems:
        raise ConfigError(list(placement.problems))
    return max(1, len(placement.engines))


def check_places(config: RunConfig) -> None:
    """Check that the machines of a run on GPUs have room for its ranks and engines, and that engines can be so large.

    What a forecast says about memory, of GPUs or of machines, is a warning: it is not exact.

    Raises:
        ConfigError: lists everything that cannot work. Of a running cluster, the run checks again once it is connected.
    """
    if planned_gpus() is not None:
        return
    placement = place(config)
    if placement.problems and uses_cuda(config):
        raise ConfigError(list(placement.problems))
    for problem in memory_problems(config, placement, Lengths.most(config)):
        logger.warning("too large, by the forecast: %s", problem)


def _parts(config: RunConfig) -> list[int]:
    """GPUs of the machines that a run asks for; none on CPUs."""
    pools = pools_in_use(config)
    if not uses_cuda(config):
        return [0] * max(len(pool.process_on_nodes) for pool in pools)
    rollout = config.actor_rollout_ref.rollout
    own = rollout.n_gpus or (rollout.server.launch or 1) * rollout.tensor_model_parallel_size
    parts = [count for pool in pools for count in pool.process_on_nodes]
    return [*parts, own] if mode_of(config, on_gpus=True) == "split" else parts

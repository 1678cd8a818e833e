"""`plan`: where the ranks and engines of a run are on a cluster, or why they cannot be there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentrl.config.machine import OWN_ENGINES, EngineName
from agentrl.config.parallel_checks import model_problems, sections
from agentrl.config.resource_pools import Pool, pools_in_use, roles_of
from agentrl.config.rollout import LAST_PORT
from agentrl.config.root import RunConfig
from agentrl.placement.cluster import AS_ASKED, Cluster, as_asked
from agentrl.placement.engine_sizes import divisors, listed, size_problems, tp_of
from agentrl.placement.layout import EnginePlace, Mode, RankPlace, RunPlacement
from agentrl.placement.model_shape import ModelShape, find_shape, published_config

_ROLLOUT = "actor_rollout_ref.rollout"
_LOWER = "lower trainer.nnodes, trainer.n_gpus_per_node or trainer.resource_pools"


@dataclass(slots=True)
class _Plan:
    """A plan while it is made."""

    config: RunConfig
    cluster: Cluster
    free: list[list[int]]
    """GPUs of each machine that nothing has yet."""
    ranks: list[RankPlace] = field(default_factory=list)
    engines: list[EnginePlace] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def left(self) -> int:
        """GPUs that nothing has yet."""
        return sum(map(len, self.free))


def plan(config: RunConfig, cluster: Cluster) -> RunPlacement:
    """Place a run's ranks and engines; asks neither this machine nor Ray.

    Where the cluster is too small, ranks and engines are placed on the machines that the run asks for, so that the plan
    still shows what would run; `problems` says what is missing. With `trainer.backend=local` one machine is used, the
    one with most GPUs; on several, Ray without an address is a note.

    Args:
        config: the run.
        cluster: the machines that it may use.
    """
    made = _Plan(config, cluster, [])
    if config.trainer.backend == "local" and len(cluster.machines) > 1:
        _take_one_machine(made)
    on_gpus = runs_on_gpus(config, cluster)
    mode = mode_of(config, on_gpus=on_gpus)
    shape = find_shape(config.actor_rollout_ref.model.path)
    if on_gpus:
        _on_gpus(made, mode, shape)
    else:
        _on_cpus(made)
    engine = engine_of(config, on_gpus=on_gpus)
    made.problems += _mesh_problems(config)
    if mode == "given":
        made.engines.clear()  # they run somewhere already
    made.problems += _port_problems(made)
    made.notes += _ray_note(made)
    made.notes += _memory_note(made)
    order = [pool.name for pool in pools_in_use(config)]
    ranks = sorted(made.ranks, key=lambda rank: (order.index(rank.pool), rank.rank))
    return RunPlacement(
        made.cluster,
        on_gpus,
        mode,
        engine,
        tuple(ranks),
        tuple(made.engines),
        tuple(made.problems),
        tuple(made.notes),
    )


def _take_one_machine(made: _Plan) -> None:
    """Go on with the machine that has most GPUs: `local` reaches no other."""
    cluster = made.cluster
    most = max(cluster.machines, key=lambda machine: (machine.gpus, machine.gpu_gib or 0.0))
    made.cluster = Cluster((most,), "the one machine of trainer.backend=local")
    made.notes.append(
        f"trainer.backend=local runs on one machine: only one of the {len(cluster.machines)} of {cluster.source} is "
        "used; trainer.backend=ray with ray_init.address=auto uses more"
    )


def _ray_note(made: _Plan) -> Iterator[str]:
    """What a plan over several machines needs: without an address, Ray would be private to the run's own."""
    used = {rank.machine for rank in made.ranks} | {engine.machine for engine in made.engines}
    private = made.config.trainer.backend == "ray" and made.config.ray_init.address is None
    if private and len(used) > 1 and not made.cluster.reached_by_ray and not made.problems:
        yield (
            f"{len(used)} machines of {made.cluster.source} are used, but without ray_init.address the run starts a "
            "private Ray on one of them alone: run `ray start` on each, and set ray_init.address=auto"
        )


def _memory_note(made: _Plan) -> Iterator[str]:
    """GPUs of unknown memory hold anything, as far as a plan can tell."""
    used = {rank.machine for rank in made.ranks if rank.gpu is not None}
    used |= {engine.machine for engine in made.engines if engine.gpus}
    unknown = [made.cluster.machines[number] for number in sorted(used)]
    unknown = [machine for machine in unknown if machine.gpu_gib is None]
    if unknown and not made.problems:
        names = " and ".join(dict.fromkeys(machine.gpu_name or "the GPU" for machine in unknown))
        yield f"memory of {names} not known: not compared (--cluster 1x8x80 says it: machines x GPUs x GiB)"


def runs_on_gpus(config: RunConfig, cluster: Cluster) -> bool:
    """Whether ranks and engines are on GPUs there: `trainer.device`, where auto means those that there are."""
    device = config.trainer.device
    return device == "cuda" or (device == "auto" and cluster.gpus > 0)


def mode_of(config: RunConfig, *, on_gpus: bool) -> Mode:
    """How engines and ranks share GPUs; auto: in turns, unless `rollout.n_gpus` gives engines some of their own."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.server.addresses:
        return "given"
    if not on_gpus:
        return "cpu"
    if rollout.placement != "auto":
        return rollout.placement
    return "colocated" if rollout.n_gpus is None else "split"


def engine_of(config: RunConfig, *, on_gpus: bool) -> EngineName:
    """The engine; auto: SGLang on GPUs, else the embedded one, wherever this is planned."""
    name = config.actor_rollout_ref.rollout.name
    if name != "auto":
        return name
    return "sglang" if on_gpus else "embedded"


def _on_cpus(made: _Plan) -> None:
    """Ranks are processes: a machine has room for any number. Engines are dealt over the machines in turn."""
    for pool in pools_in_use(made.config):
        has = len(made.cluster.machines)
        missing = len(pool.process_on_nodes) - has
        if missing > 0:
            made.problems.append(
                f"{pool.key}: {pool.name} needs {len(pool.process_on_nodes)} machines, but {made.cluster.source} has "
                f"{has}: lower it to {has}, or start Ray on {missing} more"
            )
        for part, count in enumerate(pool.process_on_nodes):
            _put_ranks(made, pool, part, part, [None] * count)
    server = made.config.actor_rollout_ref.rollout.server
    machines = len(made.cluster.machines)
    made.engines = [EnginePlace(i, i % machines, (), _port(made, i)) for i in range(server.launch or 1)]


def _on_gpus(made: _Plan, mode: Mode, shape: ModelShape | None) -> None:
    pools = pools_in_use(made.config)
    if made.config.trainer.backend == "local":  # every role is in this process
        pools = pools[:1]
    made.problems += _room_problems(made, pools)
    if made.problems:
        _plan_as_asked(made, pools, mode)
    made.free = [list(range(machine.gpus)) for machine in made.cluster.machines]
    _place_ranks(made, pools)
    problems = size_problems(made.config, shape, made.cluster, mode) if mode != "given" else []
    made.problems += problems
    if not problems and mode == "colocated":
        _share_gpus(made, pools[0])
    elif not problems and mode == "split":
        _own_gpus(made)
    if made.left and made.cluster.source != AS_ASKED:
        made.notes.append(_idle_note(made, mode))


def _plan_as_asked(made: _Plan, pools: list[Pool], mode: Mode) -> None:
    """Go on with the machines that the run asks for."""
    like = next((machine for machine in made.cluster.machines if machine.gpus), None)
    parts = [count for pool in pools for count in pool.process_on_nodes]
    rollout = made.config.actor_rollout_ref.rollout
    if mode == "split":
        parts.append(rollout.n_gpus or (rollout.server.launch or 1) * tp_of(made.config))
    made.cluster = as_asked(parts, like)


def _room_problems(made: _Plan, pools: list[Pool]) -> Iterator[str]:
    """Whether the cluster has room for the ranks."""
    cluster, need = made.cluster, sum(pool.world_size for pool in pools)
    parts = f" ({' + '.join(f'{pool.name} {pool.world_size}' for pool in pools)})" if len(pools) > 1 else ""
    key = pools[0].key.replace("trainer.nnodes", "trainer.n_gpus_per_node")
    several = f" ({cluster})" if len(cluster.machines) > 1 else ""
    if not cluster.gpus:
        yield (
            f"trainer.device: got cuda, and {_count(need, 'rank')} {'needs' if need == 1 else 'need'} "
            f"{_count(need, 'GPU')}{parts}, but {cluster.source} has none: run it where there are some, or set "
            "trainer.device=cpu"
        )
        return
    if need > cluster.gpus:
        yield (
            f"{key}: {_count(need, 'rank')} {'needs' if need == 1 else 'need'} {_count(need, 'GPU')}{parts}, but "
            f"{cluster.source} has {cluster.gpus}{several}: {_LOWER}, or use a larger cluster{_by_ray(made.config)}"
            f"{_nearest(pools, cluster)}"
        )
        return
    with_gpus = [machine.gpus for machine in cluster.machines if machine.gpus]
    wanted = max(pools, key=lambda pool: max(pool.process_on_nodes))
    if max(wanted.process_on_nodes) > max(with_gpus):
        yield (
            f"{key}: {wanted.name} needs a machine with {max(wanted.process_on_nodes)} GPUs, but the largest of "
            f"{cluster.source} has {max(with_gpus)}: name fewer ranks for each machine and more machines"
            f"{_nearest(pools, cluster)}"
        )
        return
    if (part := _first_without_room(cluster, pools)) is not None:
        pool, count = part
        yield (
            f"{pool.key}: no machine of {cluster.source} ({cluster}) has {_count(count, 'free GPU')} for the ranks of "
            f"{pool.name} beside the others{parts}: {_LOWER}"
        )


def _by_ray(config: RunConfig) -> str:
    private = config.trainer.backend == "ray" and config.ray_init.address is None
    return " (ray_init.address=auto for more than one machine)" if private else ""


def _nearest(pools: list[Pool], cluster: Cluster) -> str:
    """The end of a sentence: the largest run of one pool that fits."""
    if len(pools) > 1 or pools[0].key != "trainer.nnodes":
        return ""
    machines = [machine.gpus for machine in cluster.machines if machine.gpus]
    each, count = max(((n, sum(gpus >= n for gpus in machines)) for n in set(machines)), key=lambda t: t[0] * t[1])
    return f"; the largest that fits is trainer.nnodes={count} trainer.n_gpus_per_node={each}"


def _parts(pools: list[Pool]) -> list[tuple[Pool, int, int]]:
    """(pool, entry of its machines, ranks), the largest first, as Ray reserves them."""
    parts = [(pool, part, count) for pool in pools for part, count in enumerate(pool.process_on_nodes)]
    return sorted(parts, key=lambda part: -part[2])


def _first_without_room(cluster: Cluster, pools: list[Pool]) -> tuple[Pool, int] | None:
    free, taken = [machine.gpus for machine in cluster.machines], set[tuple[str, int]]()
    for pool, _, count in _parts(pools):
        machine = _room(free, count, {place for name, place in taken if name == pool.name})
        if machine is None:
            return pool, count
        free[machine] -= count
        taken.add((pool.name, machine))
    return None


def _room(free: list[int], count: int, others: set[int]) -> int | None:
    """The machine for a part of a pool: one without another part of it if possible, then the one that it fills best."""
    fits = [machine for machine, left in enumerate(free) if left >= count]
    return min(fits, key=lambda machine: (machine in others, free[machine], machine), default=None)


def _place_ranks(made: _Plan, pools: list[Pool]) -> None:
    for pool, part, count in _parts(pools):
        others = {rank.machine for rank in made.ranks if rank.pool == pool.name}
        machine = _room([len(gpus) for gpus in made.free], count, others)
        if machine is not None:
            gpus, made.free[machine] = made.free[machine][:count], made.free[machine][count:]
            _put_ranks(made, pool, part, machine, gpus)


def _put_ranks(made: _Plan, pool: Pool, part: int, machine: int, gpus: list[int] | list[None]) -> None:
    first = sum(pool.process_on_nodes[:part])
    roles = pool.roles
    made.ranks += [RankPlace(pool.name, first + place, machine, part, gpu, roles) for place, gpu in enumerate(gpus)]


def _share_gpus(made: _Plan, pool: Pool) -> None:
    """Engines on the GPUs of the actor's pool, `tp` ranks that follow each other each."""
    tp, launch = tp_of(made.config), made.config.actor_rollout_ref.rollout.server.launch
    room = sum(count // tp for count in pool.process_on_nodes)
    if launch is not None and launch > room:
        made.problems.append(
            f"{_ROLLOUT}.server.launch: {_count(launch, 'engine')} of {_count(tp, 'GPU')} need {launch * tp}, but "
            f"{pool.name}, whose GPUs they share, has {pool.world_size}: wanted at most {room}, or leave it out for "
            f"one engine on every {_count(tp, 'GPU')}"
        )
        return
    count = room if launch is None else launch
    for part in range(len(pool.process_on_nodes)):
        own = [rank for rank in made.ranks if rank.pool == pool.name and rank.part == part]
        for start in range(0, len(own), tp):
            if len(made.engines) < count:
                shared = own[start : start + tp]
                gpus = tuple(rank.gpu for rank in shared if rank.gpu is not None)
                _put_engine(made, shared[0].machine, gpus, pool.name, tuple(rank.rank for rank in shared))
    if (unused := pool.world_size - count * tp) > 0:
        made.notes.append(f"{unused} of the {pool.world_size} GPUs of {pool.name} have no engine (server.launch)")


def _own_gpus(made: _Plan) -> None:
    """Engines on GPUs that no rank has."""
    rollout, tp, left = made.config.actor_rollout_ref.rollout, tp_of(made.config), made.left
    ranks, launch = len(made.ranks), rollout.server.launch
    if rollout.n_gpus is not None and launch is not None and launch * tp != rollout.n_gpus:
        made.problems.append(
            f"{_ROLLOUT}.server.launch: {launch} x {tp} = {launch * tp} GPUs, but {_ROLLOUT}.n_gpus is "
            f"{rollout.n_gpus}: give one of them"
        )
        return
    asked = rollout.n_gpus if rollout.n_gpus is not None else launch * tp if launch is not None else None
    if not left:
        fewer = max(rank.gpu or 0 for rank in made.ranks) + 1 - tp
        give = f"give ranks fewer (trainer.n_gpus_per_node={fewer} leaves {tp}), or " if fewer > 0 else ""
        made.problems.append(
            f"{_ROLLOUT}.placement: got split, but {_count(ranks, 'rank')} {'takes' if ranks == 1 else 'take'} all "
            f"{_count(made.cluster.gpus, 'GPU')} of {made.cluster.source} and {'leaves' if ranks == 1 else 'leave'} "
            f"none for engines: {give}set {_ROLLOUT}.placement=colocated"
        )
        return
    if asked is not None and asked % tp:
        made.problems.append(
            f"{_ROLLOUT}.n_gpus: got {asked}, but an engine takes {tp} GPUs ({_ROLLOUT}.tensor_model_parallel_size): "
            f"wanted a multiple of {tp}"
        )
        return
    if asked is not None and asked > left:
        key = "n_gpus" if rollout.n_gpus is not None else "server.launch"
        made.problems.append(
            f"{_ROLLOUT}.{key}: {ranks} GPUs of ranks + {asked} of engines = {ranks + asked}, but "
            f"{made.cluster.source} has {made.cluster.gpus}: wanted at most {left - left % tp} for engines"
        )
        return
    count = (left if asked is None else asked) // tp
    for machine, gpus in enumerate(made.free):
        while len(gpus) >= tp and len(made.engines) < count:
            taken, gpus[:] = tuple(gpus[:tp]), gpus[tp:]
            _put_engine(made, machine, taken)
    if len(made.engines) < (count if asked is not None else 1):
        free = " + ".join(str(len(gpus)) for gpus in made.free if gpus) or "0"
        fits = [size for size in divisors(made.cluster.largest) if any(len(gpus) >= size for gpus in made.free)]
        made.problems.append(
            f"{_ROLLOUT}.tensor_model_parallel_size: an engine of {tp} GPUs is on one machine, but ranks leave {free} "
            f"on the machines of {made.cluster.source}, room for {len(made.engines)} of {max(1, count)} engines: "
            f"wanted {listed(fits) if fits else 'fewer ranks'}"
        )


def _put_engine(
    made: _Plan, machine: int, gpus: tuple[int, ...], pool: str | None = None, ranks: tuple[int, ...] = ()
) -> None:
    index = len(made.engines)
    made.engines.append(EnginePlace(index, machine, gpus, _port(made, index), pool, ranks))


def _port(made: _Plan, index: int) -> int | None:
    first = made.config.actor_rollout_ref.rollout.server.port
    return None if first is None else first + index


def _mesh_problems(config: RunConfig) -> Iterator[str]:
    """Sizes that do not divide the heads of models that are only published; the configuration checks all others."""
    for role in roles_of(config):
        key, fsdp, _, model = sections(config)[role]
        spread = max(fsdp.ulysses_sequence_parallel_size, fsdp.tensor_parallel_size) > 1
        if spread and (sizes := published_config(model.path)) is not None:
            yield from model_problems(f"{key}.fsdp_config", fsdp, sizes)


def _port_problems(made: _Plan) -> Iterator[str]:
    """Ports that engines would have beyond the last one; those of `server.launch` are counted by the configuration."""
    server, count = made.config.actor_rollout_ref.rollout.server, len(made.engines)
    if server.port is not None and server.launch is None and server.port + count - 1 > LAST_PORT:
        yield (
            f"{_ROLLOUT}.server.port: {count} engines from port {server.port} on need ports up to "
            f"{server.port + count - 1}, but the last one is {LAST_PORT}: wanted at most {LAST_PORT + 1 - count}, or "
            "null for free ports"
        )


def _idle_note(made: _Plan, mode: Mode) -> str:
    own = made.config.actor_rollout_ref.rollout.name in OWN_ENGINES
    hint = f": {_ROLLOUT}.placement=split would give them to engines" if mode == "colocated" and not own else ""
    return f"{made.left} of {made.cluster.gpus} GPUs are not used{hint}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

"""Combinations of values that cannot work on these machines, devices and engines; part of `checks.CHECKS`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from agentrl.config.actor import FSDPConfig
from agentrl.config.engine_choice import CONTEXT_MARGIN
from agentrl.config.engine_flags import check_engine_flags
from agentrl.config.machine import OWN_ENGINES, engine_name, uses_cuda
from agentrl.config.resource_pools import check_pools, pools_in_use
from agentrl.config.rollout import LAST_PORT
from agentrl.config.root import RunConfig
from agentrl.config.trainer import DEFAULT_POOL, RayInitConfig
from agentrl.config.weight_transport import check_weight_sync
from agentrl.hub import config_file

Problems = Iterator[str]


def check_backend(config: RunConfig) -> Problems:
    """The in-process backend has one rank and one agent-loop worker; Ray's settings need Ray."""
    if config.trainer.backend != "local":
        return
    for pool in pools_in_use(config):
        if pool.world_size > 1:
            given = f"{pool.name}: {pool.key}" if pool.name != DEFAULT_POOL else "nnodes x n_gpus_per_node"
            yield f"trainer.backend: got 'local' with {pool.world_size} ranks ({given}); local runs one: use ray"
    if config.ray_init.address is not None:
        yield "ray_init.address: given, but trainer.backend is local"


def check_ray(config: RunConfig) -> Problems:
    """The CPU count is only for a private cluster, which is this machine alone."""
    if config.trainer.backend == "ray":
        largest = max(pools_in_use(config), key=lambda pool: len(pool.process_on_nodes))
        yield from cluster_problems(len(largest.process_on_nodes), config.ray_init, largest.key)


def cluster_problems(nodes: int, ray: RayInitConfig, key: str = "trainer.nnodes") -> Problems:
    """Why Ray, started so, does not have this number of machines, which `key` asks for, or CPUs."""
    if nodes > 1 and ray.address is None and not ray_is_connected():
        asked = f"{nodes} machines" if "resource_pools" in key else nodes
        yield (
            f"{key}: got {asked}, but without ray_init.address the run starts a private Ray on this machine "
            "alone: run `ray start --head` on the first machine and `ray start --address=HOST:6379` on the others, and "
            "set ray_init.address=auto"
        )
    if ray.address is not None and not _is_ray_address(ray.address):
        yield (
            f"ray_init.address: got '{ray.address}', wanted auto (the cluster of this machine), host:port of a running "
            "one, such as 10.0.0.1:6379, or null for a private one"
        )
    if ray.address is not None and ray.num_cpus is not None:
        yield "ray_init.num_cpus: is only for a private cluster, but ray_init.address names a running one"


def _is_ray_address(address: str) -> bool:
    """Whether it can be that of a running cluster; for `local` Ray would start one, of this machine alone."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    known = bool(host) and "/" not in host and port.isdecimal() and 1 <= int(port) <= LAST_PORT
    return address == "auto" or known


def ray_is_connected() -> bool:
    """Whether this process is connected to a cluster already, which the run then uses."""
    ray = sys.modules.get("ray")
    return bool(ray is not None and ray.is_initialized())


def check_device(config: RunConfig) -> Problems:
    """Offloading is used only on GPUs."""
    if config.trainer.device != "cpu":
        return
    policy = config.actor_rollout_ref
    sections = {
        "actor_rollout_ref.actor": policy.actor.fsdp_config,
        "actor_rollout_ref.ref": policy.ref.fsdp_config,
        "critic": config.critic.fsdp_config,
        "reward_model": config.reward_model.fsdp_config,
    }
    for key, fsdp in sections.items():
        yield from offload_problems(f"{key}.fsdp_config", fsdp)


def offload_problems(key: str, fsdp: FSDPConfig) -> Problems:
    """What a section asks to move to host memory though the run is on a CPU."""
    for name in ("param_offload", "optimizer_offload", "offload_policy"):
        if getattr(fsdp, name):
            yield f"{key}.{name}: got true, but trainer.device is cpu: nothing to offload from"


def check_profiler(config: RunConfig) -> Problems:
    """Steps count from 1, and GPUs are only profiled where there are some."""
    trainer = config.trainer
    if min(trainer.profile_steps or [1]) < 1:
        yield f"trainer.profile_steps: got {trainer.profile_steps}, wanted numbers of steps, from 1 on"
    if trainer.profile_steps and trainer.profile_tool in ("nsys", "torch_memory") and not uses_cuda(config):
        yield f"trainer.profile_tool: got {trainer.profile_tool}, which needs a GPU; on CPUs, torch writes traces"


def check_watchers(config: RunConfig) -> Problems:
    """Where traces go, and where metrics are asked for, are addresses."""
    collector, page = config.trainer.otlp_endpoint, config.trainer.prometheus_address
    if collector is not None and not collector.startswith(("http://", "https://")):
        yield f"trainer.otlp_endpoint: got '{collector}', wanted an http(s) address, such as http://localhost:4318"
    if page is not None and not str(page).rpartition(":")[2].isdecimal():
        yield f"trainer.prometheus_address: got '{page}', wanted a port or host:port, such as 0.0.0.0:9400"
    elif page is not None and int(str(page).rpartition(":")[2]) > LAST_PORT:
        yield f"trainer.prometheus_address: got '{page}', wanted a port up to {LAST_PORT}"


def check_servers(config: RunConfig) -> Problems:
    """Settings of started servers are not mixed with running servers, nor one engine's settings with the other's."""
    rollout = config.actor_rollout_ref.rollout
    key = "actor_rollout_ref.rollout"
    server = rollout.server
    yield from _address_problems(f"{key}.server.addresses", server.addresses or [])
    if server.addresses is not None and not server.addresses:
        yield f"{key}.server.addresses: got an empty list, wanted addresses, or null to start servers"
    if server.addresses and ((server.launch or 1) > 1 or server.port is not None or server.args):
        yield f"{key}.server.launch, port, args: are only for servers that the run starts, but addresses are given"
    last = (server.port or 1) + (server.launch or 1) - 1
    if last > LAST_PORT:
        yield (
            f"{key}.server.port: {server.launch} servers from port {server.port} on need ports up to {last}, but the "
            f"last one is {LAST_PORT}: wanted at most {LAST_PORT + 1 - (server.launch or 1)}, or null for free ports"
        )
    # `auto` may become either engine. Without servers of its own, the run does not know which one it talks to.
    starts = not server.addresses
    engine = engine_name(config) if starts and _depends_on_engine(config) else rollout.name
    chosen = f"{key}.name is {rollout.name}" + (f", here {engine}" if engine != rollout.name else "")
    if starts and engine in OWN_ENGINES and server.args:
        yield f"{key}.server.args: are only for SGLang, but {chosen}; vLLM takes them too"
    if rollout.name in OWN_ENGINES and rollout.tensor_model_parallel_size > 1:
        yield f"{key}.tensor_model_parallel_size: is only for SGLang, but {chosen}; vLLM takes it too"
    if engine in ("sglang", "vllm", "hf") and config.trainer.deterministic:
        only = "only the embedded engine is deterministic"
        yield f"trainer.deterministic: got true, but {only}, and {chosen}: set it to embedded"
    if not starts and engine == "auto" and config.trainer.deterministic:
        servers = "embedded engines started with --deterministic"
        where = f"not what answers at {key}.server.addresses"
        yield f"trainer.deterministic: got true, but {where}: set {key}.name=embedded if they are {servers}"


def _address_problems(key: str, addresses: list[str]) -> Problems:
    """Addresses that no server can have, and servers that are named twice: each would be updated twice at a time."""
    seen: dict[tuple[str | None, int | None, str], str] = {}
    for address in addresses:
        try:
            url = urlsplit(address)
            host, port = url.hostname, url.port
        except ValueError:  # no number, or above 65535
            host, port = None, None
        if not host or not address.startswith(("http://", "https://")):
            yield f"{key}: got '{address}', wanted http://host:port"
            continue
        place = ("127.0.0.1" if host == "localhost" else host, port, url.path.rstrip("/"))
        if place in seen:
            both = f"'{address}' twice" if seen[place] == address else f"'{seen[place]}' and '{address}'"
            yield f"{key}: got {both}, which are one server: name each once"
        seen.setdefault(place, address)


def _depends_on_engine(config: RunConfig) -> bool:
    """Whether the engine matters to a check: to find out what `auto` is may import torch."""
    rollout = config.actor_rollout_ref.rollout
    return bool(rollout.server.args or config.trainer.deterministic)


def check_context(config: RunConfig) -> Problems:
    """Prompt and response together fit into the engine's and the model's context."""
    rollout = config.actor_rollout_ref.rollout
    prompt = rollout.prompt_length or config.data.max_prompt_length
    response = rollout.response_length or config.data.max_response_length
    need = prompt + response
    slots = {
        "max_model_len": rollout.max_model_len,
        "embedded.max_context_length": rollout.embedded.max_context_length if rollout.max_model_len is None else None,
    }
    for key, most in slots.items():
        if most is not None and most < need:
            yield (
                f"actor_rollout_ref.rollout.{key}: got {most}, but prompts of {prompt} and "
                f"responses of {response} tokens need {need}"
            )
    positions = _positions(config.actor_rollout_ref.model.path)
    if positions is None:
        return
    has = f"but the model in {config.actor_rollout_ref.model.path} has {positions} positions"
    if positions < need:
        yield f"data.max_response_length: prompts of {prompt} and responses of {response} tokens need {need}, {has}"
        return
    longest = rollout.max_model_len or need
    if positions < longest + CONTEXT_MARGIN and not rollout.server.addresses and engine_name(config) == "sglang":
        key = "data.max_response_length" if rollout.max_model_len is None else "actor_rollout_ref.rollout.max_model_len"
        yield (
            f"{key}: requests of {longest} tokens need a context of {longest + CONTEXT_MARGIN} in SGLang, which leaves "
            f"{CONTEXT_MARGIN} tokens of it unused, {has}: make them at most {positions - CONTEXT_MARGIN}"
        )


def _positions(model: str) -> int | None:
    """`max_position_embeddings` of a model; None if it is unknown (the model's loader then reports problems)."""
    file = config_file(model)
    try:
        config = None if file is None else json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    positions = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return positions if isinstance(positions, int) else None


MACHINE_CHECKS: tuple[Callable[[RunConfig], Problems], ...] = (
    check_pools,
    check_backend,
    check_ray,
    check_device,
    check_profiler,
    check_watchers,
    check_servers,
    check_weight_sync,
    check_engine_flags,
    check_context,
)

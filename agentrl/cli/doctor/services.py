"""The services that a run names: where each is given, and what the run takes it for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentrl import otel
from agentrl.clients.http import ServiceClient
from agentrl.config import RunConfig
from agentrl.config.machine import engine_name
from agentrl.errors import ConfigError
from agentrl.files import find_file
from agentrl.plugins.mcp_entries import read_servers
from agentrl.yaml_reader import read_yaml


class Role(StrEnum):
    """What a run takes an address for."""

    ENGINE = "engine"
    SANDBOX = "sandbox"
    RETRIEVAL = "retrieval"
    JUDGE = "judge"
    MCP = "MCP server"
    COLLECTOR = "collector of traces"
    OTHER = "service"


@dataclass(frozen=True, slots=True)
class Service:
    """An address, and where it is given."""

    key: str
    url: str
    role: Role = Role.OTHER
    model: str = ""
    """An engine's or a judge's, as the run names it."""
    api: str = "sglang"
    """Whose API an engine has to speak: sglang or vllm."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request."""


def services_of(config: RunConfig) -> list[Service]:
    """The addresses that a run's engines, tools, interactions, scores and traces have, each once."""
    found = [*_engines(config), *_of_rewards(config)]
    turns, searched = config.actor_rollout_ref.rollout.multi_turn, config.retriever.url
    if searched is not None:
        found.append(Service("retriever.url", searched, Role.RETRIEVAL))
    for path in (turns.tool_config_path, *turns.tool_envs.values(), turns.interaction_config_path):
        named = _in_yaml(path) if path is not None else []
        found += [one for one in named if searched is None or not one.key.endswith(": retrieval_service_url")]
    collector = otel.traces_url(config.trainer.otlp_endpoint)
    if collector is not None:
        found.append(Service(*collector, Role.COLLECTOR))
    return list({(service.role, service.url): service for service in found}.values())


def _engines(config: RunConfig) -> Iterator[Service]:
    api = "vllm" if engine_name(config) == "vllm" else "sglang"
    for url in config.actor_rollout_ref.rollout.server.addresses or []:
        yield Service("rollout.server.addresses", url, Role.ENGINE, config.actor_rollout_ref.model.path, api)


def _of_rewards(config: RunConfig) -> Iterator[Service]:
    sandbox, judge = config.reward_model.sandbox_fusion, config.reward_model.judge
    if sandbox.url is not None:
        yield Service("reward_model.sandbox_fusion.url", sandbox.url, Role.SANDBOX, headers=sandbox.headers)
    if config.reward_model.has_judge and judge.base_url is not None:
        try:
            key = ServiceClient.bearer(judge.api_key_env)
        except ValueError:  # the check of the configuration tells it
            key = {}
        yield Service("reward_model.judge.base_url", judge.base_url, Role.JUDGE, judge.model, headers=key)


def _in_yaml(path: str) -> list[Service]:
    """Every address in the YAML of tools or interactions, and in the files of MCP servers that it names."""
    try:
        file = find_file(path)
        return list(_inside(read_yaml(file), file))
    except ConfigError:  # the check of the configuration tells it
        return []


def _inside(value: Any, file: Path) -> Iterator[Service]:
    for inside in value if isinstance(value, list) else ():
        yield from _inside(inside, file)
    if not isinstance(value, Mapping):
        return
    for name, inside in value.items():
        if not isinstance(inside, str):
            yield from _inside(inside, file)
        elif name == "mcp_servers_config_path":
            yield from _mcp_servers(find_file(inside, file.parent))
        elif inside.startswith(("http://", "https://")):
            role = next((role for role in (Role.SANDBOX, Role.RETRIEVAL) if role in str(name)), Role.OTHER)
            yield Service(f"{file.name}: {name}", inside, role, headers=_headers(value))


def _mcp_servers(file: Path) -> Iterator[Service]:
    for name, server in read_servers(file).items():
        if isinstance(server, Mapping) and isinstance(server.get("url"), str):
            token = server.get("auth_token")
            headers = ({"Authorization": f"Bearer {token}"} if token else {}) | _headers(server)
            yield Service(f"{file.name}: {name}", server["url"], Role.MCP, headers=headers)


def _headers(section: Mapping[str, Any]) -> dict[str, str]:
    given = section.get("headers")
    return {str(name): str(value) for name, value in given.items()} if isinstance(given, Mapping) else {}

"""The services that a run names: whether each answers, and is what the run takes it for."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentrl.cli.doctor.findings import Finding, Findings, ok, wrong
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.files import find_file
from agentrl.yaml_reader import read_yaml

TIMEOUT_S = 5.0
_OWN = {"sandbox": "sandbox", "retrieval": "retrieval"}
"""Part of a key -> the service of agentrl that it means, as `/health` names it."""


@dataclass(frozen=True, slots=True)
class Service:
    """An address, and where it is given."""

    key: str
    url: str

    @property
    def kind(self) -> str | None:
        """The service of agentrl that is meant; None: another one."""
        return next((kind for part, kind in _OWN.items() if part in self.key), None)


def services_of(config: RunConfig) -> list[Service]:
    """The addresses that a run's engines, tools, interactions and scores have, each once."""
    rollout, reward = config.actor_rollout_ref.rollout, config.reward_model
    found = [Service("rollout.server.addresses", url) for url in rollout.server.addresses or []]
    if reward.sandbox_fusion.url is not None:
        found.append(Service("reward_model.sandbox_fusion.url", reward.sandbox_fusion.url))
    if reward.has_judge and reward.judge.base_url is not None:
        found.append(Service("reward_model.judge.base_url", reward.judge.base_url))
    for path in (rollout.multi_turn.tool_config_path, rollout.multi_turn.interaction_config_path):
        found += _in_yaml(path) if path is not None else []
    return list({service.url: service for service in found}.values())


def _in_yaml(path: str) -> list[Service]:
    """Every address in the YAML of tools or interactions."""
    try:
        file = find_file(path)
        return [Service(f"{file.name}: {key}", url) for key, url in _urls(read_yaml(file), "")]
    except ConfigError:  # the check of the configuration tells it
        return []


def _urls(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inside in value.items():
            yield from _urls(inside, str(name))
    elif isinstance(value, list):
        for inside in value:
            yield from _urls(inside, key)


def check_services(services: list[Service]) -> Findings:
    """Whether somebody listens at each address, and whether it is the service that the key names."""
    for service in services:
        yield _check(service)
    if not services:
        yield ok("services", "this run names none")


def _check(service: Service) -> Finding:
    try:
        url = urlsplit(service.url)
        host, port = url.hostname, url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        host, port = None, 0
    if not host:
        return wrong("services", f"{service.key}: got {service.url}, wanted http://host:port")
    try:
        socket.create_connection((host, port), timeout=TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or error
        return wrong("services", f"{service.key}: nobody answers at {service.url} ({reason})", _start(service, port))
    told = _told_service(f"{url.scheme}://{url.netloc}/health")
    if service.kind is not None and told is not None and told != service.kind:
        what = f"{service.key}: at {service.url} is agentrl's {told} service, wanted {service.kind}"
        return wrong("services", what, "give the address of the other one")
    return ok("services", f"{service.key}: {service.url} answers" + (f" ({told})" if told else ""))


def _told_service(address: str) -> str | None:
    """What the service says that it is, if it is one of agentrl's."""
    try:
        answer = httpx.get(address, timeout=TIMEOUT_S, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return None
    told = answer.get("service") if isinstance(answer, dict) else None
    return str(told) if told else None


def _start(service: Service, port: int) -> str:
    if service.kind is not None:
        return f"start it: agentrl serve {service.kind} --port {port}"
    return "start it, or give the address at which it runs"

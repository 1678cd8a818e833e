"""Whether each service that a run names answers, and is what the run takes it for: it is asked as the run asks it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentrl.cli.doctor.findings import Finding, Findings, note, ok, wrong
from agentrl.cli.doctor.services import Role, Service
from agentrl.inference.client import HEALTH_TIMEOUT_S
from agentrl.inference.health import is_well_now

TIMEOUT_S = 5.0
TOPIC = "services"
_ROUTES = {Role.SANDBOX: "/run_code", Role.RETRIEVAL: "/retrieve", Role.JUDGE: "/chat/completions"}
_NO_ROUTE, _REFUSED = {404, 405, 501}, {401, 403}
_ANY_NAME = {"sglang", "agentrl"}
"""Owners of models, as `/models` names them, whose servers take any name of a model in a request."""
_SHOWN = 120


def check_services(services: list[Service]) -> Findings:
    """Whether each service answers, and is the one that the key names."""
    for service in services:
        yield _check(service)
    if not services:
        yield ok(TOPIC, "this run names none")


def _check(service: Service) -> Finding:
    try:
        url = urlsplit(service.url)
        host, port = url.hostname, url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        host, port = None, 0
    if not host or url.scheme not in ("http", "https"):
        return wrong(TOPIC, f"{service.key}: got {service.url}, wanted http://host:port")
    try:
        socket.create_connection((host, port), timeout=TIMEOUT_S).close()
    except OSError as error:
        what = f"{service.key}: nobody answers at {service.url} ({error.strerror or error})"
        return (note if service.role is Role.COLLECTOR else wrong)(TOPIC, what, _start(service, port))
    try:
        with httpx.Client(timeout=TIMEOUT_S, trust_env=False, headers=dict(service.headers)) as http:
            return _ASK[service.role](http, service)
    except httpx.TimeoutException:
        return _bad(service, f"gives no answer within {TIMEOUT_S:g} s", "look at its log, or start it again")
    except httpx.HTTPError as error:
        return _bad(service, f"does not answer as an HTTP server ({error})", _start(service, port))


def _ask_engine(http: httpx.Client, service: Service) -> Finding:
    base = service.url.rstrip("/")
    asked = http.get(f"{base}/model_info")
    info = _object(asked) or _object(http.get(f"{base}/get_model_info"))
    speaks = {"sglang": "model_path" in info, "vllm": "weight_version" in _object(http.get(f"{base}/weight_info"))}
    if not speaks[service.api]:
        return _ill(http, service, base) or _other_api(service, speaks, asked.status_code)
    with httpx.Client(timeout=HEALTH_TIMEOUT_S, trust_env=False) as patient:
        if not is_well_now(patient, base, "/health"):
            return _bad(service, "fails its health check", "wait until it has loaded; else look at its log")
    cards = _cards(http.get(f"{base}/v1/models"))
    served = str(info.get("model_path") or next((card.get("root") or card["id"] for card in cards), ""))
    if served and not _same_model(served, service.model):
        what = f"{service.key}: {service.url} serves {served}, and the run trains {service.model}"
        return note(TOPIC, what, "start it with the run's model: weights of other shapes cannot be loaded into it")
    return _well(service, served)


def _other_api(service: Service, speaks: dict[str, bool], status: int) -> Finding:
    key = "actor_rollout_ref.rollout.name"
    if service.api == "vllm":
        what = "speaks SGLang's API, not vLLM's" if speaks["sglang"] else "is no vLLM server that can be trained with"
        needs = "vLLM 0.32 or newer, started with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out"
        return _bad(service, what, f"{key}=sglang" if speaks["sglang"] else needs)
    if speaks["vllm"]:
        return _bad(service, "speaks vLLM's API, not SGLang's", f"{key}=vllm")
    return _bad(service, f"is no engine: GET /model_info answers {status}", "give the address of an engine")


def _same_model(served: str, wanted: str) -> bool:
    """Whether two names are of one model: a folder may have another path on the engine's machine."""
    first, second = Path(served), Path(wanted)
    if first.exists() and second.exists():
        return first.samefile(second)
    return first.name == second.name


def _ask_own(http: httpx.Client, service: Service) -> Finding:
    """A sandbox or a search service: agentrl's, or any with the same route."""
    route = _ROUTES[service.role]
    base = service.url.rstrip("/").removesuffix(route)
    return _ill(http, service, base) or _no_route(http, service, base) or _well(service, service.role)


def _ask_judge(http: httpx.Client, service: Service) -> Finding:
    base = service.url.rstrip("/").removesuffix(_ROUTES[Role.JUDGE])
    ill = _ill(http, service, base.removesuffix("/v1"))
    if ill is not None:
        return ill
    listed = http.get(f"{base}/models")
    cards = _cards(listed)
    if not cards:  # not every endpoint has a list
        refused = listed.status_code in _REFUSED
        return (_refuses(service, listed) if refused else _no_route(http, service, base)) or _well(service)
    names = [str(card["id"]) for card in cards]
    if service.model not in names and not _ANY_NAME & {card.get("owned_by") for card in cards}:
        what = f"{service.key}: {service.url} does not list the model {service.model}, but {', '.join(names)[:_SHOWN]}"
        return note(TOPIC, what, f"reward_model.judge.model={names[0]}")
    return _well(service, service.model if service.model in names else names[0])


def _ask_mcp(http: httpx.Client, service: Service) -> Finding:
    """Any answer in JSON-RPC, an error too: whether its tools can be used is found out when they are loaded."""
    headers = {"Accept": "application/json, text/event-stream"}
    answer = http.post(service.url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers)
    if answer.status_code in _REFUSED:
        return _refuses(service, answer)
    if "jsonrpc" not in answer.text:
        return _bad(service, f"is no MCP server: POST answers {_told(answer)}", "give the whole address, path included")
    return _well(service, service.role)


def _ask_collector(http: httpx.Client, service: Service) -> Finding:
    """It gets an export without spans. `OTEL_EXPORTER_OTLP_HEADERS` is not sent, so a refusal is an answer."""
    answer = http.post(service.url, content=b"", headers={"Content-Type": "application/x-protobuf"})
    if answer.is_success or answer.status_code in _REFUSED:
        return _well(service, service.role)
    what = f"{service.key}: at {service.url} is no collector for OTLP over HTTP: POST answers {_told(answer)}"
    return note(TOPIC, what, "its port for HTTP is usually 4318")


def _ask_other(http: httpx.Client, service: Service) -> Finding:
    url = urlsplit(service.url)
    base = f"{url.scheme}://{url.netloc}"
    return _ill(http, service, base) or _well(service)


_ASK: dict[Role, Callable[[httpx.Client, Service], Finding]] = {
    Role.ENGINE: _ask_engine,
    Role.SANDBOX: _ask_own,
    Role.RETRIEVAL: _ask_own,
    Role.JUDGE: _ask_judge,
    Role.MCP: _ask_mcp,
    Role.COLLECTOR: _ask_collector,
    Role.OTHER: _ask_other,
}


def _ill(http: httpx.Client, service: Service, base: str) -> Finding | None:
    """What `/health` has against it: another service of agentrl, or one that is not well; 404: it has no such page."""
    answer = http.get(f"{base}/health")
    told = _object(answer, any_status=True).get("service")
    if told and service.role is not Role.OTHER and told != service.role:
        what = f"{service.key}: at {service.url} is agentrl's {told} service, wanted {service.role}"
        return wrong(TOPIC, what, "give the address of the other one")
    if answer.status_code >= 500 or (told and answer.status_code != 200):
        return _bad(service, f"is not well: /health answers {_told(answer)}", "wait until it has loaded; see its log")
    return None


def _no_route(http: httpx.Client, service: Service, base: str) -> Finding | None:
    """An empty request tells: one that has the route answers anything else than that there is none."""
    route = _ROUTES[service.role]
    answer = http.post(base + route, json={})
    if answer.status_code in _REFUSED:
        return _refuses(service, answer)
    if answer.status_code not in _NO_ROUTE:
        return None
    todo = f"give the address of a {service.role}{' service' if service.role is Role.RETRIEVAL else ''}"
    return _bad(service, f"does not serve {route}: POST answers {answer.status_code}", todo)


def _refuses(service: Service, answer: httpx.Response) -> Finding:
    given = ", ".join(sorted(service.headers)) or "no header"
    todo = "reward_model.judge.api_key_env" if service.role is Role.JUDGE else "give its token in `headers`"
    return _bad(service, f"answers {_told(answer)} to {given}", todo)


def _cards(answer: httpx.Response) -> list[dict[str, Any]]:
    """The models in the answer of `/models`."""
    data = _object(answer).get("data")
    return [card for card in data if isinstance(card, dict) and "id" in card] if isinstance(data, list) else []


def _object(answer: httpx.Response, *, any_status: bool = False) -> dict[str, Any]:
    """An answer's JSON object; empty: it has none."""
    try:
        found = answer.json() if any_status or answer.is_success else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _told(answer: httpx.Response) -> str:
    text = " ".join(answer.text.split())[:_SHOWN]
    return f"{answer.status_code}: {text}" if text and not text.startswith("<") else str(answer.status_code)


def _well(service: Service, what: str = "") -> Finding:
    return ok(TOPIC, f"{service.key}: {service.url} answers" + (f" ({what})" if what else ""))


def _bad(service: Service, what: str, todo: str) -> Finding:
    return (note if service.role is Role.COLLECTOR else wrong)(TOPIC, f"{service.key}: {service.url} {what}", todo)


def _start(service: Service, port: int) -> str:
    if service.role in (Role.SANDBOX, Role.RETRIEVAL):
        return f"start it: agentrl serve {service.role} --port {port}"
    return "start it, or give the address at which it runs"

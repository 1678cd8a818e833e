"""What the standard variables of OpenTelemetry (`OTEL_*`) say about whether traces are sent at all."""

from __future__ import annotations

import os
from importlib.util import find_spec

NEEDS = "needs the package opentelemetry: pip install 'agentrl[traces]'"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL, _PATH = "http/protobuf", "/v1/traces"


def is_installed() -> bool:
    """Whether the SDK and its exporter are."""
    names = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    try:
        return all(find_spec(name) is not None for name in names)
    except ModuleNotFoundError:  # a parent is missing
        return False


def is_disabled() -> bool:
    """Whether `OTEL_SDK_DISABLED` says that nothing is sent."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def names_collector() -> bool:
    """Whether the variables name a collector for traces."""
    exporters = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
    named = any(os.environ.get(name) for name in _ENDPOINTS)
    return named and not is_disabled() and "otlp" in (exporter.strip() for exporter in exporters)


def traces_url(endpoint: str | None) -> tuple[str, str] | None:
    """Where traces are sent: the name of the key or variable that says it, and the whole address; None: nowhere.

    Args:
        endpoint: `trainer.otlp_endpoint`, with or without `/v1/traces`.
    """
    if is_disabled() or (endpoint is None and not names_collector()):
        return None
    if endpoint is not None:
        return "trainer.otlp_endpoint", with_path(endpoint)
    name = next(name for name in _ENDPOINTS if os.environ.get(name))
    url = os.environ[name]
    return name, url if "TRACES" in name else with_path(url)


def with_path(endpoint: str) -> str:
    """A collector's address for traces: `http://a:4318` -> `http://a:4318/v1/traces`, which stays as it is."""
    return endpoint.removesuffix(_PATH).rstrip("/") + _PATH


def why_not() -> str | None:
    """Why traces cannot be sent to the collector that the variables name; None: they can."""
    protocol = next((value for name in _PROTOCOLS if (value := os.environ.get(name))), _PROTOCOL)
    if protocol != _PROTOCOL:
        return f"got the protocol {protocol} from OTEL_EXPORTER_OTLP_PROTOCOL, wanted {_PROTOCOL}"
    return None if is_installed() else f"this {NEEDS}"

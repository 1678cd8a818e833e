"""Requests made from both OpenAPI documents: every answer is one that the document describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from service_process import serve

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
BOUNDED = settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with serve(request.param) as running:
        yield running.url


@pytest.mark.parametrize("url", ["retrieval", "sandbox"], indirect=True)
def test_every_answer_is_described(url: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) >= 5
    problems = [problem for each in operations for mode in _modes(each) if (problem := _try(each, mode))]
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize("url", ["retrieval"], indirect=True)
def test_an_answer_that_is_not_described_is_found(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json", trust_env=False).json()
    del document["paths"]["/retrieve"]["post"]["responses"]["422"]
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    problem = _try(schema["/retrieve"]["POST"], GenerationMode.NEGATIVE)
    assert "Undocumented status code" in problem


def _modes(operation: Any) -> list[GenerationMode]:
    """A request without a body has nothing that could be wrong."""
    return [GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if len(operation.body) else [])]


def _try(operation: Any, mode: GenerationMode) -> str:
    """What is wrong with the answers of an operation; empty: nothing."""

    @BOUNDED
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS, timeout=30)

    try:
        check()
    except FailureGroup as failures:
        return f"{operation.label}, {mode}: " + "\n".join(map(str, failures.exceptions))
    return ""

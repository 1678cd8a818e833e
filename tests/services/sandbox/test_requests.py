"""What a request may hold: SandboxFusion's fields, no others, and no file in the place of the program."""

from __future__ import annotations

from typing import Any

import pytest
from sandbox_service import Server, needs_language

FUSION: dict[str, Any] = {
    "code": "print(open('a').read())",
    "language": "python",
    "stdin": None,
    "compile_timeout": 10,
    "run_timeout": 10,
    "memory_limit_MB": -1,
    "files": {"a": "YQ==", "main.py": None},
    "fetch_files": [],
    "args": [],
}


def test_all_fields_of_sandbox_fusion(server: Server) -> None:
    answer = server.http.post("/run_code", json=FUSION).json()
    assert (answer["status"], answer["run_result"]["stdout"]) == ("Success", "a\n")
    body = {"cells": ["1"], "cell_timeout": 0, "total_timeout": 45, "memory_limit_MB": -1, "kernel": "python3"}
    answer = server.http.post("/run_jupyter", json={**body, "files": {}, "fetch_files": []}).json()
    assert answer["status"] == "Success"


@pytest.mark.parametrize(
    ("path", "body", "field", "nearest"),
    [
        ("/run_code", {"code": "1", "language": "python"}, "run_timeot", "run_timeout"),
        ("/run_code", {"code": "1", "language": "python"}, "memory_limit_mb", "memory_limit_MB"),
        ("/sessions", {}, "file", "files"),
        ("/run_jupyter", {"cells": ["1"]}, "total_time", "total_timeout"),
        ("/judge", {"code": "1", "tests": [{"output": ""}]}, "timeouts", "timeout"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest(
    server: Server, path: str, body: dict[str, Any], field: str, nearest: str
) -> None:
    good = server.http.post(path, json=body)
    assert good.status_code == 200
    if path == "/sessions":
        server.http.delete(f"/sessions/{good.json()['session_id']}")
    answer = server.http.post(path, json={**body, field: 1})
    assert answer.status_code == 422
    assert f"unknown field {field!r}" in answer.json()["detail"]
    assert f"`{nearest}`" in answer.json()["detail"] or f"'{nearest}'" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("language", "name"), [("python", "main.py"), ("python", "./main.py"), ("c", "main.c"), ("c", "main")]
)
def test_a_file_does_not_replace_the_program(server: Server, language: str, name: str) -> None:
    needs_language(language)
    body = {"code": "int main() { return 0; }" if language == "c" else "1", "language": language, "files": {name: ""}}
    for path, fields in (("/run_code", {}), ("/judge", {"tests": [{"output": ""}]})):
        answer = server.http.post(path, json={**body, **fields})
        assert answer.status_code == 422
        assert f"{name.removeprefix('./')!r} is the program of `code`" in answer.json()["detail"]
    if language == "python":
        assert server.run("print(open('sub/main.py').read())", files={"sub/main.py": "YQ=="})["status"] == "Success"

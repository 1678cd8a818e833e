"""Requests and answers on the wire: SandboxFusion's two, agentrl's sessions and judge."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from agentrl.services.sandbox.folders import Content, clean_path

Status = Literal["Success", "Failed", "SandboxError"]
CommandStatus = Literal["Finished", "Error", "TimeLimitExceeded"]


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    files: dict[str, Content] = {}
    for path, text in value.items():
        if not isinstance(path, str):
            raise ValueError("got a path that is no text")
        clean = clean_path(path)
        if text is None:
            continue
        if not isinstance(text, str):
            raise ValueError(f"{path[:80]!r}: got {type(text).__name__}, wanted base64 text or null")
        try:
            files[clean] = Content(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{path[:80]!r}: the content is not base64: {error}") from error
    return files


def encode(files: dict[str, Content]) -> dict[str, str]:
    """Files as answers carry them."""
    return {path: base64.b64encode(content.data).decode() for path, content in files.items()}


Files = Annotated[
    dict[str, Any],
    BeforeValidator(_decode, json_schema_input_type=dict[str, str | None]),
    Field(default_factory=dict, description="base64 contents by path; null: no file"),
]
Paths = Annotated[
    list[Annotated[str, AfterValidator(clean_path)]],
    Field(default_factory=list, max_length=1000, description="paths of files to return"),
]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MemoryMB = Annotated[int, Field(alias="memory_limit_MB", ge=-1, description="-1 or 0: the service's default")]


class _Request(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)


class RunCode(_Request):
    """Run code once."""

    code: str
    language: str
    stdin: str | None = None
    compile_timeout: Seconds = 10
    run_timeout: Seconds = 10
    memory_limit_mb: MemoryMB = -1
    files: Files
    fetch_files: Paths


class CommandResult(BaseModel):
    """How one program ended."""

    status: CommandStatus
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeAnswer(BaseModel):
    """`Success`: return code 0. `Failed`: the code's own doing. `SandboxError`: says nothing about the code."""

    status: Status
    message: str
    compile_result: CommandResult | None = None
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}

"""Requests and answers on the wire: SandboxFusion's two, agentrl's sessions and judge."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from agentrl.services.common.known_fields import KnownFields
from agentrl.services.sandbox.run_files import FileContent, clean_path

MAX_FILES = 5000
Status = Literal["Success", "Failed", "SandboxError"]
CommandStatus = Literal["Finished", "Error", "TimeLimitExceeded"]


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_FILES:
        raise ValueError(f"got {len(value)} files, wanted at most {MAX_FILES}")
    files: dict[str, FileContent] = {}
    for path, text in value.items():
        if not isinstance(path, str):
            raise ValueError("got a path that is not text")
        clean = clean_path(path)
        if text is None:
            continue
        if not isinstance(text, str):
            raise ValueError(f"{path[:80]!r}: got {type(text).__name__}, wanted base64 text or null")
        try:
            files[clean] = FileContent(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{path[:80]!r}: the content is not base64: {error}") from error
    return files


def encode(files: dict[str, FileContent]) -> dict[str, str]:
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


class _Request(KnownFields):
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
    args: list[str] = Field([], max_length=0, description="SandboxFusion's, for pytest, which is no language here")


class CommandResult(BaseModel):
    """How one program ended: `execution_time` by the clock, `cpu_time` of the processors, in seconds."""

    status: CommandStatus
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    cpu_time: float | None = None


class RunCodeAnswer(BaseModel):
    """`Success`: return code 0. `Failed`: the code's own doing. `SandboxError`: says nothing about the code."""

    status: Status
    message: str
    compile_result: CommandResult | None = None
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


class OpenSession(_Request):
    """Start a session."""

    language: str = "python"
    memory_limit_mb: MemoryMB = -1
    files: Files


class SessionAnswer(BaseModel):
    """A session that is open."""

    session_id: str
    ttl_s: float = Field(description="seconds without a run after which it ends")


class RunInSession(_Request):
    """Run code that sees the variables of the session's earlier runs."""

    code: str
    language: str = "python"
    run_timeout: Seconds = 10
    fetch_files: Paths


class RunJupyter(_Request):
    """Run cells one after another in one interpreter."""

    cells: list[str] = Field(max_length=1000)
    cell_timeout: float = Field(0, ge=0, allow_inf_nan=False, description="0: only the total counts")
    total_timeout: Seconds = 45
    memory_limit_mb: MemoryMB = -1
    kernel: Literal["python3"] = "python3"
    files: Files
    fetch_files: Paths


class CellResult(BaseModel):
    """What one cell did."""

    stdout: str
    stderr: str
    display: list[dict[str, Any]]
    error: list[dict[str, Any]]


class RunJupyterAnswer(BaseModel):
    """The cells that ran. `Failed`: a limit or the end of the interpreter; what a cell raises is in its `error`."""

    status: Status
    message: str
    driver: CommandResult | None = None
    cells: list[CellResult] = []
    files: dict[str, str] = {}


class JudgeTest(KnownFields):
    """What the program reads and must print; or code that calls it and must not fail; or code behind it to run."""

    input: str | None = None
    output: str | None = None
    check: str | None = Field(None, alias="assert")
    follow: str | None = Field(None, description="runs in the program's own process; its output is yours to compare")

    @model_validator(mode="after")
    def _one_kind(self) -> JudgeTest:
        if sum(kind is not None for kind in (self.output, self.check, self.follow)) != 1:
            raise ValueError("wanted one of `output` (with `input`), `assert` and `follow`")
        return self


class Judge(_Request):
    """Run a program against tests."""

    code: str
    language: str = "python"
    tests: list[JudgeTest] = Field(min_length=1, max_length=1000)
    timeout: Seconds = Field(10, description="of each test")
    compile_timeout: Seconds = 10
    memory_limit_mb: MemoryMB = -1
    stop_early: bool = Field(False, description="start no further test once one has failed")
    files: Files


Verdict = Literal["Passed", "WrongAnswer", "RuntimeError", "TimeLimitExceeded", "Skipped", "SandboxError"]


class TestResult(BaseModel):
    """How one test went."""

    __test__: ClassVar[bool] = False
    passed: bool
    verdict: Verdict
    run_result: CommandResult | None = None


class JudgeAnswer(BaseModel):
    """`Success`: all tests passed. `SandboxError`: at least one could not be run, so the numbers say nothing."""

    status: Status
    message: str
    passed: int
    total: int
    compile_result: CommandResult | None = None
    tests: list[TestResult] = []

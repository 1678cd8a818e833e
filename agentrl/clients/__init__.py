"""How plug-ins reach services: JSON over HTTP, the sandbox protocol, and resources shared within a worker."""

from agentrl.clients.code_blocks import last_code_block, without_fence
from agentrl.clients.code_tests import CodeTest, FunctionCall, read_tests
from agentrl.clients.http import ServiceClient
from agentrl.clients.sandbox import RunResult, SandboxClient
from agentrl.clients.scope import WorkerScope
from agentrl.clients.trials import TestOutcome, judge_tests, run_tests

__all__ = [
    "CodeTest",
    "FunctionCall",
    "RunResult",
    "SandboxClient",
    "ServiceClient",
    "TestOutcome",
    "WorkerScope",
    "judge_tests",
    "last_code_block",
    "read_tests",
    "run_tests",
    "without_fence",
]

"""How plug-ins reach services: JSON over HTTP, the sandbox protocol, and what a worker's plug-ins share."""

from agentrl.clients.code_tests import CodeTest, TestOutcome, last_code_block, read_tests, run_tests
from agentrl.clients.http import ServiceClient
from agentrl.clients.sandbox import RunResult, SandboxClient
from agentrl.clients.scope import WorkerScope

__all__ = [
    "CodeTest",
    "RunResult",
    "SandboxClient",
    "ServiceClient",
    "TestOutcome",
    "WorkerScope",
    "last_code_block",
    "read_tests",
    "run_tests",
]

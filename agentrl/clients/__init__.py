"""How plug-ins reach services: JSON over HTTP, the sandbox protocol, and what a worker's plug-ins share."""

from agentrl.clients.http import ServiceClient
from agentrl.clients.sandbox import RunResult, SandboxClient
from agentrl.clients.scope import WorkerScope

__all__ = ["RunResult", "SandboxClient", "ServiceClient", "WorkerScope"]

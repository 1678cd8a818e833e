"""`python -m agentrl.services.retrieval`: the same as `agentrl serve retrieval`."""

from __future__ import annotations

import sys

from agentrl.errors import AgentRLError
from agentrl.services.retrieval.cli import serve

if __name__ == "__main__":
    try:
        sys.exit(serve(sys.argv[1:]))
    except AgentRLError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)

"""An MCP server for tests: over stdio, or over HTTP when a port is given."""

from __future__ import annotations

import logging
import os
import sys

import anyio
from mcp.server.mcpserver import Context, MCPServer

app = MCPServer("demo", log_level="CRITICAL")
logging.disable(logging.CRITICAL)
counter = {"calls": 0}


@app.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool()
def count() -> str:
    """Count the calls of this process."""
    counter["calls"] += 1
    return f"{os.getpid()} {counter['calls']}"


@app.tool()
def fail() -> str:
    """Fail in the tool itself."""
    raise ValueError("on purpose")


@app.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@app.tool()
async def nap(seconds: float) -> str:
    """Sleep."""
    await anyio.sleep(seconds)
    return "rested"


@app.tool()
def trace(ctx: Context) -> str:  # type: ignore[type-arg]
    """The trace that the call belongs to: by its metadata, and by its headers where it has any."""
    request = ctx.request_context.request
    return f"{(ctx.request_context.meta or {}).get('traceparent')} {request and request.headers.get('traceparent')}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        app.run("streamable-http", port=int(sys.argv[1]))
    else:
        app.run()

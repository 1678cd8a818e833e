"""What a tool call passes through: `toolset`, `recording`, `limits`.

`shared` is what a worker keeps for all of them, `context` what a tool may see.
"""

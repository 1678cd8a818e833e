"""The path of a tool call: `toolset`, `recording`, `limits`.

`shared` holds what a worker keeps for all trajectories; `context` is the view of the conversation that a tool gets.
"""

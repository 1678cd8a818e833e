"""From samples to finished, scored, padded trajectories.

`manager` hands out trajectories to the workers of `pools`, `worker` runs each one, `tools` runs its tool calls, and
`batching` pads the result.
"""

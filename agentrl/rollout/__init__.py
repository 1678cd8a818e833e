"""From samples to finished, scored, padded trajectories.

`manager` hands out trajectories, `worker` runs each one, `toolset` runs its tools, `batching` pads the result.
"""

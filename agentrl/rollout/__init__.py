"""From samples to finished, scored, padded trajectories.

`manager` hands trajectories out, `worker` runs each one, `toolset` runs its tools, `batching` pads the result.
"""

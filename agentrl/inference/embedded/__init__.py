"""The embedded engine: agentrl's own inference server, speaking SGLang's native HTTP API on CPU and CUDA.

Read in this order: `options` (what can be set), `server` (the routes), `engine` (the thread that runs the model),
`scheduler` (which tokens go into a step), `decoder` (the step itself), `sampler` (from logits to ids and log-probs).

This file imports nothing, so that `python -m agentrl.inference.embedded` starts fast.
"""

"""The engine of `rollout.name=hf`: transformers' `generate` behind the embedded engine's server.

For models that the embedded engine's own decoder does not know. `model` loads one and replaces its weights, `batches`
runs requests through `generate`; everything else (routes, requests, sampling, log-probs) is the embedded engine's.
"""

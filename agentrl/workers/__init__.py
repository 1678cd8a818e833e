"""Training workers: the policy, its reference and the critic, each one FSDP2 model per rank.

`fsdp_model.py` is their common part: a sharded model that runs micro-batches and takes optimizer steps whose result
depends neither on how rows are split into micro-batches nor on how they are distributed over ranks.
"""

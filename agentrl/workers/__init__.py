"""Training workers: the policy, its reference and the critic, each one FSDP2 model per rank.

`fsdp_model.py` holds what they share: a sharded model that runs micro-batches and takes optimizer steps whose result
depends neither on how rows are cut into micro-batches nor on how they are spread over ranks.
"""

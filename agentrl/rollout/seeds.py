"""A seed per request, so that samples do not depend on other requests that run at the same time."""

from __future__ import annotations

from hashlib import blake2b

from agentrl.rollout.records import Job, StepInfo


def sampling_seed(seed: int, step: StepInfo, job: Job, turn: int) -> int:
    """A stable 31-bit seed of one turn of one trajectory."""
    key = (seed, step.global_step, step.validate, job.sample.index, job.sample.data_source, job.rollout, turn)
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=4).digest(), "big") >> 1

"""Two steps from the command line with each engine besides the embedded one: what it samples is what is trained on."""

from __future__ import annotations

import pytest
from needs import python_with
from runs import Workspace, finished

from agentrl.testing.models import build_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.parametrize("engine", ["hf", "vllm", "sglang"])
def test_two_steps(engine: str, workspace: Workspace) -> None:
    python = python_with(engine)
    # vLLM's attention on a CPU takes heads of 32 features or more.
    shape = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    run = workspace.run(
        f"two_steps_{engine}",
        actor_rollout_ref__model__path=str(build_tiny_model(workspace.folder / "wide", **shape)),
        actor_rollout_ref__actor__optim__lr=1e-2,
        actor_rollout_ref__rollout__name=engine,
        actor_rollout_ref__rollout__max_num_seqs=8,
        actor_rollout_ref__rollout__server__python=python,
        actor_rollout_ref__rollout__server__start_timeout_s=600.0,  # vLLM and SGLang, on a busy machine
    )
    code, output = finished("train", str(run.recipe))
    assert code == 0, output
    assert f"{engine} is read as" not in output
    first, second = run.metrics
    assert first["actor/grad_norm"] > 0
    for metrics in (first, second):  # in the second step, the engine has the weights that the first one learned
        assert metrics["training/rollout_probs_diff_max"] < 1e-4
        assert metrics["rollout/env_error_rate"] == 0

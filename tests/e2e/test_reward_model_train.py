"""A reward model in runs from the command line: one rank in process, two with Ray, equal weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Run, Workspace, finished
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from agentrl.testing.models import build_tiny_classifier

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
STEPS = 2


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a chat template that is not the policy's."""
    return build_tiny_classifier(tmp_path_factory.mktemp("rm"), "llama", chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def single(workspace: Workspace, engine: str, classifier: Path) -> Run:
    """Two steps of one rank in the command's own process."""
    return train(workspace, "judged_single", engine, classifier)


def train(workspace: Workspace, name: str, engine: str, classifier: Path, **changes: Any) -> Run:
    run = workspace.run(
        name,
        **{
            "actor_rollout_ref__rollout__server__addresses": [engine],
            "trainer__deterministic": True,
            "trainer__save_freq": STEPS,
            "trainer__test_freq": STEPS,
            "trainer__validation_data_dir": str(workspace.folder / name / "validation"),
            "data__val_files": str(workspace.val),
            "reward_model__enable": True,
            "reward_model__model__path": str(classifier),
            "reward_model__combine__model": 0.5,
            **changes,
        },
    )
    code, output = finished("train", str(run.recipe))
    assert code == 0, output
    assert sorted(run.steps) == [0, *range(1, STEPS + 1)]
    return run


@torch.no_grad()
def score_of(classifier: Path, row: dict[str, Any]) -> float:
    """transformers' own score of a conversation, as the reward model is asked for it."""
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    ids = tokenizer(tokenizer.apply_chat_template(row["messages"], tokenize=False), add_special_tokens=False).input_ids
    model = AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    return float(model(torch.tensor([ids])).logits)


def test_rewards_are_those_of_rule_and_model(workspace: Workspace, single: Run, classifier: Path) -> None:
    folder = workspace.folder / "judged_single" / "validation"
    validated = [json.loads(line) for line in (folder / "0.jsonl").read_text().splitlines()]
    compared = 0
    for row in (*single.rollouts(1), *validated):
        parts = row["reward_extra_info"]
        if "<|" not in json.dumps(row["messages"]):  # what looks like a special token is text to the reward model
            assert parts["model_score"] == pytest.approx(score_of(classifier, row), abs=1e-4)
            compared += 1
        assert row["score"] == pytest.approx(parts["outcome_score"] + 0.5 * parts["model_score"])
    assert compared > 2
    metrics = single.steps[1]
    whole = metrics["reward_model/outcome_score/mean"] + 0.5 * metrics["reward_model/model_score/mean"]
    assert metrics["critic/score/mean"] == pytest.approx(whole, abs=1e-5)
    assert metrics["reward_model/model_score/max"] > metrics["reward_model/model_score/min"]
    assert any(name.startswith("val-aux/test/sums/model_score/mean@") for name in single.steps[STEPS])


@pytest.mark.slow
def test_two_ranks_end_with_the_weights_of_one(
    workspace: Workspace, single: Run, engine: str, classifier: Path
) -> None:
    double = train(workspace, "judged_double", engine, classifier, trainer__backend="ray", trainer__n_gpus_per_node=2)
    for step in range(1, STEPS + 1):
        one, two = single.rollouts(step), double.rollouts(step)
        assert [row["response_ids"] for row in two] == [row["response_ids"] for row in one]
        assert [row["score"] for row in two] == pytest.approx([row["score"] for row in one], abs=1e-5)
    weights = [
        load_file(run.folder / f"global_step_{STEPS}/actor/huggingface/model.safetensors") for run in (single, double)
    ]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=1e-5, rtol=0)
    start = load_file(workspace.model / "model.safetensors")
    assert max(float((value - start[name]).abs().max()) for name, value in weights[0].items()) > 1e-4
    assert sorted(path.name for path in (double.folder / f"global_step_{STEPS}").iterdir() if path.is_dir()) == [
        "actor"
    ]

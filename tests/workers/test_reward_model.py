"""The reward model against transformers, on one rank and on two."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from agentrl.config.reward_model import ClassifierConfig
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError
from agentrl.single_controller import ResourcePool, create_worker_group
from agentrl.single_controller.ray_runtime import RaySession
from agentrl.testing.models import build_tiny_classifier, build_tiny_model
from agentrl.workers.classifier import ScoreNet, WholeClassifierNet, read_classifier
from agentrl.workers.reward_model import RewardModelWorker, conversation_batch

DRAW = torch.Generator().manual_seed(0)
TALKS = [torch.randint(0, 256, (length,), generator=DRAW).tolist() for length in (3, 9, 1, 9, 30)]
TALKS += [TALKS[0]]  # twice the same
MakeJudge = Callable[..., RewardModelWorker]


def config_of(folder: Path, **fields: Any) -> RunConfig:
    config = RunConfig()
    section = config.reward_model
    section.enable, section.model.path = True, str(folder)
    for name, value in fields.items():
        setattr(section, name, value)
    return config


@pytest.fixture
def make_judge() -> Iterator[MakeJudge]:
    workers: list[RewardModelWorker] = []

    def make(folder: Path, **fields: Any) -> RewardModelWorker:
        worker = RewardModelWorker(config_of(folder, **fields))
        workers.append(worker)
        worker.init_model(10)
        return worker

    yield make
    for worker in workers:
        worker.close()


@torch.no_grad()
def plain_scores(folder: Path, per_token: bool = False) -> torch.Tensor:
    """transformers' own, one conversation at a time."""
    kind = AutoModelForTokenClassification if per_token else AutoModelForSequenceClassification
    model = kind.from_pretrained(folder).eval()
    return torch.stack([model(torch.tensor([ids])).logits.flatten()[-1] for ids in TALKS])


@pytest.mark.parametrize(
    ("family", "per_token", "net"),
    [
        ("qwen2", False, ScoreNet),
        ("qwen3", False, ScoreNet),
        ("llama", True, ScoreNet),
        ("bert", False, WholeClassifierNet),
        ("bert", True, WholeClassifierNet),
    ],
)
def test_scores_equal_those_of_transformers(
    family: str, per_token: bool, net: type, make_judge: MakeJudge, tmp_path: Path
) -> None:
    folder = build_tiny_classifier(tmp_path, family, per_token=per_token)
    expected = plain_scores(folder, per_token)
    assert expected.std() > 0.1
    for fields in ({}, {"micro_batch_size_per_gpu": 2, "use_dynamic_bsz": False}, {"forward_max_token_len_per_gpu": 7}):
        worker = make_judge(folder, **fields)
        assert isinstance(worker.model.net, WholeClassifierNet) == (net is WholeClassifierNet)
        got = worker.compute_rm_score(conversation_batch(TALKS)).batch["model_scores"]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_it_is_frozen(make_judge: MakeJudge, tmp_path: Path) -> None:
    worker = make_judge(build_tiny_classifier(tmp_path))
    assert worker.model.optimizer is None
    assert not any(parameter.requires_grad for parameter in worker.model.net.parameters())
    assert not worker.compute_rm_score(conversation_batch(TALKS)).batch["model_scores"].requires_grad


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "spread"),
    [("qwen2", ""), ("bert", ""), ("qwen2", "ulysses_sequence_parallel_size"), ("qwen2", "tensor_parallel_size")],
)
def test_two_ranks_equal_one(family: str, spread: str, ray_session: RaySession, tmp_path: Path) -> None:
    """With uneven parts, with a rank that has no conversation, and with ranks that share one model or one row."""
    config = config_of(build_tiny_classifier(tmp_path, family), forward_max_token_len_per_gpu=32)
    double = config.model_copy(deep=True)
    if spread:
        setattr(double.reward_model.fsdp_config, spread, 2)
    one, two = (
        create_worker_group(
            "local" if ranks == 1 else "ray", ResourcePool((ranks,), threads_per_rank=1), RewardModelWorker, used
        )
        for ranks, used in ((1, config), (2, double))
    )
    with one, two:
        for group in (one, two):
            group.init_model(1)
        for parts in ([[0, 2, 3, 5], [1, 4]], [[0, 1, 2, 3, 4, 5], []]):
            batch = conversation_batch(TALKS)
            expected = one.compute_rm_score(batch).batch["model_scores"]
            if not spread:
                batch.meta_info["rank_partitions"] = parts
            torch.testing.assert_close(
                two.compute_rm_score(batch).batch["model_scores"], expected, atol=1e-5, rtol=1e-5
            )


def test_a_classifier_of_another_shape_is_not_spread(make_judge: MakeJudge, tmp_path: Path) -> None:
    fsdp = RunConfig().reward_model.fsdp_config
    fsdp.ulysses_sequence_parallel_size = 2
    with pytest.raises(ConfigError, match="is no causal transformer with a linear head, so ranks"):
        make_judge(build_tiny_classifier(tmp_path, "bert"), fsdp_config=fsdp)


def test_folders_that_are_no_reward_model(tmp_path: Path) -> None:
    policy = build_tiny_model(tmp_path / "policy")
    three = build_tiny_classifier(tmp_path / "three", num_labels=3)
    nameless = build_tiny_classifier(tmp_path / "nameless")
    config = json.loads((nameless / "config.json").read_text())
    (nameless / "config.json").write_text(json.dumps({**config, "architectures": None}))
    for folder, problem in (
        (policy, r"policy' holds Qwen2ForCausalLM, wanted a classifier with one label"),
        (three, r"the classifier in '.*three' has 3 labels, wanted a classifier with one label"),
        (nameless, r"nameless' holds a model of no known class, wanted a classifier"),
        (tmp_path / "nowhere", "no model folder"),
    ):
        with pytest.raises(ConfigError, match=problem):
            read_classifier(ClassifierConfig(path=str(folder)))


def test_a_head_that_is_missing_is_never_random(make_judge: MakeJudge, tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    names = {"architectures": ["Qwen2ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps({**config, **names}))
    with pytest.raises(ConfigError, match=r"lacks 1 weights, among them \['score.weight'\]"):
        make_judge(folder)


def test_models_that_count_positions_behind_the_padding_have_fewer(tmp_path: Path) -> None:
    """RoBERTa's 20 positions are 2 to 19 for a text, whose 19th token would end the run."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = RobertaForSequenceClassification(
        RobertaConfig(vocab_size=50, max_position_embeddings=20, num_labels=1, **sizes)
    ).eval()
    model.save_pretrained(tmp_path)
    positions = read_classifier(ClassifierConfig(path=str(tmp_path))).positions
    assert positions == 18
    model(torch.full((1, positions), 7))
    with pytest.raises((RuntimeError, IndexError)):
        model(torch.full((1, positions + 1), 7))

"""The scores of the reward model in the rewards of rollouts: conversations, cuts, weights, rows that are left out."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.chat.loading import load_renderer
from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError, FailureBudgetError
from agentrl.testing.models import build_tiny_classifier, byte_tokenizer
from agentrl.trainer.model_scores import ModelScorer
from agentrl.types import Sample

TOKENIZER = byte_tokenizer()
OTHER = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
"""The template of the reward model."""


class Judge:
    """In place of the ranks of the reward model: keeps what it reads and gives the scores that it is told."""

    data_size = 2

    def __init__(self, *scores: float) -> None:
        self.scores = scores
        self.read: list[list[int]] = []

    def submit(self, method: str, batch: DataProto) -> Any:
        scores = getattr(self, method)(batch)
        return SimpleNamespace(get=lambda: scores)

    def compute_rm_score(self, batch: DataProto) -> DataProto:
        columns = batch.batch
        width = columns["input_ids"].shape[1] - 1
        self.read = [
            row[:width][seen[:width].bool()].tolist()
            for row, seen in zip(columns["input_ids"], columns["attention_mask"], strict=True)
        ]
        assert sorted(row for part in batch.meta_info["rank_partitions"] for row in part) == list(range(len(batch)))
        return DataProto({"model_scores": torch.tensor(self.scores[: len(batch)])})

    @property
    def texts(self) -> list[str]:
        return [TOKENIZER.decode(ids) for ids in self.read]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rm")
    return build_tiny_classifier(folder, chat_template=OTHER, max_position_embeddings=64)


def config_of(tiny_model_dir: Path, classifier: Path, **fields: Any) -> RunConfig:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(tiny_model_dir)
    config.actor_rollout_ref.rollout.max_failure_rate = 0.5
    config.reward_model.enable, config.reward_model.model.path = True, str(classifier)
    for name, value in fields.items():
        section = config.reward_model.model if hasattr(config.reward_model.model, name) else config.reward_model
        setattr(section, name, value)
    return config


def load(config: RunConfig) -> ModelScorer:
    scorer = ModelScorer.load(config, load_renderer(config.actor_rollout_ref.model.path))
    assert scorer is not None
    return scorer


def rollouts(*answers: str, talks: bool = True) -> tuple[DataProto, DataProto]:
    """Two turns with an observation between them for each answer, and the batch that asked for them."""
    samples = [Sample(i, [{"role": "user", "content": f"q{i}"}], "x") for i in range(len(answers))]
    prompts = [TOKENIZER(f"q{i}").input_ids for i in range(len(answers))]
    spoken = [TOKENIZER(f"c{answer}").input_ids for answer in answers]
    width = max(map(len, spoken)) + 2
    rows: dict[str, list[list[int]]] = {"responses": [], "response_mask": [], "attention": [], "rm_scores": []}
    for ids in spoken:
        mask = [1, 0, *[1] * (len(ids) - 1)]
        response = [ids[0], 46, *ids[1:]]
        pad = [0] * (width - len(response))
        rows["responses"].append([*response, *pad])
        rows["response_mask"].append([*mask, *pad])
        rows["attention"].append([*[1] * len(response), *pad])
        rows["rm_scores"].append([0] * (len(response) - 1) + [1] + pad)
    prompts_BP, responses_BR = torch.tensor(prompts), torch.tensor(rows["responses"])
    messages = [
        [*sample.prompt, {"role": "assistant", "content": f"c{answer}"}]
        for sample, answer in zip(samples, answers, strict=True)
    ]
    done = DataProto(
        {
            "prompts": prompts_BP,
            "responses": responses_BR,
            "response_mask": torch.tensor(rows["response_mask"]),
            "input_ids": torch.cat([prompts_BP, responses_BR], 1),
            "attention_mask": torch.cat([torch.ones_like(prompts_BP), torch.tensor(rows["attention"])], 1),
            "rm_scores": torch.tensor(rows["rm_scores"], dtype=torch.float32),
        },
        {
            "row": list(range(len(answers))),
            "uid": ["0-0"] * len(answers),
            "score": [1.0] * len(answers),
            "messages": messages if talks else [[] for _ in answers],
            "reward_extra_info": [{"why": answer} for answer in answers],
        },
        {"failures": [], "metrics": {"own": 1.0}},
    )
    return done, DataProto({}, {"sample": samples, "uid": ["0-0"] * len(answers)})


def test_scores_are_added_on_the_last_sampled_token(tiny_model_dir: Path, classifier: Path) -> None:
    config = config_of(tiny_model_dir, classifier)
    config.reward_model.combine.model = 0.5
    done, asked = rollouts("ab", "abcd")
    scored = load(config).score(Judge(4.0, -2.0), done, asked)  # type: ignore[arg-type]
    assert list(scored.non_tensor_batch["score"]) == [3.0, 0.0]
    assert scored.batch["rm_scores"].sum(-1).tolist() == [3.0, 0.0]
    last = [int(row.nonzero().max()) for row in scored.batch["response_mask"]]
    assert scored.batch["rm_scores"][0, last[0]] == 3.0
    extras = list(scored.non_tensor_batch["reward_extra_info"])
    assert extras[0] == {"why": "ab", "outcome_score": 1.0, "model_score": 4.0}
    metrics = scored.meta_info["metrics"]
    assert metrics["own"] == 1.0
    assert (metrics["reward_model/model_score/mean"], metrics["reward_model/outcome_score/mean"]) == (1.0, 1.0)
    assert (metrics["reward_model/left_out"], metrics["reward_model/cut"]) == (0.0, 0.0)
    assert "timing_s/agent_loop/reward_model" in metrics
    before, _ = rollouts("ab", "abcd")
    for name in ("input_ids", "response_mask", "responses"):
        assert torch.equal(scored.batch[name], before.batch[name]), "the tokens of training stay as they are"


def test_conversations_are_rendered_with_its_own_template(tiny_model_dir: Path, classifier: Path) -> None:
    judge = Judge(1.0, 1.0)
    for talks in (True, False):
        done, asked = rollouts("ab", "x", talks=talks)
        load(config_of(tiny_model_dir, classifier)).score(judge, done, asked)  # type: ignore[arg-type]
        first = "c" if talks else "c\n[assistant] "  # a loop that records nothing: each sampled turn is a message
        assert judge.texts == [f"[user] q{i}\n[assistant] {first}{text}\n" for i, text in enumerate(("ab", "x"))]


def test_without_an_input_tokenizer_it_reads_the_policy_s_tokens(tiny_model_dir: Path, classifier: Path) -> None:
    judge = Judge(1.0, 1.0)
    done, asked = rollouts("ab", "x")
    load(config_of(tiny_model_dir, classifier, input_tokenizer=None)).score(judge, done, asked)  # type: ignore[arg-type]
    kept = done.batch["attention_mask"].bool()
    assert judge.read == [ids[seen].tolist() for ids, seen in zip(done.batch["input_ids"], kept, strict=True)]


@pytest.mark.parametrize(("side", "kept"), [("left", slice(-30, None)), ("right", slice(0, 30))])
def test_long_conversations_are_cut_and_counted(side: str, kept: slice, tiny_model_dir: Path, classifier: Path) -> None:
    judge = Judge(1.0, 1.0)
    done, asked = rollouts("a" * 30, "x")
    config = config_of(tiny_model_dir, classifier, max_length=30, truncation=side)
    metrics = load(config).score(judge, done, asked).meta_info["metrics"]  # type: ignore[arg-type]
    whole = f"[user] q0\n[assistant] c{'a' * 30}\n"
    assert judge.texts[0] == whole[kept]
    assert metrics["reward_model/cut"] == 1.0
    assert metrics["reward_model/length/max"] == len(whole)


def test_the_model_s_positions_are_the_limit(tiny_model_dir: Path, classifier: Path) -> None:
    judge = Judge(1.0)
    done, asked = rollouts("a" * 100)
    load(config_of(tiny_model_dir, classifier)).score(judge, done, asked)  # type: ignore[arg-type]
    assert len(judge.read[0]) == 64
    with pytest.raises(ConfigError, match=r"reward_model.max_length: got 65, wanted at most 64"):
        load(config_of(tiny_model_dir, classifier, max_length=65))


def test_padding_at_the_end_is_no_end(tiny_model_dir: Path, tmp_path: Path) -> None:
    """transformers reads the score before trailing padding, also where the text itself ends in that token."""
    template = OTHER + "<|endoftext|><|endoftext|>"
    judge = Judge(1.0)
    done, asked = rollouts("ab")
    folder = build_tiny_classifier(tmp_path / "rm", chat_template=template)
    load(config_of(tiny_model_dir, folder)).score(judge, done, asked)  # type: ignore[arg-type]
    assert judge.texts == ["[user] q0\n[assistant] cab\n"]
    folder = build_tiny_classifier(tmp_path / "token", chat_template=template, per_token=True)
    load(config_of(tiny_model_dir, folder)).score(judge, done, asked)  # type: ignore[arg-type]
    assert judge.texts == ["[user] q0\n[assistant] cab\n<|endoftext|><|endoftext|>"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_without_a_score_is_left_out_by_name(bad: float, tiny_model_dir: Path, classifier: Path) -> None:
    done, asked = rollouts("ab", "abcd", "x")
    done.non_tensor_batch["messages"][2] = [{"role": "user", "content": [{"type": "image", "image": "x.png"}]}]
    config = config_of(tiny_model_dir, classifier)
    config.actor_rollout_ref.rollout.max_failure_rate = 0.7
    scored = load(config).score(Judge(bad, 2.0), done, asked)  # type: ignore[arg-type]
    assert list(scored.non_tensor_batch["row"]) == [1]
    assert list(scored.non_tensor_batch["score"]) == [3.0]
    first, second = scored.meta_info["failures"]
    assert (first["row"], first["stop_reason"], first["response_tokens"]) == (0, "env_error", 4)
    assert first["error"] == f"RewardError: the reward model gave the score {bad}, wanted a finite number"
    assert "text only" in second["error"]
    assert scored.meta_info["metrics"]["reward_model/left_out"] == 2.0
    config.actor_rollout_ref.rollout.max_failure_rate = 0.5
    with pytest.raises(FailureBudgetError, match="2 of 3 trajectories failed"):
        load(config).score(Judge(bad, bad, 2.0), *rollouts("ab", "b", "c"))  # type: ignore[arg-type]


def test_an_empty_trajectory_has_its_score_on_the_first_place(tiny_model_dir: Path, classifier: Path) -> None:
    done, asked = rollouts("ab")
    done.batch["response_mask"] = torch.zeros_like(done.batch["response_mask"])
    done.batch["rm_scores"] = torch.zeros_like(done.batch["rm_scores"])
    scored = load(config_of(tiny_model_dir, classifier)).score(Judge(2.0), done, asked)  # type: ignore[arg-type]
    assert np.flatnonzero(scored.batch["rm_scores"][0]).tolist() == [0]


def test_tokenizers_that_do_not_fit(tiny_model_dir: Path, classifier: Path, tmp_path: Path) -> None:
    small = build_tiny_classifier(tmp_path / "small", vocab_size=260)
    with pytest.raises(ConfigError, match=r"reward_model.model.path: vocabulary mismatch: .* knows 260 ids"):
        load(config_of(tiny_model_dir, small))
    with pytest.raises(ConfigError, match=r"input_tokenizer: got null, but the policy's tokenizer makes ids up to 26"):
        load(config_of(tiny_model_dir, small, input_tokenizer=None))
    other = byte_tokenizer()
    other.add_tokens(["<another>"])
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"input_tokenizer: got '.*other', whose vocabulary is not that of the poli"):
        load(config_of(tiny_model_dir, classifier, input_tokenizer=str(tmp_path / "other")))
    for same in ("policy", str(tiny_model_dir), str(classifier)):
        assert load(config_of(tiny_model_dir, classifier, input_tokenizer=same)).reader is not None


def test_a_classifier_that_runs_whole_is_not_spread(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = config_of(tiny_model_dir, build_tiny_classifier(tmp_path / "rm", "bert"))
    config.reward_model.fsdp_config.tensor_parallel_size = 2
    with pytest.raises(ConfigError, match=r"got ulysses_sequence_parallel_size 1 and tensor_parallel_size 2, but the"):
        load(config)


def test_a_reward_model_without_a_template(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = build_tiny_classifier(tmp_path / "rm")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match=r"has no chat template: set `reward_model.model.chat_template`"):
        load(config_of(tiny_model_dir, folder))
    judge = Judge(1.0)
    done, asked = rollouts("ab")
    load(config_of(tiny_model_dir, folder, chat_template=OTHER)).score(judge, done, asked)  # type: ignore[arg-type]
    assert judge.texts == ["[user] q0\n[assistant] cab\n"]


def test_greedy_rollouts_get_the_model_s_score_too(tiny_model_dir: Path, classifier: Path) -> None:
    """As ReMax needs them: their rewards, which are the baselines, are those of rule and model."""
    done, asked = rollouts("ab", "abcd", "x")
    greedy, _ = rollouts("g", "h")
    done.non_tensor_batch["uid"][:] = asked.non_tensor_batch["uid"][:] = ["0-0", "0-0", "0-1"]
    done.non_tensor_batch["baseline"] = np.array([1.0, 1.0, 1.0], dtype=object)
    greedy.non_tensor_batch["uid"][:] = ["0-0", "0-1"]
    greedy.non_tensor_batch["row"][:] = [3, 4]
    greedy.non_tensor_batch["messages"][0] = []  # its loop records nothing
    done.meta_info |= {"greedy": greedy, "metrics": {"rollout/greedy/failed": 1.0}}

    class Judges(Judge):
        def compute_rm_score(self, batch: DataProto) -> DataProto:
            self.scores = (2.0, 3.0, 4.0) if len(batch) == 3 else (5.0, math.nan)
            return super().compute_rm_score(batch)

    judge = Judges()
    config = config_of(tiny_model_dir, classifier)
    scored = load(config).score(judge, done, asked)  # type: ignore[arg-type]
    assert judge.texts[0] == "[user] q0\n[assistant] c\n[assistant] g\n"
    assert list(scored.non_tensor_batch["baseline"])[:2] == [6.0, 6.0]
    assert math.isnan(scored.non_tensor_batch["baseline"][2])
    assert "greedy" not in scored.meta_info
    metrics = scored.meta_info["metrics"]
    assert (metrics["rollout/greedy/score/mean"], metrics["rollout/greedy/failed"]) == (6.0, 2.0)
    assert len(scored.meta_info["failures"]) == metrics["reward_model/left_out"] == 1


def test_a_trainer_without_a_reward_model_loads_none_of_its_modules() -> None:
    """Those of ranks take a second, which a dry run need not wait for."""
    code = "import sys, agentrl.trainer.ppo; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"agentrl.workers.fsdp_model", "torch.distributed.tensor"} & set(told.stdout.split())

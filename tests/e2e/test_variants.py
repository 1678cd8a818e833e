"""Other ways to train, in this process over a running engine: PPO with a critic, weights over HTTP, several engines."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path

import httpx
import pytest
import torch
from runs import Run, Workspace, kill_listener, serving
from safetensors.torch import load_file

from agentrl.config import RunConfig
from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError
from agentrl.observability.tracker import RunInfo, Tracker
from agentrl.trainer.run import run_training
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


class Recorder(Tracker):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.metrics: dict[int, dict[str, float]] = {}
        self.stages: list[str] = []
        self.rows: dict[int, int] = {}
        self.conversations = 0
        self.closed = False

    def on_start(self, run: RunInfo) -> None:
        self.info = run

    def on_stage(self, step: int, stage: str) -> None:
        self.stages.append(stage)

    def on_rollouts(self, step: int, batch: DataProto) -> None:
        self.rows[step] = len(batch)

    def on_validation(self, step: int, conversations: object) -> None:
        self.conversations += len(list(conversations))  # type: ignore[call-overload]

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.metrics[step] = metrics

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def make(workspace: Workspace, engine: str, request: pytest.FixtureRequest):
    """Recipes over the running engine."""

    def build(**changes: object) -> Run:
        name = "".join(char if char.isalnum() else "_" for char in request.node.name)
        return workspace.run(name, **{"actor_rollout_ref__rollout__server__addresses": [engine], **changes})

    return build


def train(config: RunConfig, recorder: Recorder | None = None) -> Recorder:
    recorder = recorder or Recorder()
    run_training(config, [recorder])
    assert recorder.closed
    assert all(math.isfinite(value) for metrics in recorder.metrics.values() for value in metrics.values())
    return recorder


PPO = {
    "algorithm__adv_estimator": "gae",
    "algorithm__use_kl_in_reward": True,
    "algorithm__kl_ctrl__type": "adaptive",
    "algorithm__kl_ctrl__target_kl": 1e-3,
    "critic__optim__lr": 1e-2,
    "trainer__critic_warmup": 1,
}


def test_ppo_learns_values_first_and_resumes_with_its_critic(make) -> None:
    run = make(**PPO, trainer__total_training_steps=3, trainer__save_freq=2, trainer__deterministic=True)
    first = train(run.config)
    one, two, three = (first.metrics[step] for step in (1, 2, 3))
    assert "actor/pg_loss" not in one
    assert {"critic/vf_loss", "critic/grad_norm", "critic/vf_clipfrac", "critic/vpred_mean", "critic/lr"} <= set(one)
    assert one["critic/values/max"] == 0.0
    assert two["critic/values/max"] != 0.0
    assert "critic/vf_explained_var" in two
    assert two["actor/grad_norm"] > 0
    assert three["actor/reward_kl_penalty"] != 0.0
    assert three["actor/reward_kl_penalty_coeff"] != one["actor/reward_kl_penalty_coeff"]
    order = ["gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights"]
    assert [stage for stage in first.stages[-len(order) - 1 :] if stage != "save_checkpoint"] == order
    assert (run.folder / "global_step_2" / "critic").is_dir()
    config = run.config
    config.trainer.resume_mode = "resume_path"
    config.trainer.resume_from_path = str(run.folder / "global_step_2")
    again = train(config)
    assert again.info.resumed_from == 2
    assert list(again.metrics) == [3]
    for name in ("critic/values/mean", "critic/vf_loss", "actor/pg_loss", "actor/reward_kl_penalty_coeff"):
        assert again.metrics[3][name] == pytest.approx(three[name], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("way", ["tensor", "distributed"])
def test_weights_travel_without_files(way: str, make) -> None:
    recorder = train(make(actor_rollout_ref__rollout__weight_sync=way).config)
    assert recorder.metrics[1]["actor/grad_norm"] > 0
    assert recorder.metrics[2]["training/rollout_probs_diff_max"] < 1e-5


def test_old_log_probs_can_be_the_rollouts(make) -> None:
    one_update = {"actor_rollout_ref__actor__ppo_mini_batch_size": 4}  # a second one would see moved weights
    recorder = train(make(algorithm__rollout_correction__bypass_old_log_prob=True, **one_update).config)
    assert recorder.metrics[1]["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-4)
    assert "training/rollout_probs_diff_max" not in recorder.metrics[1]
    assert "actor/entropy" in recorder.metrics[1]


def test_a_batch_of_one_step_saves_the_pass_of_old_log_probs(make, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = ActorRolloutRefWorker.compute_log_prob

    @functools.wraps(plain)
    def counted(worker: ActorRolloutRefWorker, batch: DataProto) -> DataProto:
        calls.append(len(batch))
        return plain(worker, batch)

    monkeypatch.setattr(ActorRolloutRefWorker, "compute_log_prob", counted)
    changes = {"actor_rollout_ref__actor__ppo_mini_batch_size": 4, "trainer__save_freq": 2}
    changes |= {"actor_rollout_ref__actor__use_kl_loss": True, "trainer__resume_mode": "disable"}
    weights = []
    for saved in (True, False):
        if not saved:
            monkeypatch.setattr(RunConfig, "needs_old_log_probs", property(lambda _: True))
        run = make(**changes, trainer__deterministic=True)
        recorder = train(run.config)
        assert len(calls) == (0 if saved else 2)
        assert recorder.metrics[2].get("training/old_log_prob_skipped", 0.0) == float(saved)
        assert recorder.metrics[2]["training/rollout_probs_diff_max"] < 1e-5
        assert recorder.metrics[2]["training/non_finite_rows"] == 0
        assert recorder.metrics[2]["actor/entropy"] > 0
        weights.append(load_file(run.folder / "global_step_2/actor/huggingface/model.safetensors"))
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=1e-7, rtol=0, msg=name)


@pytest.mark.parametrize("loss_type", ["ppo_clip", "reinforce"])
def test_bypass_mode_corrects_in_the_update(make, loss_type: str) -> None:
    correction = {"bypass_old_log_prob": True, "loss_type": loss_type, "rollout_token_veto_threshold": 0.9}
    correction |= {"is_level": "sequence"} if loss_type == "reinforce" else {}
    recorder = train(make(algorithm__rollout_correction=correction).config)
    one = recorder.metrics[1]  # the second of its two mini-batches sees moved weights
    assert 0 < one["actor/rollout_rs_masked_fraction"] < 1
    assert one["actor/grad_norm"] > 0


def test_an_estimator_and_a_loss_of_the_users_own(make, workspace: Workspace) -> None:
    (workspace.folder / "own_algorithm.py").write_text(
        "def centred(outcomes, shift=0.0):\n    return outcomes - outcomes.mean() + shift\n\n\n"
        "def ratio(log_probs, old_log_probs, advantages):\n"
        "    return -advantages * (log_probs - old_log_probs).exp(), {'own': old_log_probs}\n"
    )
    changes = {"algorithm__adv_estimator": "own_algorithm.py:centred", "algorithm__adv_estimator_kwargs": {"shift": 3}}
    changes |= {"actor_rollout_ref__actor__policy_loss": {"loss_mode": "own_algorithm.py:ratio"}}
    recorder = train(make(**changes).config)  # both stand beside the recipe
    assert recorder.metrics[2]["critic/advantages/mean"] == pytest.approx(3, abs=0.5)
    assert recorder.metrics[2]["actor/own"] < 0
    assert recorder.metrics[2]["actor/grad_norm"] > 0


def test_truncated_sampling_recomputes_and_sees_the_mismatch(make) -> None:
    recorder = train(make(actor_rollout_ref__rollout__top_k=5, algorithm__rollout_correction__is_level="token").config)
    assert recorder.metrics[1]["training/rollout_probs_diff_max"] < 1e-5
    assert recorder.metrics[1]["rollout_corr/is_mean"] == pytest.approx(1.0, abs=1e-3)


def test_groups_without_variance_leave_nothing_to_learn(make, workspace: Workspace) -> None:
    flat = workspace.folder / "flat.py"
    flat.write_text("def compute_score(**kwargs):\n    return 0.5\n")
    run = make(custom_reward_function__path=str(flat), algorithm__filter_zero_variance_groups=True)
    recorder = train(run.config)
    assert recorder.rows == {1: 8, 2: 8}
    assert recorder.metrics[2]["rollout/zero_variance_groups"] == 4
    assert recorder.metrics[2]["critic/score/mean"] == 0.5
    assert "update_actor" not in recorder.stages
    assert all(v in (0, -1) for row in run.rollouts(2) for v in row["weight_versions"])


def test_groups_without_variance_are_replaced_by_others(make, workspace: Workspace) -> None:
    """Every other row always scores the same, so a step of two prompts needs two batches."""
    flat = workspace.folder / "half_flat.py"
    flat.write_text(
        "import zlib\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"
        "    return zlib.crc32(solution_str.encode()) / 2**32 if int(ground_truth) % 4 else 0.5\n"
    )
    changes = {
        "custom_reward_function__path": str(flat),
        "algorithm__filter_zero_variance_groups": True,
        "data__train_batch_size": 2,
        "data__shuffle": False,
        "trainer__resume_mode": "disable",
    }
    recorder = train(make(**changes, algorithm__max_gen_batches=None).config)
    for step in (1, 2):
        assert recorder.metrics[step]["rollout/gen_batches"] == 2
        assert recorder.metrics[step]["rollout/zero_variance_groups"] == 2
        assert recorder.metrics[step]["actor/grad_norm"] > 0
        assert recorder.rows[step] == 8
    at_once = train(make(**changes, data__gen_batch_size=4).config)
    for step in (1, 2):
        assert at_once.metrics[step]["rollout/gen_batches"] == 1
        assert at_once.rows[step] == 8
        assert at_once.metrics[step]["rollout/zero_variance_groups"] == 2
        assert at_once.metrics[step]["actor/grad_norm"] > 0
    once = train(make(**changes).config)
    assert [once.metrics[step]["rollout/gen_batches"] for step in (1, 2)] == [1, 1]
    assert once.rows == {1: 4, 2: 4}


@pytest.mark.parametrize("n", [1, 2])
def test_remax_learns_from_what_its_greedy_rollouts_do_not_get(make, n: int) -> None:
    run = make(algorithm__adv_estimator="remax", actor_rollout_ref__rollout__n=n, trainer__total_training_steps=1)
    recorder = train(run.config)
    assert recorder.rows == {1: 4 * n}  # no greedy row among them
    one = recorder.metrics[1]
    assert one["rollout/greedy/failed"] == one["rollout/greedy/groups_left_out"] == 0
    assert one["actor/grad_norm"] > 0
    mean = one["critic/score/mean"] - one["rollout/greedy/score/mean"]
    assert one["critic/advantages/min"] <= mean <= one["critic/advantages/max"]


def test_validation_only_samples_and_shows_conversations(make, workspace: Workspace) -> None:
    run = make(
        data__val_files=str(workspace.val),
        data__val_batch_size=1,
        trainer__val_only=True,
        trainer__log_val_generations=1,
        trainer__validation_data_dir=str(workspace.folder / "validation"),
        actor_rollout_ref__rollout__val_kwargs={"n": 3, "do_sample": True, "temperature": 1.0},
    )
    recorder = train(run.config)
    assert list(recorder.metrics) == [0]
    assert {"val-core/test/sums/reward/mean@3", "val-core/test/sums/reward/best@3"} <= set(recorder.metrics[0])
    assert recorder.conversations == 1
    assert len((workspace.folder / "validation" / "0.jsonl").read_text().splitlines()) == 6


def test_two_engines_serve_one_run(make, workspace: Workspace, engine: str) -> None:
    with serving(workspace.model) as second:
        recorder = train(make(actor_rollout_ref__rollout__server__addresses=[engine, second]).config)
        served = [
            httpx.get(f"{each}/model_info", trust_env=False).json()["weight_version"] for each in (engine, second)
        ]
    assert served == ["2", "2"]
    assert recorder.metrics[2]["training/rollout_probs_diff_max"] < 1e-5


@pytest.mark.slow
def test_a_run_goes_on_when_one_of_its_engines_is_lost(make, workspace: Workspace, engine: str) -> None:
    class Killer(Recorder):
        def on_rollouts(self, step: int, batch: DataProto) -> None:
            super().on_rollouts(step, batch)
            if step == 1:
                kill_listener(second)

    with serving(workspace.model) as second:
        changes = {"server__addresses": [engine, second], "server__retries": 0}
        run = make(
            trainer__total_training_steps=3, **{f"actor_rollout_ref__rollout__{k}": v for k, v in changes.items()}
        )
        recorder = train(run.config, Killer())
    assert recorder.rows == {1: 8, 2: 8, 3: 8}
    assert recorder.metrics[3]["training/rollout_probs_diff_max"] < 1e-5


def test_an_unknown_logger_is_told(make) -> None:
    config = make().config
    config.trainer.logger = ["tensorbord"]
    with pytest.raises(ConfigError, match="Did you mean 'tensorboard'"):
        run_training(config)


def test_no_export_is_left_behind() -> None:
    assert not list(Path("/dev/shm").glob(f"agentrl-weights-{os.getpid()}-*"))

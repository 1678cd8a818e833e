"""The forecast of memory and time: what it adds up, what settings change in it, and one measured peak."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_up import AR, SEVEN, run_of

from agentrl.placement import Cluster, plan
from agentrl.placement.cluster import GIB
from agentrl.placement.durations import step_time
from agentrl.placement.engine_memory import engine_memory
from agentrl.placement.forecast import GPUMemory, forecast, forecast_rank
from agentrl.placement.lengths import Lengths
from agentrl.placement.memory import LOGITS_AT_A_TIME
from agentrl.placement.model_shape import find_shape
from agentrl.testing.models import build_tiny_model

ROOT = Path(__file__).resolve().parents[2]
EIGHT = {"trainer__n_gpus_per_node": 8}
HALF = "Qwen/Qwen2.5-0.5B"
LARGE_AND_SMALL = Cluster.parse("1x2x80,1x2x24")
ACTOR, REF = "actor_rollout_ref__actor__fsdp_config__", "actor_rollout_ref__ref__fsdp_config__"


def memory_of(cluster: str = "1x8x80", model: str = SEVEN, **changes: Any) -> dict[str, GPUMemory]:
    """The forecast by pool."""
    config = run_of(cluster, model, **changes)
    return {gpu.what: gpu for gpu in forecast(config, plan(config, Cluster.parse(cluster)))}


def gib(gpu: GPUMemory, phase: str) -> dict[str, float]:
    """Parts of a phase in GiB."""
    (found,) = (each for each in gpu.phases if each.name == phase)
    return {name: size / GIB for name, size in found.parts}


def total(phase: str, **changes: Any) -> float:
    return sum(gib(memory_of(**{**EIGHT, **changes})["global_pool"], phase).values())


def test_sixteen_bytes_of_each_weight_are_shared_by_the_ranks() -> None:
    parts = gib(memory_of(**EIGHT)["global_pool"], "update")
    whole = 7.6156 * 1e9 / GIB
    assert parts["weights"] == pytest.approx(4 * whole / 8, rel=0.001)
    assert parts["gradients"] == parts["weights"]
    assert parts["optimizer"] == 2 * parts["weights"]
    assert (
        parts["other models"] == pytest.approx(4 * whole / 8, rel=0.001) or parts["other models"] > 0
    )  # the reference


def test_an_engine_fills_its_share() -> None:
    parts = gib(memory_of(**EIGHT, R__tensor_model_parallel_size=2)["global_pool"], "rollout")
    assert parts["engine's weights"] == pytest.approx(7.09, rel=0.01)
    assert parts["engine's weights"] + parts["KV cache"] == pytest.approx(0.4 * 80)


def test_a_cache_in_tokens_is_as_large_as_its_tokens() -> None:
    flag = {f"{AR}.rollout.engine_kwargs.sglang": {"max_total_tokens": 100_000}}
    config = run_of("1x8x80", **EIGHT, **flag)
    placement, shape, lengths = plan(config, Cluster.parse("1x8x80")), find_shape(SEVEN), Lengths.most(config)
    assert shape is not None
    engine = engine_memory(config, placement, shape, lengths)
    assert engine is not None
    assert engine.cache_tokens == pytest.approx(100_000)
    assert dict(engine.parts)["KV cache"] == pytest.approx(100_000 * shape.kv_elements * 2)
    assert engine.whole_at_once == pytest.approx(100_000 / lengths.longest)


def test_gpus_of_two_sizes_are_filled_each_by_its_own() -> None:
    config = run_of("1x2x80,1x2x24", HALF, trainer__nnodes=2, trainer__n_gpus_per_node=2)
    large, small = forecast(config, plan(config, LARGE_AND_SMALL))
    assert [(gpu.count, gpu.capacity) for gpu in (large, small)] == [(2, 80 * GIB), (2, 24 * GIB)]
    for gpu, size in ((large, 80), (small, 24)):
        parts = gib(gpu, "rollout")
        assert parts["engine's weights"] + parts["KV cache"] == pytest.approx(0.4 * size)
    config = run_of("1x2x80,1x2x24", HALF, R__placement="split")
    found = forecast(config, plan(config, LARGE_AND_SMALL))
    assert [(gpu.what, gpu.count) for gpu in found] == [("global_pool", 1), ("engines", 1), ("engines", 2)]


def test_the_start_holds_what_is_offloaded_later() -> None:
    offloaded = {f"{ACTOR}param_offload": True, f"{ACTOR}optimizer_offload": True, f"{REF}param_offload": True}
    pool = memory_of(**EIGHT, **offloaded)["global_pool"]
    start, rollout = gib(pool, "start"), gib(pool, "rollout")
    whole = 7.6156 * 1e9 / GIB / 8
    assert rollout["weights and optimizer of ranks"] == 0
    assert start["weights"] == pytest.approx((4 + 2) * whole, rel=0.001)
    assert (start["optimizer"], start["KV cache"]) == (0, rollout["KV cache"])
    assert gib(memory_of(**EIGHT)["global_pool"], "start")["optimizer"] == pytest.approx(8 * whole, rel=0.001)


def test_log_probs_have_micro_batches_of_their_own() -> None:
    alone = {"actor_rollout_ref__actor__use_kl_loss": False, "data__max_response_length": 4096}
    alone |= {"data__train_batch_size": 512, "actor_rollout_ref__actor__ppo_mini_batch_size": 256}
    large = {**alone, "R__log_prob_max_token_len_per_gpu": 65536}
    assert total("log-probs", **large) > total("log-probs", **alone)
    assert total("update", **large) == total("update", **alone)


def test_a_reward_model_scores_beside_the_engine() -> None:
    scored = {"reward_model__enable": True, "reward_model__model__path": HALF}
    pool = memory_of(**EIGHT, **scored)["global_pool"]
    assert [phase.name for phase in pool.phases] == ["start", "rollout", "scores", "log-probs", "update"]
    scores, rollout = gib(pool, "scores"), gib(pool, "rollout")
    assert scores["KV cache"] == rollout["KV cache"]
    assert sum(scores.values()) > sum(rollout.values())


def test_in_one_process_every_role_counts() -> None:
    pools = {"trainer__resource_pools": {"values": {"n_gpus": 1}}, "trainer__role_pools__critic": "values"}
    own = {"algorithm__adv_estimator": "gae", "trainer__backend": "local", "ray_init__address": None}
    alone = memory_of("1x1x80", HALF, **own)["global_pool"]
    assert memory_of("1x1x80", HALF, **own, **pools) == {"global_pool": alone}


def test_an_engine_with_adapters_keeps_its_weights_while_it_sleeps() -> None:
    lora = {"actor_rollout_ref__model__lora_rank": 16, "R__weight_sync": "adapter"}
    asleep = gib(memory_of(**EIGHT, **lora)["global_pool"], "update")["engine"]
    merged = gib(memory_of(**EIGHT, **{**lora, "R__weight_sync": "auto"})["global_pool"], "update")["engine"]
    assert asleep - merged == pytest.approx(2 * 7.6156 * 1e9 / GIB, rel=0.001)


def test_a_run_that_only_validates_has_no_update() -> None:
    changes = {"trainer__val_only": True, "data__val_files": "rows.parquet"}
    for cluster, phases in (("1x1x80", ["start", "rollout"]), ("1x0", ["start", "rollout"])):
        config = run_of(cluster, HALF, **changes)
        placement = plan(config, Cluster.parse(cluster))
        (found,) = forecast(config, placement)
        assert [phase.name for phase in found.phases] == phases
        assert step_time(config, placement, Lengths.most(config)) is None


def test_the_embedded_engine_decodes_as_many_as_it_has_slots() -> None:
    config = run_of("1x1x80", HALF, R__name="embedded")
    placement = plan(config, Cluster.parse("1x1x80"))
    shape = find_shape(HALF)
    assert shape is not None
    engine = engine_memory(config, placement, shape, Lengths.most(config))
    assert engine is not None
    embedded = config.actor_rollout_ref.rollout.embedded
    assert engine.at_once == engine.whole_at_once == embedded.max_running_requests
    # Its slots have the length that the run allows, however short the rows are; or that of its own key.
    rows = engine_memory(config, placement, shape, Lengths.of_prompts(config, [10]))
    assert rows is not None
    assert rows.cache_tokens == engine.cache_tokens
    embedded.max_context_length = 2 * Lengths.most(config).longest
    longer = engine_memory(config, placement, shape, Lengths.most(config))
    assert longer is not None
    assert longer.cache_tokens == 2 * engine.cache_tokens


def test_engines_of_their_own_share_nothing() -> None:
    found = memory_of("1x8x80", R__placement="split", trainer__n_gpus_per_node=4)
    assert set(found) == {"global_pool", "engines"}
    assert [phase.name for phase in found["global_pool"].phases] == ["log-probs", "update"]
    assert found["engines"].count == 4


@pytest.mark.parametrize(
    ("phase", "changes"),
    [
        ("update", {"actor_rollout_ref__actor__ppo_max_token_len_per_gpu": 4096}),
        ("update", {f"{REF}param_offload": True}),
        ("rollout", {f"{ACTOR}optimizer_offload": True}),
        ("rollout", {f"{ACTOR}param_offload": True}),
        ("rollout", {"R__gpu_memory_utilization": 0.3}),
        (
            "update",
            {f"{ACTOR}ulysses_sequence_parallel_size": 2, "actor_rollout_ref__actor__ppo_max_token_len_per_gpu": 512},
        ),
        ("update", {"actor_rollout_ref__model__lora_rank": 16}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)).rpartition("__")[2],
)
def test_what_saves_memory_does(phase: str, changes: dict[str, Any]) -> None:
    own = {"data__train_batch_size": 64, "actor_rollout_ref__actor__ppo_mini_batch_size": 64}
    own |= {"data__max_response_length": 4096}
    assert total(phase, **own, **changes) < total(phase, **own)


def test_gradient_checkpointing_saves_most() -> None:
    key = "actor_rollout_ref__model__enable_gradient_checkpointing"
    assert total("update", **{key: False}) > 2 * total("update", **{key: True})


def test_a_step_takes_longer_with_more_to_do() -> None:
    def low(cluster: str, **changes: Any) -> float:
        config = run_of(cluster, **{**EIGHT, **changes})
        found = step_time(config, plan(config, Cluster.parse(cluster)), Lengths.most(config))
        assert found is not None
        assert found.low < found.high
        return found.low

    usual = low("1x8x80")
    assert low("1x8x80@A100") > 2 * usual
    assert low("1x8x80", data__train_batch_size=2048) > usual
    assert low("1x8x80", data__max_response_length=4096) > usual
    assert low("2x8x80", trainer__nnodes=2) < usual


def test_lengths_of_the_rows_count() -> None:
    config = run_of("1x8x80", **EIGHT)
    rows = Lengths.of_prompts(config, [10, 30])
    assert (rows.prompt, rows.usual_prompt, rows.source) == (30, 20, "2 prompts of the rows")
    assert Lengths.of_prompts(config, []) == Lengths.most(config)
    placement = plan(config, Cluster.parse("1x8x80"))
    short, long = (step_time(config, placement, lengths) for lengths in (rows, Lengths.most(config)))
    assert short is not None
    assert long is not None
    assert short.tokens < long.tokens


def test_logits_are_in_chunks_of_the_size_that_the_workers_have() -> None:
    from agentrl.workers import token_stats

    assert token_stats.LOGITS_PER_CHUNK == LOGITS_AT_A_TIME


@pytest.mark.slow  # a figure of this machine, which other work on it changes
def test_a_measured_peak(tmp_path: Path) -> None:
    """A process that takes an update needs what the forecast says; benchmarks/memory_forecast.py has larger models."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from memory_forecast import config_of

    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "vocab_size": 16_000}
    model = str(build_tiny_model(tmp_path / "model", **sizes))
    script = [sys.executable, str(ROOT / "benchmarks" / "memory_forecast.py"), model, "--one", "plain"]
    done = subprocess.run(
        [*script, "--tokens", "512", "--threads", "1"], check=True, capture_output=True, text=True, timeout=240
    )
    measured = float(done.stdout.split()[-1])
    expected = forecast_rank(config_of(model, 512, checkpointing=False), Cluster.parse("1x0"))
    assert expected == pytest.approx(measured, rel=0.15)

"""Real engines over HTTP, real workers: Ray actors and the local backend give the same rollouts."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from rollout_helpers import MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.errors import FailureBudgetError, PluginError
from agentrl.inference.fleet import EngineFleet
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.pools import scheduling
from agentrl.single_controller.ray_runtime import init_ray

MakeManager = Callable[..., AgentLoopManager]
TENSORS = ("input_ids", "response_mask", "rollout_log_probs", "weight_versions")


@pytest.fixture(scope="module")
def ray_session() -> Iterator[None]:
    with init_ray(num_cpus=2):
        yield


@pytest.fixture(scope="module")
def servers(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineFleet]:
    """Two deterministic embedded engines of the tiny model."""
    config = RunConfig.model_validate(
        {
            "data": {"max_prompt_length": 1024, "max_response_length": 512},
            "actor_rollout_ref": {
                "model": {"path": str(tiny_model_dir)},
                "rollout": {
                    "name": "embedded",
                    "server": {"launch": 2},
                    "embedded": {"threads": 1, "max_running_requests": 8},
                },
            },
            "trainer": {"device": "cpu", "deterministic": True},
        }
    )
    with EngineFleet.start(config, tmp_path_factory.mktemp("logs")) as servers:
        for address in servers.addresses:  # as a run does with its first weights
            named = httpx.post(f"{address}/update_weight_version", json={"new_version": "0"}, trust_env=False)
            assert named.json()["success"]
        yield servers


@pytest.fixture
def real_config(config: RunConfig) -> RunConfig:
    config.trainer.deterministic = True
    rollout = config.actor_rollout_ref.rollout
    rollout.multi_turn.max_tokens_per_turn = 12
    rollout.server.request_timeout_s = 60
    rollout.agent.num_workers = 2
    return config


def roll_out(config: RunConfig, addresses: list[str], batch: DataProto, backend: str) -> DataProto:
    manager = AgentLoopManager(config, addresses, backend=backend)
    try:
        return manager.generate_sequences(batch)
    finally:
        manager.shutdown()


def by_row(out: DataProto) -> dict[int, dict[str, Any]]:
    """Unpadded tokens of each row: batches pad to their own longest."""
    rows = {}
    for i, row in enumerate(out.non_tensor_batch["row"]):
        real = out.batch["attention_mask"][i].bool()
        valid = real[out.batch["prompts"].shape[1] :]
        rows[row] = {"input_ids": out.batch["input_ids"][i][real].tolist()} | {
            name: out.batch[name][i][valid].tolist() for name in TENSORS[1:]
        }
    return rows


def test_ray_and_local_give_the_same_tokens_over_real_engines(
    ray_session: None, servers: EngineFleet, real_config: RunConfig
) -> None:
    batch = batch_of([sample(i, f"{i}+4") for i in range(4)], n=2, global_step=1, weight_version=0)
    local = roll_out(real_config, servers.addresses, batch, "local")
    remote = roll_out(real_config, servers.addresses, batch, "ray")
    assert list(local.non_tensor_batch["row"]) == list(range(8))
    assert by_row(local) == by_row(remote)
    assert list(local.non_tensor_batch["score"]) == list(remote.non_tensor_batch["score"])
    sampled = local.batch["response_mask"] == 1
    assert (local.batch["rollout_log_probs"][sampled] < 0).all()
    assert (local.batch["weight_versions"][sampled] == 0).all()
    assert len({tuple(row["input_ids"]) for row in by_row(local).values()}) == 8


def test_the_engines_log_probs_are_the_models(
    servers: EngineFleet, real_config: RunConfig, tiny_model_dir: Path
) -> None:
    from transformers import AutoModelForCausalLM

    out = roll_out(real_config, servers.addresses, batch_of([sample(i) for i in range(4)]), "local")
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    with torch.no_grad():
        logits = model(
            input_ids=out.batch["input_ids"],
            attention_mask=out.batch["attention_mask"],
            position_ids=out.batch["position_ids"],
        ).logits
    width = out.batch["responses"].shape[1]
    expected = logits[:, -width - 1 : -1].log_softmax(-1).gather(-1, out.batch["responses"][..., None])[..., 0]
    mask = out.batch["response_mask"].bool()
    torch.testing.assert_close(out.batch["rollout_log_probs"][mask], expected[mask], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(
    ray_session: None, config: RunConfig, make_engine: MakeEngine, play: Any
) -> None:
    config.actor_rollout_ref.rollout.agent.num_workers = 2
    engine = make_engine()
    answers = play("#### 7")
    killed: list[int] = []

    def respond(payload: dict[str, Any]) -> Any:
        if len(engine.requests) == 4 and not killed:
            killed.append(own_workers()[0])
            os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.2)
        return answers(payload)

    engine.engine.respond = respond
    out = roll_out(config, [engine.address], batch_of([sample(i) for i in range(24)]), "ray")
    assert killed
    assert list(out.non_tensor_batch["row"]) == list(range(24))


@pytest.mark.slow
def test_workers_record_for_all_and_replay_what_any_recorded(
    ray_session: None, config: RunConfig, make_engine: MakeEngine, tmp_path: Path
) -> None:
    rollout = config.actor_rollout_ref.rollout
    rollout.agent.num_workers = rollout.agent.max_in_flight = 2
    rollout.multi_turn.tool_cache.mode, rollout.multi_turn.tool_cache.path = "record", str(tmp_path)
    engine = make_engine().address
    batch = batch_of([sample(i) for i in range(8)])
    recorded = by_row(roll_out(config, [engine], batch, "ray"))
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    rollout.multi_turn.tool_cache.mode = "replay"
    assert by_row(roll_out(config, [engine], batch, "local")) == recorded


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_how_many_have_ended_is_told_meanwhile(
    ray_session: None, config: RunConfig, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(scheduling, "PROGRESS_S", 0.01)
    config.actor_rollout_ref.rollout.agent.num_workers = config.actor_rollout_ref.rollout.agent.max_in_flight = 1
    engine, two_ended = make_engine(), threading.Event()
    answers = engine.engine.respond

    def respond(payload: dict[str, Any]) -> Any:
        if len(engine.requests) == 5:  # the first request of the third conversation: each has two
            assert two_ended.wait(60)
        return answers(payload)

    engine.engine.respond = respond
    manager = AgentLoopManager(config, [engine.address], backend=backend)
    try:
        told: list[tuple[int, int]] = []

        def progress(done: int, total: int) -> None:
            told.append((done, total))
            if done == 2:
                two_ended.set()

        manager.on_progress = progress
        assert len(manager.generate_sequences(batch_of([sample(i) for i in range(4)]))) == 4
        assert {total for _, total in told} == {4}
        assert max(done for done, _ in told) in (2, 3, 4)
        told.clear()
        manager.on_progress = None
        assert len(manager.generate_sequences(batch_of([sample(0)]))) == 1
        assert told == []
    finally:
        manager.shutdown()


def own_workers() -> list[int]:
    """Agent-loop workers below this process: other runs on this machine have theirs."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "ray::AgentLoopActor" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def test_errors_cross_the_process_border(ray_session: None, config: RunConfig, make_engine: MakeEngine) -> None:
    engine = make_engine()
    manager = AgentLoopManager(config, [engine.address], backend="ray")
    with pytest.raises(PluginError, match="nobody"):
        manager.generate_sequences(batch_of([sample(0, agent_name="nobody")]))
    engine.stop()
    with pytest.raises(FailureBudgetError, match="no engine is left"):
        manager.generate_sequences(batch_of([sample(0)]))
    other = make_engine()
    manager.set_addresses([other.address])
    assert len(manager.generate_sequences(batch_of([sample(0)]))) == 1
    manager.shutdown()
    manager.shutdown()
    deadline = time.monotonic() + 10
    while own_workers():
        assert time.monotonic() < deadline
        time.sleep(0.1)

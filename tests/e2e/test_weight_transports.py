"""Weights reach real engines by every transport: afterwards the engines' log-probs are the trainer's own.

With the embedded engine here; with SGLang on a CPU where `AGENTRL_SGLANG_PYTHON` names a Python that has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from engine_servers import free_port
from needs import python_with

from agentrl.config.root import RunConfig
from agentrl.inference.client import EngineClient
from agentrl.single_controller import Dispatch, ResourcePool, WorkerGroup, create_worker_group, register
from agentrl.single_controller.ray_runtime import init_ray
from agentrl.testing.batches import random_batch
from agentrl.trainer.weight_sync import WeightSync
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
BATCH = random_batch([(3, 20), (7, 12), (5, 16), (4, 9)], 261, seed=1)
SMALL_BUCKETS = 40_000
"""Bytes: the tiny model then travels in several."""


@contextmanager
def served(model: Path, python: str | None, folder: Path) -> Iterator[str]:
    """An engine as a process of its own: embedded, or SGLang in another environment."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = dict(os.environ)
    arguments = [sys.executable, "-m", "agentrl.inference.embedded", "--model", str(model), "--port", str(port)]
    arguments += ["--threads", "1", "--device", "cpu"]
    if python is not None:
        # SGLang on a CPU without AMX imports this from vLLM, and never calls it: it takes torch's own path.
        (folder / "vllm").mkdir(exist_ok=True)
        (folder / "vllm" / "__init__.py").touch()
        (folder / "vllm" / "_custom_ops.py").write_text(
            "def rotary_embedding(*_, **__):\n    raise NotImplementedError\n"
        )
        environment |= {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}
        arguments = [python, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port)]
        arguments += ["--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"]
        arguments += ["--mem-fraction-static", "0.2", "--max-total-tokens", "4096", "--dtype", "float32"]
        arguments += ["--sleep-on-idle", "--host", "127.0.0.1"]
    log = folder / f"engine_{port}.log"
    with log.open("wb") as out, subprocess.Popen(arguments, stdout=out, stderr=out, env=environment) as process:
        try:
            wait_until_healthy(address, process, log)
            yield address
        finally:
            process.kill()


def wait_until_healthy(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{address}/health_generate", timeout=60.0).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(f"not healthy: {log.read_text()[-3000:]}")


class NudgedWorker(ActorRolloutRefWorker):
    """An actor whose weights can be changed without gradients, which need four times the memory."""

    @register(Dispatch.ONE_TO_ALL)
    def nudge(self) -> None:
        """Make all weights a little larger."""
        with torch.no_grad():
            for parameter in self.model.net.parameters():
                parameter.mul_(1.02)


@contextmanager
def ranks_of(model: Path, count: int) -> Iterator[WorkerGroup]:
    """The actor on one rank in this process, or on two of a private cluster."""
    with ExitStack() as stack:
        backend = "local" if count == 1 else "ray"
        if count > 1:
            stack.enter_context(init_ray(num_cpus=count))
        pool = ResourcePool([count], threads_per_rank=1)
        config = RunConfig()
        config.actor_rollout_ref.model.path = str(model)
        config.actor_rollout_ref.rollout.update_weights_bucket_megabytes = 64
        group = stack.enter_context(create_worker_group(backend, pool, NudgedWorker, config, "actor"))  # type: ignore[arg-type]
        group.submit("init_model", 10).get()
        yield group


def own_log_probs(actor: WorkerGroup) -> list[list[float]]:
    """The trainer's log-probs of each row's response."""
    found = actor.compute_log_prob(BATCH).batch["old_log_probs"]
    return [row[mask.bool()].tolist() for row, mask in zip(found, BATCH.batch["response_mask"], strict=True)]


def log_probs_of(address: str) -> list[list[float]]:
    """An engine's log-probs of the same tokens, as it reports those of a prompt."""
    found = []
    width = BATCH.batch["responses"].shape[1]
    for ids, attention, mask in zip(
        *(BATCH.batch[name] for name in ("input_ids", "attention_mask", "response_mask")), strict=True
    ):
        body = {
            "input_ids": ids[attention.bool()].tolist(),
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        answer = httpx.post(f"{address}/generate", json=body, timeout=300.0).json()
        values = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]]
        chosen = torch.cat([torch.zeros(len(ids) - width), mask]).bool()[attention.bool()]
        found.append([value for value, wanted in zip(values, chosen.tolist(), strict=True) if wanted])
    return found


def sync_and_compare(
    actor: WorkerGroup, addresses: Sequence[str], mode: Any, version: int, folder: Path, bucket: int = SMALL_BUCKETS
) -> float:
    """Change the weights, bring them to the engines, and compare. The seconds of the sync."""
    before = own_log_probs(actor)
    actor.nudge()
    after = own_log_probs(actor)
    assert max_difference(before, after) > 1e-3

    def client(address: str) -> EngineClient:
        return EngineClient(address, vocab_size=10**6, request_timeout_s=600.0, retries=0)

    sync = WeightSync(actor, client, mode=mode, folder=folder, model_bytes=10**9, timeout_s=600.0, bucket_bytes=bucket)
    began = time.monotonic()
    assert sync.sync(version, addresses) == list(addresses)
    seconds = time.monotonic() - began
    for address in addresses:
        assert max_difference(log_probs_of(address), after) < 1e-4
    sync.close()
    assert not list(Path("/dev/shm").glob(f"agentrl-*-{os.getpid()}-*"))
    return seconds


def max_difference(one: list[list[float]], other: list[list[float]]) -> float:
    return max(abs(a - b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def embedded(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("engines")
    with served(tiny_model_dir, None, folder) as one, served(tiny_model_dir, None, folder) as two:
        yield [one, two]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_embedded_engine_takes_weights_by_every_transport(
    ranks: int, embedded: list[str], tiny_model_dir: Path, tmp_path: Path
) -> None:
    with ranks_of(tiny_model_dir, ranks) as actor:
        for version, mode in enumerate(("ipc", "distributed", "disk", "tensor", "distributed"), start=1):
            sync_and_compare(actor, embedded, mode, version, tmp_path)
        sync_and_compare(actor, embedded[1:], "distributed", 9, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_sglang_takes_weights_by_group_and_by_disk(
    ranks: int, smollm2_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one server, then with two."""
    python = python_with("sglang")
    with ExitStack() as stack:
        addresses: list[str] = []
        actor = None
        version = 1
        for _ in range(2):
            addresses.append(stack.enter_context(served(smollm2_folder, python, tmp_path)))
            actor = actor or stack.enter_context(ranks_of(smollm2_folder, ranks))
            for mode in ("distributed", "distributed", "disk"):
                seconds = sync_and_compare(actor, addresses, mode, version, tmp_path, 2**29)
                version += 1
                with capsys.disabled():
                    sys.stdout.write(f"\n{mode}: {ranks} ranks, {len(addresses)} servers: {seconds:.2f} s\n")

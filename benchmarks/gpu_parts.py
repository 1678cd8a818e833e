"""The parts of `gpu_first_run.sh`: each writes FOLDER/PART.json. `--report` makes one file of them.

machine     GPU, memory, versions
rig         the tests of what only a GPU runs
decode      tokens a second of the embedded engine (it has no CUDA graphs)
update      tokens a second and use of the GPU's arithmetic of a packed update, Qwen2.5-0.5B's shape (wanted: 40 %), and
            its peak of memory beside the forecast
phases      how long parameters and moments take to leave the GPU and to come back
transport   how long new weights take to an embedded engine, by ipc and by disk, and whether both bring the same
demo        `agentrl demo`, shortened: does a model learn here
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.config.root import RunConfig
    from agentrl.single_controller import WorkerGroup

ROOT = Path(__file__).parents[1]
WANTED_MFU = 0.4
HALF_BILLION = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "initializer_range": 0.02,
}
TINY = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
TESTS = (
    "tests/workers/test_gpu.py",
    "tests/workers/test_offload.py",
    "tests/inference/embedded/test_engine_gpu.py",
    "tests/inference/embedded/test_engine_memory.py::test_weights_leave_a_gpu_and_come_back",
)
ONLY_SIMULATED = "tests/workers/test_offload.py::test_one_and_two_ranks_learn_the_same_with_offloading"
TINY_TESTS = ("tests/workers/test_gpu.py::test_types_that_auto_means",)
TOKENS_OF_A_MICRO_BATCH = (16_384, 8192, 4096, 2048)
DEMO = ("trainer.total_training_steps=40", "trainer.test_freq=40")
Numbers = dict[str, Any]


def cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def wait() -> None:
    """Until the GPU has done everything."""
    import torch

    if cuda():
        torch.cuda.synchronize()


def config_of(work: Path, *, tiny: bool) -> RunConfig:
    """A run of one rank; its model is built by the first part that needs it."""
    from agentrl.config.root import RunConfig
    from agentrl.testing.models import build_tiny_model

    folder = work / "model"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=work) as parent:  # a part that is killed meanwhile leaves no half of it
            build_tiny_model(Path(parent) / "model", **(TINY if tiny else HALF_BILLION)).rename(folder)
    config = RunConfig()
    config.trainer.backend, config.algorithm.adv_estimator = "local", "grpo"
    policy = config.actor_rollout_ref
    policy.model.path, policy.model.enable_gradient_checkpointing = str(folder), False
    policy.rollout.name, policy.rollout.n = "embedded", 1
    return config


@contextmanager
def actor_of(config: RunConfig) -> Iterator[WorkerGroup]:
    """One rank with the model, in this process."""
    from agentrl.single_controller import ResourcePool, create_worker_group
    from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker

    with create_worker_group("local", ResourcePool([1], use_gpu=cuda()), ActorRolloutRefWorker, config) as group:
        group.submit("init_model", 1).get()
        yield group


def machine(work: Path, tiny: bool) -> Numbers:
    import torch
    import transformers

    found: Numbers = {"torch": torch.__version__, "transformers": transformers.__version__, "cpus": os.cpu_count()}
    if cuda():
        free, total = torch.cuda.mem_get_info()
        found |= {"gpu": torch.cuda.get_device_name(0), "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
        found |= {"free_gib": round(free / 2**30, 1), "total_gib": round(total / 2**30, 1)}
    return found


def rig(work: Path, tiny: bool) -> Numbers:
    import pytest

    outcomes: Counter[str] = Counter()

    class Count:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" or report.outcome != "passed":
                outcomes[report.outcome] += 1

    tests = TINY_TESTS if tiny else (*TESTS, "--deselect", ONLY_SIMULATED)
    # What warns on a GPU is to be read in the log, and fails no test here.
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-W", "default", "--rootdir", str(ROOT)]
    code = pytest.main([*options, *tests], plugins=[Count()])
    return {**outcomes, "ok": code == 0}


def decode(work: Path, tiny: bool) -> Numbers:
    from agentrl.inference.embedded.engine import Engine
    from agentrl.inference.embedded.options import EngineOptions
    from agentrl.inference.embedded.protocol import parse_generate

    requests, prompt, answer = (4, 8, 8) if tiny else (128, 256, 256)
    path = config_of(work, tiny=tiny).actor_rollout_ref.model.path
    engine = Engine(EngineOptions(model=path, max_context_length=1024), lambda heard: None)
    params = {"max_new_tokens": answer, "ignore_eos": True}
    seconds = []
    for turn in range(2):  # the first one allocates
        ids = [[(7 * row + place + turn) % 500 for place in range(prompt)] for row in range(requests)]
        calls = [
            parse_generate({"input_ids": i, "sampling_params": params}, engine, number=n) for n, i in enumerate(ids)
        ]
        began = time.perf_counter()
        engine.submit([request for call in calls for request in call.requests])
        engine.drain()
        while engine.scheduler.busy:
            engine.step()
        wait()
        seconds.append(time.perf_counter() - began)
    return {"requests": requests, "tokens_per_s": round(requests * answer / seconds[-1]), "cuda_graphs": False}


def update(work: Path, tiny: bool) -> Numbers:
    from agentrl.testing.batches import random_batch

    rows, prompt, response = (4, 8, 16) if tiny else (64, 256, 768)
    config = config_of(work, tiny=tiny)
    config.data.max_prompt_length, config.data.max_response_length, config.data.train_batch_size = (
        prompt,
        response,
        rows,
    )
    config.actor_rollout_ref.actor.ppo_mini_batch_size = rows
    expected = _fit(config)
    mfu: list[float] = []
    seconds, metrics = [], {}
    with actor_of(config) as actor:
        batch = random_batch([(prompt, response)] * rows, 500)
        for _ in range(2 if tiny else 4):
            began = time.perf_counter()
            metrics = actor.update_actor(batch).meta_info["metrics"]
            wait()
            seconds.append(time.perf_counter() - began)
            mfu += [metrics["perf/mfu/actor"]] if "perf/mfu/actor" in metrics else []
    found: Numbers = {
        "tokens_per_s": round(rows * (prompt + response) / min(seconds)),
        "micro_batch_tokens": config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu,
        "forecast_gib": round(expected / 2**30, 2),
    }
    if mfu:
        found |= {"mfu": round(max(mfu), 3), "wanted_mfu": WANTED_MFU, "ok": max(mfu) >= WANTED_MFU}
    if "perf/max_memory_allocated_gb" in metrics:
        found["peak_gib"] = round(metrics["perf/max_memory_allocated_gb"], 2)
    return found


def _fit(config: RunConfig) -> float:
    """Take the largest micro-batch that fits into the GPU's memory, by the forecast; the bytes of the update."""
    import torch

    from agentrl.placement.forecast import forecast
    from agentrl.placement.of_run import place

    room = 0.85 * torch.cuda.mem_get_info()[0] if cuda() else float("inf")
    expected = 0.0
    for tokens in TOKENS_OF_A_MICRO_BATCH:
        config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu = tokens
        (rank,) = forecast(config, place(config))
        (phase,) = (phase for phase in rank.phases if phase.name == "update")
        expected = sum(size for what, size in phase.parts if what not in ("engine", "processes"))
        if expected <= room:
            break
    return expected


def phases(work: Path, tiny: bool) -> Numbers:
    import torch

    from agentrl.testing.batches import random_batch

    config = config_of(work, tiny=tiny)
    fsdp = config.actor_rollout_ref.actor.fsdp_config
    fsdp.param_offload = fsdp.optimizer_offload = cuda()
    seconds: dict[str, float] = {}
    with actor_of(config) as actor:
        actor.update_actor(random_batch([(4, 4)] * 4, 500))
        for name, move in (("load", actor.keep_on_device), ("offload", actor.yield_device)):
            wait()
            began = time.perf_counter()
            move()
            wait()
            seconds[f"{name}_s"] = round(time.perf_counter() - began, 3)
        held = round(torch.cuda.memory_allocated() / 2**30, 2) if cuda() else 0.0
    return {**seconds, "left_on_gpu_gib": held}


def transport(work: Path, tiny: bool) -> Numbers:
    from agentrl.errors import AgentRLError
    from agentrl.inference.fleet import EngineFleet
    from agentrl.testing.batches import random_batch

    config = config_of(work, tiny=tiny)
    config.data.max_prompt_length = config.data.max_response_length = 64
    config.actor_rollout_ref.actor.optim.lr = 1e-3
    config.actor_rollout_ref.rollout.embedded.threads = 1 if tiny else None
    size = sum(file.stat().st_size for file in (work / "model").glob("*.safetensors"))
    found: Numbers = {"mb": round(size / (2e6 if cuda() else 1e6), 1), "ok": False}  # engines on a GPU have bfloat16
    scores: dict[str, list[float]] = {}
    with EngineFleet.start(config, work / "logs", wait=cuda()) as fleet, actor_of(config) as actor:
        actor.update_actor(random_batch([(4, 4)] * 4, 200))
        (address,) = fleet.wait().addresses
        scores["before"] = _scores(address)
        for number, way in enumerate(("ipc", "disk")):
            try:
                found[f"{way}_s"] = _sync(actor, way, address, 2 * number)
                scores[way] = _scores(address)
            except (AgentRLError, RuntimeError) as error:
                found[f"{way}_error"] = f"{type(error).__name__}: {error}"[:500]
    if {"ipc", "disk"} <= scores.keys():
        moved, apart = (_most_apart(scores[each], scores["disk"]) for each in ("before", "ipc"))
        found |= {"moved": moved, "ipc_differs": apart, "ok": apart < 1e-4 < moved}
    return found


def _sync(actor: WorkerGroup, way: Any, address: str, version: int) -> float:
    """Seconds of an update with pause and continue; one before it makes connections."""
    from agentrl.inference.client import EngineClient
    from agentrl.trainer.weight_sync import WeightSync

    def client(address: str) -> EngineClient:
        return EngineClient(address, vocab_size=1, request_timeout_s=60.0, retries=0)

    sync = WeightSync(actor, client, mode=way, folder=None, model_bytes=2**31, timeout_s=60.0)
    try:
        sync.sync(version, [address])
        began = time.perf_counter()
        sync.sync(version + 1, [address])
        return round(time.perf_counter() - began, 3)
    finally:
        sync.close()


def _scores(address: str) -> list[float]:
    """An engine's log-probs of a prompt."""
    import httpx

    body = {"input_ids": list(range(3, 35)), "sampling_params": {"max_new_tokens": 1}, "return_logprob": True}
    answer = httpx.post(f"{address}/generate", json={**body, "logprob_start_len": 0}, timeout=60.0, trust_env=False)
    return [float(entry[0]) for entry in answer.raise_for_status().json()["meta_info"]["input_token_logprobs"][1:]]


def _most_apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def demo(work: Path, tiny: bool) -> Numbers:
    from rich.console import Console

    from agentrl.cli.demo.command import DemoOptions, run_demo

    options = DemoOptions(
        work / "demo", prepare_only=tiny, warm_start_steps=2 if tiny else None, overrides=[] if tiny else [*DEMO]
    )
    summary = run_demo(options, Console(stderr=True))
    if summary is None:
        return {"ok": (work / "demo" / "warm_start" / "huggingface").is_dir()}
    return {**summary.numbers(), "ok": summary.success_after > summary.success_before}


PARTS: dict[str, Callable[[Path, bool], Numbers]] = {
    "machine": machine,
    "rig": rig,
    "decode": decode,
    "update": update,
    "phases": phases,
    "transport": transport,
    "demo": demo,
}


def run(name: str, folder: Path, *, tiny: bool) -> None:
    """Run a part; an error costs its own numbers only."""
    began = time.perf_counter()
    work = folder / "work"
    work.mkdir(exist_ok=True)
    try:
        found = PARTS[name](work, tiny)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:500], "log": traceback.format_exc()[-2000:]}
    found["part_s"] = round(time.perf_counter() - began, 1)
    (folder / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")


def report(folder: Path, out: Path) -> None:
    """One JSON of what the parts left: their numbers, or why there are no numbers."""
    found: dict[str, Numbers] = {}
    for name in PARTS:
        end, numbers = folder / f"{name}.end", folder / f"{name}.json"
        if numbers.is_file():
            found[name] = json.loads(numbers.read_text(encoding="utf-8"))
            continue
        code, first = end.read_text().split() if end.is_file() else ("-1", name)
        log = folder / f"{first}.log"
        why = "it took longer than its limit" if code in ("124", "137") else f"it ended with exit code {code}"
        found[name] = {"error": why, "log": log.read_text(errors="replace")[-2000:] if log.is_file() else ""}
    out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(out.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--report", type=Path, metavar="OUT")
    options = parser.parse_args()
    for name in options.parts:
        run(name, options.folder, tiny=options.tiny)
    if options.report is not None:
        report(options.folder, options.report)


if __name__ == "__main__":
    main()

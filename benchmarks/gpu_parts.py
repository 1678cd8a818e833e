"""The parts of `gpu_first_run.sh`: each prints one JSON object.

machine     GPU, memory, versions
rig         the tests of what only a GPU runs
decode      tokens a second of the embedded engine (it has no CUDA graphs)
update      tokens a second and use of the GPU's arithmetic of a packed update, Qwen2.5-0.5B's shape (wanted: 40 %)
phases      how long parameters and moments take to leave the GPU and to come back
transport   how long the weights for engines take out of the ranks
demo        `agentrl demo`: does a model learn here
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

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
}
TINY = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
TESTS = ("tests/workers/test_gpu.py", "tests/workers/test_offload.py", "tests/inference/embedded/test_engine_gpu.py")
TINY_TESTS = ("tests/workers/test_gpu.py::test_types_that_auto_means",)
Numbers = dict[str, Any]


def cuda() -> bool:
    return torch.cuda.is_available()


def wait() -> None:
    """Until the GPU has done everything."""
    if cuda():
        torch.cuda.synchronize()


def model(folder: str, *, tiny: bool) -> Path:
    from agentrl.testing.models import build_tiny_model

    return build_tiny_model(Path(folder) / "model", **(TINY if tiny else HALF_BILLION))


def machine(tiny: bool) -> Numbers:
    import transformers

    found: Numbers = {"torch": torch.__version__, "transformers": transformers.__version__, "cpus": os.cpu_count()}
    if cuda():
        free, total = torch.cuda.mem_get_info()
        found |= {"gpu": torch.cuda.get_device_name(0), "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
        found |= {"free_gib": round(free / 2**30, 1), "total_gib": round(total / 2**30, 1)}
    return found


def rig(tiny: bool) -> Numbers:
    tests = TINY_TESTS if tiny else TESTS
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)}
    if done.returncode:
        sys.stderr.write(done.stdout[-4000:])
    return {**counts, "ok": done.returncode == 0}


def decode(tiny: bool) -> Numbers:
    from agentrl.inference.embedded.engine import Engine
    from agentrl.inference.embedded.options import EngineOptions
    from agentrl.inference.embedded.protocol import parse_generate

    requests, prompt, answer = (4, 8, 8) if tiny else (128, 256, 256)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(EngineOptions(model=str(model(folder, tiny=tiny)), max_context_length=1024), lambda heard: None)
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


def worker(folder: str, *, tiny: bool, offload: bool = False) -> Any:
    from agentrl.config.root import RunConfig
    from agentrl.single_controller import Placement
    from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker

    config = RunConfig()
    policy = config.actor_rollout_ref
    policy.model.path, policy.model.enable_gradient_checkpointing = str(model(folder, tiny=tiny)), False
    policy.actor.ppo_mini_batch_size, policy.actor.fsdp_config.param_offload = 1_000_000, offload and cuda()
    policy.actor.fsdp_config.optimizer_offload = offload and cuda()
    made = ActorRolloutRefWorker.place(Placement(use_gpu=cuda()), None, config)
    made.init_model(1)
    return made


def update(tiny: bool) -> Numbers:
    from agentrl.testing.batches import random_batch

    rows, prompt, response = (4, 8, 16) if tiny else (64, 256, 768)
    with tempfile.TemporaryDirectory() as folder:
        made = worker(folder, tiny=tiny)
        batch = random_batch([(prompt, response)] * rows, 500)
        metrics, seconds = {}, []
        for _ in range(2 if tiny else 4):
            began = time.perf_counter()
            metrics = made.update_actor(batch).meta_info["metrics"]
            wait()
            seconds.append(time.perf_counter() - began)
        made.close()
    found: Numbers = {"tokens_per_s": round(rows * (prompt + response) / min(seconds))}
    if (mfu := metrics.get("perf/mfu/actor")) is not None:
        found |= {"mfu": round(mfu, 3), "wanted_mfu": WANTED_MFU, "ok": mfu >= WANTED_MFU}
    if "perf/max_memory_allocated_gb" in metrics:
        found["peak_gib"] = round(metrics["perf/max_memory_allocated_gb"], 1)
    return found


def phases(tiny: bool) -> Numbers:
    from agentrl.testing.batches import random_batch

    with tempfile.TemporaryDirectory() as folder:
        made = worker(folder, tiny=tiny, offload=True)
        made.update_actor(random_batch([(4, 4)] * 4, 500))
        seconds: dict[str, float] = {}
        for name, move in (("load", made.keep_on_device), ("offload", made.yield_device)):
            wait()
            began = time.perf_counter()
            move()
            wait()
            seconds[f"{name}_s"] = round(time.perf_counter() - began, 3)
        held = round(torch.cuda.memory_allocated() / 2**30, 2) if cuda() else 0.0
        made.close()
    return {**seconds, "left_on_gpu_gib": held}


def transport(tiny: bool) -> Numbers:
    with tempfile.TemporaryDirectory() as folder:
        made = worker(folder, tiny=tiny)
        began = time.perf_counter()
        made.export_weights(str(Path(folder) / "export"))
        wait()
        seconds = time.perf_counter() - began
        size = sum(file.stat().st_size for file in (Path(folder) / "export").glob("*.safetensors"))
        made.close()
    return {"export_to_disk_s": round(seconds, 3), "gb": round(size / 1e9, 3)}


def demo(tiny: bool) -> Numbers:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "agentrl", "demo", "--out", folder]
        command += ["--prepare", "--warm-start-steps", "2"] if tiny else []
        began = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write((done.stdout + done.stderr)[-4000:])
    last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
    return {"ok": done.returncode == 0, "seconds": round(time.perf_counter() - began, 1), "says": last.strip()[:200]}


PARTS: dict[str, Callable[[bool], Numbers]] = {
    "machine": machine,
    "rig": rig,
    "decode": decode,
    "update": update,
    "phases": phases,
    "transport": transport,
    "demo": demo,
}


def report(folder: Path, out: Path) -> None:
    """One JSON of what the parts left: their numbers, or why there are no numbers."""
    found: dict[str, Numbers] = {}
    for name in PARTS:
        end = folder / f"{name}.end"
        code, seconds = map(int, end.read_text().split()) if end.is_file() else (-1, 0)
        try:
            found[name] = json.loads((folder / f"{name}.json").read_text())
        except (OSError, ValueError):
            log = folder / f"{name}.log"
            why = "it took longer than its limit" if code in (124, 137) else f"it ended with exit code {code}"
            found[name] = {"error": why, "log": log.read_text()[-2000:] if log.is_file() else ""}
        found[name]["part_s"] = seconds
    out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(out.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "report"])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.part == "report":
        report(*options.paths)
    else:
        sys.stdout.write(json.dumps(PARTS[options.part](options.tiny)))


if __name__ == "__main__":
    main()

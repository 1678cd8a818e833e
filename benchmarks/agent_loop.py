"""How fast agent loops run when the engine takes no time: trajectories per second, CPU-ms per generation.

Every trajectory makes some tool calls and answers: with three calls that is four generations and a response of about
220 tokens. Three modes over the same script:

* in_process: agentrl's loops, tools, rewards, padding; the engine is a function.
* http: the same, against a server in another process that answers immediately.
* usual: what most code does, over the same server: httpx and json, the whole conversation rendered and tokenized again
  at every turn. The ratios compare with it, at the same number of calls.

CPU-ms are those of this process. The tokenizer is a byte-level BPE of 8,000 ids trained on agentrl's sources, or the
one given with `--tokenizer`.

    python benchmarks/agent_loop.py [--calls 1 3 7] [--trajectories 512] [--in-flight 128] [--tokenizer DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import httpx
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import agentrl
from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.rollout.manager import AgentLoopManager
from agentrl.testing.models import build_tiny_model, byte_tokenizer
from agentrl.types import GenerationOutput, Sample

QUESTION = "Natalia sold 3 clips, then 30, then 300, and 4 each time to a friend. How many were it at last?"
ANSWER = (
    "Natalia sold three clips first, then thirty, then three hundred, and each time she gave four more to a friend of "
    "hers. The last sum that I worked out with the calculator is the number that was asked for, so the answer is this:"
    "\n#### 304"
)
VOCABULARY = 8000


def script(calls: int) -> list[str]:
    """The model's turns: the given number of calls, then an answer."""
    sums = itertools.islice(itertools.cycle((3, 30, 300)), calls)
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "%d+4"}}\n</tool_call>'
    return [*(call % first for first in sums), ANSWER]


@dataclass(frozen=True)
class Case:
    """One line of the report."""

    calls: int
    mode: str
    trajectories: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Trajectories per second."""
        return self.trajectories / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Of this process, per generation."""
        return 1000 * self.cpu_s / (self.trajectories * (self.calls + 1))


def measure(calls: int, mode: str, trajectories: int, run: Callable[[], None]) -> Case:
    """Time one run."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Case(calls, mode, trajectories, time.perf_counter() - wall, time.process_time() - cpu)


def load_tokenizer(folder: str | None) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder, or one trained on agentrl's sources; ChatML with tools if it has no template."""
    if folder is not None:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    else:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
        texts = (path.read_text() for path in sorted(Path(agentrl.__file__).parent.rglob("*.py")))
        backend.train_from_iterator(texts, trainer)
        backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        backend.add_tokens(["<tool_call>", "</tool_call>"])
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = tokenizer.chat_template or byte_tokenizer().chat_template
    return tokenizer


def write_model(folder: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A model folder with this tokenizer; its weights are never used."""
    build_tiny_model(folder, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    tokenizer.save_pretrained(folder)
    return folder


class InstantRouter:
    """Stands in for the router: answers from the script without leaving the process."""

    def __init__(self, turns: Sequence[list[int]]) -> None:
        self._turns = turns

    async def generate(self, trajectory_id: str, prompt_ids: list[int], params: Any, **rest: Any) -> GenerationOutput:
        ids = self._turns[int(rest["rid"].rpartition("-")[2]) % len(self._turns)]
        await asyncio.sleep(0)
        return GenerationOutput(list(ids), [-0.5] * len(ids), [0] * len(ids), "stop")

    def expect_version(self, version: int | None) -> None: ...

    def release(self, trajectory_id: str) -> None: ...

    async def close(self) -> None: ...


@contextmanager
def instant_server(turns: Sequence[list[int]]) -> Iterator[str]:
    """A process that answers `/generate` immediately."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(list(turns), file)
        file.flush()
        command = [sys.executable, "-m", "agentrl.testing.scripted_engine", "--port", str(port), "--script", file.name]
        process = subprocess.Popen(command)
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(300):
                try:
                    httpx.get(f"{address}/health", trust_env=False)
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            yield address
        finally:
            process.terminate()
            process.wait()


def rows(count: int) -> DataProto:
    """The given number of rows with the same question, each its own group."""
    prompt = [{"role": "user", "content": QUESTION}]
    samples = [Sample(i, prompt, "openai/gsm8k", reward_model={"ground_truth": "304"}) for i in range(count)]
    return DataProto({}, {"sample": samples, "uid": list(range(count))}, {})


def agentrl_way(config: RunConfig, address: str, calls: int, count: int, router: InstantRouter | None) -> Case:
    """Trajectories through the manager, as the trainer requests them."""
    manager = AgentLoopManager(config, [address], backend="local")
    if router is not None:
        manager._pool._worker._router = router  # type: ignore[attr-defined]
    manager.generate_sequences(rows(16))
    results: list[DataProto] = []
    mode = "http" if router is None else "in_process"
    case = measure(calls, mode, count, lambda: results.append(manager.generate_sequences(rows(count))))
    manager.shutdown()
    assert len(results[0]) == count
    assert set(results[0].non_tensor_batch["num_tool_calls"]) == {calls}
    assert all(score == 1.0 for score in results[0].non_tensor_batch["score"])
    return case


def usual_way(tokenizer: PreTrainedTokenizerFast, address: str, calls: int, count: int, in_flight: int) -> Case:
    """What most code does: messages in, the whole conversation tokenized every turn, httpx, json."""
    from agentrl.plugins import load_tools

    spec = load_tools("tools/calculator.yaml")[0]
    call_pattern = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)

    async def trajectory(client: httpx.AsyncClient, number: int, slots: asyncio.Semaphore) -> None:
        async with slots:
            messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
            tool = spec.build()
            for turn in range(calls + 1):
                prompt = tokenizer.apply_chat_template(
                    messages, tools=[spec.schema], add_generation_prompt=True, return_dict=False
                )
                body = {
                    "rid": f"{number}-{turn}",
                    "input_ids": prompt,
                    "sampling_params": {"max_new_tokens": 1024, "temperature": 1.0},
                    "return_logprob": True,
                }
                answer = (await client.post(f"{address}/generate", json=body)).json()
                pairs = answer["meta_info"]["output_token_logprobs"]
                text = tokenizer.decode([pair[1] for pair in pairs], skip_special_tokens=True)
                messages.append({"role": "assistant", "content": text})
                for found in call_pattern.findall(text):
                    result = await tool.execute(json.loads(found)["arguments"])
                    messages.append({"role": "tool", "content": result.text})
            tokenizer.apply_chat_template(messages, tools=[spec.schema], return_dict=False)

    async def all_of_them(number: int) -> None:
        slots = asyncio.Semaphore(in_flight)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=in_flight)
        async with httpx.AsyncClient(timeout=600, limits=limits, trust_env=False) as client:
            await asyncio.gather(*(trajectory(client, i, slots) for i in range(number)))

    asyncio.run(all_of_them(8))
    return measure(calls, "usual", count, lambda: asyncio.run(all_of_them(count)))


def run_config(model: Path, in_flight: int) -> RunConfig:
    """A run with the calculator."""
    return RunConfig.model_validate(
        {
            "data": {"max_prompt_length": 2048, "max_response_length": 4096},
            "actor_rollout_ref": {
                "model": {"path": str(model)},
                "rollout": {
                    "multi_turn": {"tool_config_path": "tools/calculator.yaml"},
                    "agent": {"default_agent_loop": "tool_agent", "max_in_flight": in_flight},
                },
            },
        }
    )


def run_cases(calls: int, tokenizer: PreTrainedTokenizerFast, config: RunConfig, options: argparse.Namespace) -> None:
    """Print one line per mode."""
    turns = [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in script(calls)]
    with instant_server(turns) as address:
        count, in_flight = options.trajectories, options.in_flight
        usual = usual_way(tokenizer, address, calls, max(count // 8, 1), in_flight)
        ours = [agentrl_way(config, address, calls, count, InstantRouter(turns)) for _ in range(options.repeats)]
        http = [agentrl_way(config, address, calls, count, None) for _ in range(options.repeats)]
    for cases in (ours, http, [usual]):
        best = max(cases, key=lambda case: case.rate)
        spread = f"({min(case.rate for case in cases):.1f} to {best.rate:.1f})"
        print(
            f"calls={calls} mode={best.mode} traj_per_s={best.rate:.1f} cpu_ms_per_generation={best.cpu_ms:.2f} "
            f"ratio={best.rate / usual.rate:.1f} cpu_ratio={usual.cpu_ms / best.cpu_ms:.1f} traj_per_s_spread={spread}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 3, 7])
    parser.add_argument("--trajectories", type=int, default=512)
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokenizer", help="Hugging Face folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(options.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        config = run_config(write_model(Path(folder) / "model", tokenizer), options.in_flight)
        for calls in options.calls:
            run_cases(calls, tokenizer, config, options)


if __name__ == "__main__":
    main()

"""How fast agent loops run when the engine costs nothing: trajectories per second, CPU-ms per generation.

Every trajectory makes three tool calls and answers: four generations. Three ways over the same script:

* agentrl, engine in process: loops, tools, rewards, padding; no HTTP.
* agentrl over HTTP: the same, against a server in another process that answers at once.
* the usual way over HTTP: httpx and json, the whole conversation rendered and tokenized again at every turn.

    python benchmarks/agent_loop.py [--trajectories 512] [--in-flight 128]
"""

from __future__ import annotations

import argparse
import asyncio
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

from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.rollout.manager import AgentLoopManager
from agentrl.testing.models import build_tiny_model, byte_tokenizer
from agentrl.types import GenerationOutput, Sample

TURNS = [
    *(
        f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{n}+4"}}}}\n</tool_call>'
        for n in (3, 30, 300)
    ),
    "It is #### 304",
]
QUESTION = "Natalia sold 3 clips, then 30, then 300, and 4 each time to a friend. How many were it at last?"


@dataclass
class Figures:
    name: str
    trajectories: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.trajectories / self.seconds

    @property
    def cpu_ms(self) -> float:
        return 1000 * self.cpu_s / (self.trajectories * len(TURNS))


def measure(name: str, trajectories: int, run: Callable[[], None]) -> Figures:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Figures(name, trajectories, time.perf_counter() - wall, time.process_time() - cpu)


def script() -> list[list[int]]:
    tokenizer = byte_tokenizer()
    return [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in TURNS]


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
    """A process that answers `/generate` at once."""
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
    prompt = [{"role": "user", "content": QUESTION}]
    samples = [Sample(i, prompt, "openai/gsm8k", reward_model={"ground_truth": "304"}) for i in range(count)]
    return DataProto({}, {"sample": samples, "uid": list(range(count))}, {})


def agentrl_way(name: str, config: RunConfig, address: str, count: int, router: InstantRouter | None) -> Figures:
    manager = AgentLoopManager(config, [address], backend="local")
    if router is not None:
        manager._pool._worker._router = router  # type: ignore[attr-defined]
    manager.generate_sequences(rows(16))
    results: list[DataProto] = []
    figures = measure(name, count, lambda: results.append(manager.generate_sequences(rows(count))))
    manager.shutdown()
    assert len(results[0]) == count
    assert all(score == 1.0 for score in results[0].non_tensor_batch["score"])
    assert set(results[0].non_tensor_batch["num_tool_calls"]) == {3}
    return figures


def usual_way(address: str, count: int, in_flight: int) -> Figures:
    """What most code does: messages in, the whole conversation tokenized every turn, httpx, json."""
    from agentrl.plugin_config import load_tools

    spec = load_tools("tools/calculator.yaml")[0]
    tokenizer = byte_tokenizer()
    call_pattern = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)

    async def trajectory(client: httpx.AsyncClient, number: int, slots: asyncio.Semaphore) -> None:
        async with slots:
            messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
            tool = spec.build()
            for turn in range(len(TURNS)):
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
    return measure("usual way over HTTP", count, lambda: asyncio.run(all_of_them(count)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=512)
    parser.add_argument("--in-flight", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    turns = script()
    with tempfile.TemporaryDirectory() as folder, instant_server(turns) as address:
        config = RunConfig.model_validate(
            {
                "data": {"max_prompt_length": 2048, "max_response_length": 2048},
                "actor_rollout_ref": {
                    "model": {"path": str(build_tiny_model(Path(folder) / "model"))},
                    "rollout": {
                        "multi_turn": {"tool_config_path": "tools/calculator.yaml"},
                        "agent": {"default_agent_loop": "tool_agent", "max_in_flight": options.in_flight},
                    },
                },
            }
        )
        count = options.trajectories
        figures = [
            agentrl_way("agentrl, engine in process", config, address, count, InstantRouter(turns)),
            agentrl_way("agentrl over HTTP", config, address, count, None),
            usual_way(address, max(count // 4, 1), options.in_flight),
        ]
    usual = figures[-1]
    for each in figures:
        print(
            f"{each.name:27} {each.rate:8.1f} trajectories/s ({each.rate / usual.rate:5.1f} x)   "
            f"{each.cpu_ms:6.2f} CPU-ms per generation ({usual.cpu_ms / each.cpu_ms:5.1f} x less)"
        )


if __name__ == "__main__":
    main()

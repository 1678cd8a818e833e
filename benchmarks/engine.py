"""The embedded engine against `transformers` `generate`: conversations of three turns, ragged lengths, same model.

The engine runs as in production: a server process that 64 clients call over HTTP, one request per turn. The baseline
gets every turn of all conversations as one left-padded batch and stops when the longest answer ends. Both sample at
temperature 1 and count only the tokens that a conversation asked for. Each chooses its own threads: torch takes all
cores, the engine fewer for small models. Runs alternate, and the ratio is that of the medians. CPU seconds (client,
server and all threads) are also printed: on a shared machine they say more than the clock.

    python benchmarks/engine.py                      a new Qwen2 of 0.66 M parameters, 64 conversations
    python benchmarks/engine.py --model DIR          any Llama, Qwen2 or Qwen3, 16 short conversations

The second takes less than 4 minutes for 135 M parameters on two cores. Each pair of runs prints a line when it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JSON = {"content-type": "application/json"}
SIZES = {False: (64, 1.0), True: (16, 0.25)}
"""Conversations and factor on their lengths, without and with `--model`: a model of 135 M parameters does 200 times the
work for each token."""
TINY = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True)
class Turn:
    """One turn: its input tokens (prompt or observation) and the number of tokens that the model answers."""

    observation: list[int]
    answer: int


Conversation = list[Turn]


def make_conversations(count: int, turns: int, scale: float, vocab: int, seed: int = 0) -> list[Conversation]:
    """Conversations with ragged prompts (16-96 tokens), observations (8-40) and answers (8-96), times `scale`."""
    rnd = random.Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [rnd.randrange(3, vocab) for _ in range(length(low, high))]

    def length(low: int, high: int) -> int:
        return max(1, round(rnd.randint(low, high) * scale))

    return [
        [Turn(tokens(16, 96) if number == 0 else tokens(8, 40), length(8, 96)) for number in range(turns)]
        for _ in range(count)
    ]


@dataclass(frozen=True)
class Cost:
    """Of one run."""

    seconds: float
    cpu_seconds: float


async def converse_all(address: str, conversations: list[Conversation]) -> float:
    """Seconds to run all conversations at once against a server."""
    import aiohttp
    import orjson

    async def converse(session: aiohttp.ClientSession, conversation: Conversation) -> None:
        ids: list[int] = []
        for turn in conversation:
            ids += turn.observation
            params = {"max_new_tokens": turn.answer, "temperature": 1.0, "ignore_eos": True}
            body = orjson.dumps({"input_ids": ids, "sampling_params": params, "return_logprob": True})
            async with session.post("/generate", data=body) as response:
                answer = orjson.loads(await response.read())
            assert len(answer["output_ids"]) == turn.answer, answer
            ids += answer["output_ids"]

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(address, connector=connector, headers=JSON) as session:
        async with session.post("/flush_cache") as response:
            assert response.status == 200
        start = time.perf_counter()
        await asyncio.gather(*(converse(session, conversation) for conversation in conversations))
        return time.perf_counter() - start


def run_engine(address: str, server: subprocess.Popen[bytes], conversations: list[Conversation]) -> Cost:
    """Run all conversations at once against a server."""
    import psutil

    def used() -> float:
        times = psutil.Process(server.pid).cpu_times()
        return float(times.user + times.system) + time.process_time()

    before = used()
    seconds = asyncio.run(converse_all(address, conversations))
    return Cost(seconds, used() - before)


def run_transformers(model: Any, conversations: list[Conversation]) -> Cost:
    """Run all conversations turn by turn as padded batches."""
    import torch

    histories: list[list[int]] = [[] for _ in conversations]
    start, used = time.perf_counter(), time.process_time()
    for number in range(len(conversations[0])):
        for history, conversation in zip(histories, conversations, strict=True):
            history += conversation[number].observation
        width = max(map(len, histories))
        ids = torch.tensor([[0] * (width - len(h)) + h for h in histories], device=model.device)
        mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in histories], device=model.device)
        longest = max(conversation[number].answer for conversation in conversations)
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=longest, min_new_tokens=longest, pad_token_id=0,
            )  # fmt: skip
        for row, (history, conversation) in enumerate(zip(histories, conversations, strict=True)):
            history += out[row, width : width + conversation[number].answer].tolist()
    return Cost(time.perf_counter() - start, time.process_time() - used)


def start_server(folder: str, args: argparse.Namespace, context: int) -> tuple[subprocess.Popen[bytes], str]:
    """Start an engine and wait until it is healthy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "agentrl.inference.embedded", "--model", folder, "--port", str(port)]
    command += ["--device", args.device, "--dtype", args.dtype, "--die-with-parent"]
    command += ["--threads", str(args.threads)] if args.threads else []
    command += ["--max-running-requests", str(args.conversations), "--max-context-length", str(context)]
    server = subprocess.Popen(command)
    address = f"http://127.0.0.1:{port}"
    for _ in range(1200):
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return server, address
        except (urllib.error.URLError, ConnectionError):
            if server.poll() is not None:
                raise SystemExit("the engine did not start") from None
            time.sleep(0.1)
    raise SystemExit("the engine is not healthy after two minutes")


def report(engine: list[Cost], baseline: list[Cost], tokens: int) -> dict[str, Any]:
    """Print a line per side and the ratio of the medians."""
    for name, costs in (("embedded engine", engine), ("transformers generate", baseline)):
        rates = sorted(tokens / cost.seconds for cost in costs)
        cpu = tokens / statistics.median(cost.cpu_seconds for cost in costs)
        runs = ", ".join(f"{rate:.1f}" for rate in rates)
        print(f"{name:22} {statistics.median(rates):9.1f} tokens/s {cpu:9.1f} tokens/CPU-s  (runs: {runs} tokens/s)")
    ours, theirs = [cost.seconds for cost in engine], [cost.seconds for cost in baseline]
    ratio = statistics.median(theirs) / statistics.median(ours)
    cpu_ratio = statistics.median(c.cpu_seconds for c in baseline) / statistics.median(c.cpu_seconds for c in engine)
    spread = [min(theirs) / max(ours), max(theirs) / min(ours)]
    print(f"ratio: {ratio:.2f}  (worst pairing {spread[0]:.2f}, best {spread[1]:.2f}; in CPU seconds {cpu_ratio:.2f})")
    return {
        "ratio": ratio,
        "cpu_ratio": cpu_ratio,
        "spread": spread,
        "engine_s": ours,
        "baseline_s": theirs,
        "tokens": tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="Hugging Face folder; default: a tiny Qwen2")
    parser.add_argument("--conversations", type=int, help="default: 64, with --model 16")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--scale", type=float, help="factor on all lengths; default: 1, with --model 0.25")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="CPU threads of each side; default: what each side chooses")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--minimum", type=float, help="fail when the ratio is below")
    args = parser.parse_args()

    conversations, scale = SIZES[args.model is not None]
    args.conversations, args.scale = args.conversations or conversations, args.scale or scale

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.model or scratch
        if not args.model:
            from agentrl.testing.models import build_tiny_model

            build_tiny_model(folder, **TINY)
        config = json.loads(Path(folder, "config.json").read_text())
        conversations = make_conversations(args.conversations, args.turns, args.scale, config["vocab_size"])
        tokens = sum(turn.answer for conversation in conversations for turn in conversation)
        context = max(sum(len(turn.observation) + turn.answer for turn in c) for c in conversations)
        server, address = start_server(folder, args, context)
        try:
            result = report(*measure(folder, address, server, conversations, args), tokens)
        finally:
            server.terminate()
            server.wait()
    if args.json:
        Path(args.json).write_text(json.dumps(result))
    if args.minimum and result["ratio"] < args.minimum:
        raise SystemExit(f"the ratio {result['ratio']:.2f} is below {args.minimum}")


def measure(
    folder: str,
    address: str,
    server: subprocess.Popen[bytes],
    conversations: list[Conversation],
    args: argparse.Namespace,
) -> tuple[list[Cost], list[Cost]]:
    """Warm up both sides with a tenth of the work, then time them in turn."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads or torch.get_num_threads())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, args.dtype)).to(args.device)
    model.generation_config.eos_token_id = None
    few = conversations[: max(1, len(conversations) // 10)]
    print(f"warming up with {len(few)} of {len(conversations)} conversations", flush=True)
    run_transformers(model, few)
    run_engine(address, server, few)
    engine: list[Cost] = []
    baseline: list[Cost] = []
    for pair in range(args.repeats):
        engine.append(run_engine(address, server, conversations))
        baseline.append(run_transformers(model, conversations))
        ours, theirs = engine[-1].seconds, baseline[-1].seconds
        print(f"pair {pair + 1}: engine {ours:.1f} s, generate {theirs:.1f} s, ratio {theirs / ours:.2f}", flush=True)
    return engine, baseline


if __name__ == "__main__":
    main()

"""The contract suite of engines against a running server: `python tests/wire/engine_contract.py --engine URL`.

The checks are those of `agentrl.testing.engine_contract` and `agentrl.testing.wire_contract`. The server's model folder
must be readable here: wanted numbers come from transformers. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from agentrl.chat.loading import load_tokenizer
from agentrl.errors import AgentRLError
from agentrl.inference.client import EngineClient
from agentrl.testing.engine_contract import ENGINE_CONTRACTS, NEEDS_SEEDS, EngineCase, EngineCheck
from agentrl.testing.wire_contract import WIRE_CONTRACTS

MARGIN = 8
"""Tokens of its context that a server leaves unused, as `rollout.max_model_len` has it."""


def checks(*, seeds: bool) -> list[EngineCheck]:
    """All checks, without those of seeds for an engine that does not repeat itself."""
    return [check for check in (*ENGINE_CONTRACTS, *WIRE_CONTRACTS) if seeds or check not in NEEDS_SEEDS]


def make_case(address: str, model: Path, other: Path, context: int, longest: int | None = None) -> EngineCase:
    """A case for a server of SGLang's API."""
    tokenizer = load_tokenizer(str(model))
    letter = tokenizer.encode("a", add_special_tokens=False)[-1]
    eos = tokenizer.eos_token_id
    client = EngineClient(address, vocab_size=len(tokenizer), request_timeout_s=600)
    text = tokenizer.decode([letter])
    case = EngineCase(client, model, other, letter=letter, text=text, eos=eos, context=context)
    case.longest = longest
    return case


async def run(case: EngineCase, chosen: Sequence[EngineCheck]) -> list[str]:
    """Names of the checks that failed; the first of a name is told on standard output."""
    try:
        return await _run(case, chosen)
    finally:
        await case.client.close()


async def _run(case: EngineCase, chosen: Sequence[EngineCheck]) -> list[str]:
    failed = []
    await case.look()
    for check in chosen:
        started, trouble = time.monotonic(), ""
        try:
            await check(case)
        except (AssertionError, httpx.HTTPError, OSError, RuntimeError, TimeoutError, KeyError, AgentRLError) as error:
            trouble = f"{type(error).__name__}: {error}"
            failed.append(check.__name__)
            await case.client.resume()
            await case.look()
        sys.stdout.write(f"{'FAILED' if trouble else 'ok':6} {check.__name__} ({time.monotonic() - started:.1f} s)\n")
        if trouble:
            sys.stdout.write(f"       {trouble[:600]}\n")
        sys.stdout.flush()
    return failed


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True, help="http://host:port")
    parser.add_argument("--model", type=Path, help="the folder that it serves; default: what it says")
    parser.add_argument("--other", type=Path, help="a model of the same shape with other weights; default: the same")
    parser.add_argument("--context", type=int, help="most tokens of a request; default: what it says, less the margin")
    parser.add_argument("--longest", type=int, default=100, help="tokens of answers that are interrupted")
    parser.add_argument("--seeds", action="store_true", help="the same seed repeats a sample, as the embedded engine's")
    parser.add_argument("-k", default="", help="only checks whose name has this part")
    given = parser.parse_args()
    with httpx.Client(base_url=given.engine, trust_env=False, timeout=60) as http:
        model = given.model or Path(http.get("/model_info").json()["model_path"])
        context = given.context or int(http.get("/server_info").json()["context_length"]) - MARGIN
    case = make_case(given.engine, model, given.other or model, context, given.longest)
    chosen = [check for check in checks(seeds=given.seeds) if given.k in check.__name__]
    failed = asyncio.run(run(case, chosen))
    sys.stdout.write(f"{len(chosen) - len(failed)} of {len(chosen)} checks hold\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

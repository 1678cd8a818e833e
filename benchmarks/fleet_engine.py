"""An engine of `fleet.py`, in a process of its own: no model, and answers that take a made-up time.

A request tells by its id which trajectory and turn it belongs to, as the rollout worker names it
(`train-{step}-{row}-{when}-{turn}`). Requests of step 0 are answered at once; any other takes half to one and a half
times `--latency-s`, evenly spread.

    python benchmarks/fleet_engine.py --port 30000 --scripts scripts.json [--latency-s 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from pathlib import Path
from typing import Any

from agentrl.testing.scripted_engine import Respond, ScriptedEngine


def play_one_of(scripts: list[list[list[int]]]) -> Respond:
    """The k-th request of row r gets turn k of script r, or of the one that has its place when they start over."""

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        _, _, row, *_, turn = payload["rid"].split("-")
        script = scripts[int(row) % len(scripts)]
        return script[int(turn) % len(script)], "stop"

    return respond


async def serve(port: int, scripts: list[list[list[int]]], latency_s: float) -> None:
    draw = random.Random(port)

    def wait_s(payload: dict[str, Any]) -> float:
        return 0.0 if payload["rid"].split("-")[1] == "0" else latency_s * (0.5 + draw.random())

    await ScriptedEngine(play_one_of(scripts), keep_requests=False, latency_s=wait_s).start(port)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--scripts", type=Path, required=True, help="JSON: for each script the list of its turns' ids")
    parser.add_argument("--latency-s", type=float, default=3.0)
    options = parser.parse_args()
    asyncio.run(serve(options.port, json.loads(options.scripts.read_text(encoding="utf-8")), options.latency_s))


if __name__ == "__main__":
    main()

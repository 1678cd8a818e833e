"""How fast the sandbox service runs code: trivial Python runs per second, and large outputs.

Clients in this process ask one service for `print(1)`, each sending its next request after the answer. The baseline is
a bare loop of `subprocess.run([python, "-c", "print(1)"])` without isolation, one at a time per core. Then one run
prints 180 kB and one prints 50 MB; their output must come back, complete or cut, without a time-out.

    python benchmarks/sandbox.py [--seconds 10] [--clients 16] [--python PROGRAM] [--isolation LEVEL]
        [--fresh-interpreters]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import aiohttp

COMMAND = (sys.executable, "-c", "from agentrl.cli import main; main()", "serve", "sandbox", "--port", "0")
BODY = {"code": "print(1)", "language": "python"}
WANTED_PER_S, WANTED_P95_S = 80.0, 0.7


@contextmanager
def service(*options: str) -> Iterator[str]:
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*COMMAND, *options], stderr=log)
        try:
            while True:
                log.seek(0)
                found = [json.loads(line)["url"] for line in log if '"serving"' in line]
                if found:
                    break
                if process.poll() is not None:
                    log.seek(0)
                    raise SystemExit(log.read())
                time.sleep(0.05)
            time.sleep(1.0)  # the pool fills
            yield found[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


async def trivial_runs(url: str, clients: int, seconds: float) -> list[float]:
    """Seconds of each answer."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def client(session: aiohttp.ClientSession) -> None:
        while time.perf_counter() < end:
            began = time.perf_counter()
            async with session.post(f"{url}/run_code", json=BODY) as response:
                answer = await response.json()
            if response.status != 200 or answer["run_result"]["stdout"] != "1\n":
                raise SystemExit(f"HTTP {response.status}: {answer}")
            took.append(time.perf_counter() - began)

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return took


def bare_runs(python: str, at_once: int, seconds: float) -> float:
    """Runs per second of a plain loop."""
    end = time.perf_counter() + seconds

    def loop(_: int) -> int:
        count = 0
        while time.perf_counter() < end:
            subprocess.run([python, "-c", "print(1)"], check=True, capture_output=True)
            count += 1
        return count

    with ThreadPoolExecutor(at_once) as pool:
        return sum(pool.map(loop, range(at_once))) / seconds


async def large_output(url: str, size: int) -> tuple[str, int, float]:
    """Status, characters that came and seconds."""
    body = {"code": f"import sys\nfor _ in range({size // 1000}): sys.stdout.write('x' * 1000)", "language": "python"}
    began = time.perf_counter()
    async with aiohttp.ClientSession() as session, session.post(f"{url}/run_code", json=body) as response:
        result = (await response.json())["run_result"]
    return result["status"], len(result["stdout"]), time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--isolation", default=None)
    parser.add_argument("--fresh-interpreters", action="store_true", help="no forks: Python starts for each run")
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    level = ["--isolation", given.isolation] if given.isolation else []
    level += ["--fresh-interpreters"] if given.fresh_interpreters else []
    bare = bare_runs(given.python, cores, given.seconds / 2)
    with service("--python", given.python, *level) as url:
        asyncio.run(trivial_runs(url, given.clients, 1.0))
        took = asyncio.run(trivial_runs(url, given.clients, given.seconds))
        single = asyncio.run(trivial_runs(url, 1, given.seconds / 5))
        outputs = {size: asyncio.run(large_output(url, size)) for size in (180_000, 50_000_000)}
    rate, p95 = len(took) / given.seconds, statistics.quantiles(took, n=20)[-1]
    print(f"{cores} cores, {given.clients} clients, {given.seconds:g} s")
    print(f"sandbox            {rate:7.1f} runs/s  p50 {statistics.median(took):.3f} s  p95 {p95:.3f} s")
    print(f"one client         {len(single) / given.seconds * 5:7.1f} runs/s  p50 {statistics.median(single):.3f} s")
    print(f"bare subprocesses  {bare:7.1f} runs/s  ratio {rate / bare:.2f}")
    for size, (status, came, seconds) in outputs.items():
        print(f"output of {size:>10,} bytes: {status}, {came:,} characters in {seconds:.2f} s")
    good = rate >= WANTED_PER_S and p95 <= WANTED_P95_S and all(one[0] == "Finished" for one in outputs.values())
    print("meets" if good else "MISSES", f"{WANTED_PER_S:g} runs/s, p95 {WANTED_P95_S:g} s, outputs without time-out")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

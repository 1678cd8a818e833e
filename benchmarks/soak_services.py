"""Do the services leak? Both run under a mix of good and bad clients while their use of the machine is sampled.

Some clients search, send requests that are refused, and disconnect early; the index is reloaded repeatedly. Others run
code that works, fails, floods or never ends, judge programs, use sessions, and leave sessions open. Every few seconds
the memory, open files and processes of each service, with all its children, and its temporary files are counted.
Growth is measured in two ways: the median of the last third of the samples against that of the first third, and the
idle service after the load against the idle service before. The exit status is 1 on growth or after a wrong answer.

    python benchmarks/soak_services.py [--minutes 10] [--clients 6] [--every 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil

MAIN = "from agentrl.cli import main; main()"
OPTIONS = {"retrieval": [], "sandbox": ["--session-ttl-s", "5", "--sessions", "16"]}
ALLOWED = {"memory MB": (1.10, 24.0), "open files": (1.0, 12.0), "processes": (1.0, 3.0), "temp files": (1.0, 6.0)}
"""Limit of the last value: a factor of the first, plus a margin (two interpreters that are being replaced at that
moment add 2 processes and 10 open files)."""
WARM_UP_S, SETTLE_S, RELOAD_S = 15.0, 12.0, 7.0
Use = dict[str, float]
Client = Callable[["Service", aiohttp.ClientSession], Awaitable[str]]


class Service:
    """A running service with its own temporary folder."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], url: str, temp: Path) -> None:
        self.name, self.process, self.url, self.temp = name, process, url, temp
        self.samples: list[Use] = []
        self.outcomes: Counter[str] = Counter()

    def use(self) -> Use:
        """Its present use of the machine."""
        main = psutil.Process(self.process.pid)
        found = dict.fromkeys(ALLOWED, 0.0)
        for each in [main, *main.children(recursive=True)]:
            try:
                found["memory MB"] += each.memory_info().rss / 2**20
                found["open files"] += each.num_fds()
                found["processes"] += 1
            except psutil.Error:
                continue
        found["temp files"] = float(sum(len(folders) + len(files) for _, folders, files in os.walk(self.temp)))
        return found


@contextmanager
def running(name: str) -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as temp, tempfile.TemporaryFile("w+") as log:
        os.chmod(temp, 0o755)  # runs are users of their own
        command = [sys.executable, "-c", MAIN, "serve", name, "--port", "0", *OPTIONS[name]]
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "TMPDIR": temp})
        try:
            while not (found := _urls(log)):
                if process.poll() is not None:
                    log.seek(0)
                    raise SystemExit(log.read())
                time.sleep(0.05)
            yield Service(name, process, found[0], Path(temp))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _urls(log: Any) -> list[str]:
    log.seek(0)
    return [json.loads(line)["url"] for line in log if '"serving"' in line]


async def ask(service: Service, http: aiohttp.ClientSession, path: str, body: Any, patience_s: float = 60.0) -> Any:
    """Status and answer; None if this client disconnected first."""
    try:
        async with asyncio.timeout(patience_s), http.post(service.url + path, json=body) as answer:
            return answer.status, await answer.json()
    except TimeoutError:
        return None


async def search(service: Service, http: aiohttp.ClientSession) -> str:
    queries = [f"why {random.random()} sky" for _ in range(random.choice((1, 1, 32)))]
    status, answer = await ask(service, http, "/retrieve", {"queries": queries, "topk": 3, "return_scores": True})
    right = status == 200 and len(answer["result"]) == len(queries)
    return "found" if right else "WRONG"


async def bad_search(service: Service, http: aiohttp.ClientSession) -> str:
    status, _ = await ask(service, http, "/retrieve", {"queries": "no list", "topk": -1})
    return "refused" if status == 422 else "WRONG"


async def lost_search(service: Service, http: aiohttp.ClientSession) -> str:
    body = {"queries": [f"moon {random.random()}"] * 2000}
    return "went away" if await ask(service, http, "/retrieve", body, 0.004) is None else "found"


def code(text: str, wanted: str, **more: Any) -> Client:
    """A client that runs code and wants this status."""

    async def run(service: Service, http: aiohttp.ClientSession) -> str:
        status, answer = await ask(service, http, "/run_code", {"code": text, "language": "python", **more})
        if status == 429:
            return "busy"
        return wanted if status == 200 and answer["status"] == wanted else f"WRONG {status} {answer}"

    return run


async def lost_run(service: Service, http: aiohttp.ClientSession) -> str:
    body = {"code": "import time; time.sleep(20)", "language": "python", "run_timeout": 30}
    return "went away" if await ask(service, http, "/run_code", body, 0.2) is None else "busy"


async def judge(service: Service, http: aiohttp.ClientSession) -> str:
    body = {"code": "print(input())", "tests": [{"input": "1", "output": "1"}, {"input": "2", "output": "3"}]}
    status, answer = await ask(service, http, "/judge", body)
    return "judged" if status == 429 or (status, answer.get("passed")) == (200, 1) else f"WRONG {status} {answer}"


async def session(service: Service, http: aiohttp.ClientSession) -> str:
    status, answer = await ask(service, http, "/sessions", {})
    if status != 200:
        return "busy" if status == 429 else f"WRONG {status} {answer}"
    path = f"/sessions/{answer['session_id']}"
    status, answer = await ask(service, http, f"{path}/run", {"code": "x = 1; open('left', 'w').write('x' * 9999)"})
    if status != 200 or answer["status"] != "Success":
        return "busy" if status == 429 else f"WRONG {status} {answer}"
    if random.random() < 0.5:
        return "left open"
    async with http.delete(service.url + path) as ended:
        return "closed" if ended.status == 200 else f"WRONG {ended.status}"


CLIENTS: dict[str, list[Client]] = {
    "retrieval": [search, search, bad_search, lost_search],
    "sandbox": [
        code("print(6 * 7)", "Success"),
        code("open('left', 'w').write('x' * 10 ** 6); 1 / 0", "Failed"),
        code("while True: pass", "Failed", run_timeout=0.3),
        code("print('x' * 20_000_000)", "Success"),
        code("import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)", "Success"),
        *(lost_run, judge, session),
    ],
}


async def load(services: list[Service], seconds: float, clients: int, every_s: float | None) -> None:
    """Run clients of every kind for the given time; with `every_s`, keep samples."""
    end = time.monotonic() + seconds

    async def client(service: Service, http: aiohttp.ClientSession) -> None:
        while time.monotonic() < end:
            service.outcomes[await random.choice(CLIENTS[service.name])(service, http)] += 1
            if service.name == "retrieval":
                await asyncio.sleep(0.05)  # leaves the sandbox its share of the machine

    async def sample() -> None:
        while every_s is not None and time.monotonic() < end:
            for service in services:
                service.samples.append(await asyncio.to_thread(service.use))
            await asyncio.sleep(every_s)

    async def reload() -> None:
        while time.monotonic() < end:
            next(each for each in services if each.name == "retrieval").process.send_signal(signal.SIGHUP)
            await asyncio.sleep(min(RELOAD_S, max(0.1, end - time.monotonic())))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(sample(), reload(), *(client(each, http) for each in services for _ in range(clients)))


def grown(first: Use, last: Use) -> list[str]:
    """The figures that exceed their limits."""
    return [name for name, (factor, more) in ALLOWED.items() if last[name] > first[name] * factor + more]


def report(service: Service, before: Use, after: Use) -> bool:
    """Print the figures; return whether all are within their limits."""
    third = max(1, len(service.samples) // 3)
    first, last = (
        {name: statistics.median(each[name] for each in part) for name in ALLOWED}
        for part in (service.samples[:third], service.samples[-third:])
    )
    print(f"{service.name}: {sum(service.outcomes.values())} requests, {len(service.samples)} samples")
    for name in ALLOWED:
        under_load = f"load {first[name]:7.1f} -> {last[name]:7.1f}"
        print(f"  {name:10}  {under_load}   idle {before[name]:7.1f} -> {after[name]:7.1f}")
    wrong = {what: count for what, count in service.outcomes.items() if what.startswith("WRONG")}
    more = sorted({*grown(first, last), *grown(before, after)})
    print("  answers:", ", ".join(f"{what[:200]} {count}" for what, count in service.outcomes.most_common()))
    print(f"  growth of {', '.join(more)}" if more else "  no growth", "and wrong answers" if wrong else "")
    return not more and not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=6, help="at the same time, of each service")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between samples")
    options = parser.parse_args()
    with running("retrieval") as retrieval, running("sandbox") as sandbox:
        services = [retrieval, sandbox]
        asyncio.run(load(services, WARM_UP_S, options.clients, None))
        time.sleep(SETTLE_S)
        before = [each.use() for each in services]
        asyncio.run(load(services, options.minutes * 60, options.clients, options.every))
        time.sleep(SETTLE_S)
        good = [report(each, begun, each.use()) for each, begun in zip(services, before, strict=True)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

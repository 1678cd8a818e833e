"""What many trajectories in flight cost beside engines and models, and what 10,000 of them would cost.

The whole path runs: an `AgentLoopManager`, agent-loop workers as Ray actors, their routers and clients over HTTP, a
tool, scores and the padded batch. Only the engines are made up (`fleet_engine.py`): they answer from a script after
seconds. Every trajectory calls the calculator a few times and answers, in groups of eight that ask the same; all of a
batch are in flight at once. Batches of n, 2n and 4n trajectories alternate.

Who is counted, in CPU-ms per turn (a generation and what follows it):

* manager: the process that calls `generate_sequences`, all its threads, Ray's included: jobs out, rows in, padding.
* workers: the actors' processes: agent loop, tokens, tools, scores, router, client.
* router: its own work in a worker: the routed turn minus the same turn by a client, where clients answer at once.
* exchange: `EngineClient` over HTTP beside bare httpx posts of the same bodies to the same engines.

The bar of 0.5 CPU-ms is for manager and router together. Memory per trajectory in flight is the slope from 2n to 4n of
the most that the workers hold (`RssAnon`: no mapped files; the batch of n before them fills what a process has free
after its start), with what the manager holds of its own (traced by Python) once all are sent. Each round has new
workers. Of all rounds the best counts: others that share the machine only add.

On paper, with N trajectories in flight, W workers, E engines, turns of L seconds and K turns in a trajectory:

    turns per second               N / L
    CPU of the manager             N / L x its CPU-ms per turn: all N pass here, so its core is the limit
    CPU of a worker                N / (L W) x its CPU-ms per turn
    memory of a worker             its own + N / W x bytes per trajectory (which grow with the tokens of a context)
    connections                    N / W of a worker, N / E of an engine
    choosing an engine             one look at E counts per trajectory: 1 / K per turn
    chunks of a batch              about 2 W ln(N / 2W) + 2 W, each a call of Ray and a look at W counts

What grows with W and E is therefore measured at full size: the manager with all W workers on paper (chunks end one by
one and travel pickled, but not over Ray), the router with all E engines. Nothing may grow with N beside that: the cost
per turn at 4n is told as a factor of that at n. The exit code is 1 where a bar is missed.

    python benchmarks/fleet.py [--in-flight 400 800 1600] [--workers 2] [--engines 2] [--calls 3] [--latency-s 3]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import httpx
import psutil
import torch
from agent_loop import load_tokenizer, run_config, script, write_model
from fleet_parts import Recorded, batch, exchange_ms, manager_kb, manager_ms, record, router_ms

from agentrl.config.root import RunConfig
from agentrl.rollout.manager import AgentLoopManager
from agentrl.single_controller.ray_runtime import init_ray

MOST_MS, MOST_KB, MOST_GROWTH = 0.5, 50.0, 2.0
"""The bars. A step of O(n^2) that takes as long as all others at n makes the cost at 4n (1 + 4) / 2 times that at n."""
WANTED, WANTED_WORKERS, WANTED_ENGINES, WANTED_TURN_S = 10_000, 32, 16, 5.0
SCRIPTS = 64
EXCHANGED = 64
"""Requests in flight beside httpx, whose pool takes longer the more connections it has: 9 CPU-ms with 256 of them."""
ROLES = ("manager", "workers", "Ray", "engines")


@dataclass(frozen=True)
class Case:
    """One batch by the whole path."""

    count: int
    turns: int
    seconds: float
    at_once: float
    """Trajectories in flight, the mean over the batch."""
    cpu_s: dict[str, float]
    """By role."""
    workers_bytes: int
    """The most that the workers held."""
    manager_bytes: int
    """The most that the manager held, at the end with the padded batch."""

    def ms(self, role: str) -> float:
        """CPU-ms per turn."""
        return 1000 * self.cpu_s[role] / (self.count * self.turns)


class MemoryWatch(threading.Thread):
    """Looks at the memory of workers and manager ten times a second until it is stopped."""

    def __init__(self, workers: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._workers = workers
        self._end = threading.Event()
        self.seen: list[tuple[int, int]] = []
        self.cpu_s = 0.0
        """Its own, which is not the manager's."""
        self.start()

    def run(self) -> None:
        while not self._end.wait(0.1):
            self.seen.append((sum(map(anonymous, self._workers)), anonymous(os.getpid())))
        self.cpu_s = time.thread_time()

    def stop(self) -> None:
        self._end.set()
        self.join()


def anonymous(pid: int) -> int:
    """Bytes of a process that no file backs."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell RssAnon")


class Fleet:
    """The run's processes by role."""

    def __init__(self, engines: Sequence[int]) -> None:
        children = psutil.Process().children(recursive=True)
        loops = [each.pid for each in children if each.cmdline()[:1] and "AgentLoopActor" in each.cmdline()[0]]
        rest = [each.pid for each in children if each.pid not in {*loops, *engines}]
        self.pids = {"workers": loops, "Ray": rest, "engines": list(engines)}

    def cpu_s(self) -> dict[str, float]:
        return {"manager": time.process_time()} | {role: sum(map(_cpu_s, pids)) for role, pids in self.pids.items()}


def _cpu_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:  # one of Ray's that was idle
        return 0.0
    return float(times.user + times.system)


@contextmanager
def engine(scripts: Path, latency_s: float) -> Iterator[tuple[str, int]]:
    """Address and process of an engine that is ready."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("fleet_engine.py")), "--port", str(port)]
    process = subprocess.Popen([*command, "--scripts", str(scripts), "--latency-s", str(latency_s)])
    try:
        address = f"http://127.0.0.1:{port}"
        while process.poll() is None:
            try:
                httpx.get(f"{address}/health", trust_env=False)
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def run_batch(manager: AgentLoopManager, fleet: Fleet, count: int, turns: int) -> Case:
    """One batch with all its trajectories in flight."""
    given = batch(count, 1)
    watch = MemoryWatch(fleet.pids["workers"])
    before, began = fleet.cpu_s(), time.perf_counter()
    done = manager.generate_sequences(given)
    seconds, after = time.perf_counter() - began, fleet.cpu_s()
    watch.stop()
    columns = done.non_tensor_batch
    assert len(done) == count
    assert set(columns["num_tool_calls"]) == {turns - 1}
    assert all(score == 1.0 for score in columns["score"])
    cpu_s = {role: after[role] - before[role] for role in ROLES}
    cpu_s["manager"] -= watch.cpu_s
    at_once = sum(each["seconds"] for each in columns["metrics"]) / seconds
    return Case(count, turns, seconds, at_once, cpu_s, *map(max, zip(*watch.seen, strict=True)))


def whole_path(config: RunConfig, engines: Sequence[tuple[str, int]], turns: int, options: Any) -> list[list[Case]]:
    """For each round new workers, and batches of every size, the smaller ones first: a process gives little back."""
    rounds = []
    with init_ray(num_cpus=options.workers):
        for _ in range(options.rounds):
            with ExitStack() as stack:
                manager = AgentLoopManager(config, [address for address, _ in engines], backend="ray")
                stack.callback(manager.shutdown)
                manager.generate_sequences(batch(64, 0))  # imports, first connections
                fleet = Fleet([pid for _, pid in engines])
                rounds.append([run_batch(manager, fleet, count, turns) for count in sorted(options.in_flight)])
    return rounds


def growth(costs: Sequence[float]) -> float:
    """The last as a factor of the first."""
    return costs[-1] / costs[0]


def sizes_row(what: str, rounds: Sequence[Sequence[float]]) -> list[float]:
    """Print CPU-ms a turn at each size, the best of its rounds (others share the machine) and the worst; the best."""
    best = [min(each) for each in rounds]
    shown = "  ".join(f"{min(each):.3f} ({max(each):.3f})" for each in rounds)
    print(f"{what:16} {shown}   x {growth(best):.2f}", flush=True)
    return best


def slope_kb(cases: Sequence[Case], held: Sequence[int]) -> float:
    """How memory grows with each trajectory between the two largest batches, in thousands of bytes."""
    return (held[-1] - held[-2]) / (cases[-1].count - cases[-2].count) / 1000


def report_whole(rounds: Sequence[Sequence[Case]]) -> tuple[dict[str, list[float]], float]:
    """Print the whole path; CPU-ms by role, and kB of the workers per trajectory in flight, the best round's."""
    shown = ", ".join(f"{case.at_once:.0f} in {case.seconds:.1f} s" for cases in rounds for case in cases)
    print(f"whole path, batches of {[case.count for case in rounds[0]]} ({shown} on average); CPU-ms a turn")
    sizes = list(zip(*rounds, strict=True))
    found = {role: sizes_row(role, [[case.ms(role) for case in cases] for cases in sizes]) for role in ROLES}
    workers = [slope_kb(cases, [case.workers_bytes for case in cases]) for cases in rounds]
    print(f"kB per trajectory in flight: workers {min(workers):.1f} ({max(workers):.1f})")
    padded = slope_kb(rounds[0], [case.manager_bytes for case in rounds[0]])
    print(f"kB per trajectory that ended, in the manager with the padded batch: {padded:.1f}\n")
    return found, min(workers)


def on_paper(manager: float, worker: float, kb: float, chunks: int) -> str:
    """The run that is wanted, by the model above."""
    rate = WANTED / WANTED_TURN_S
    share = -(-WANTED // WANTED_WORKERS)
    return (
        f"on paper, {WANTED:,} in flight, {WANTED_WORKERS} workers, {WANTED_ENGINES} engines, turns of "
        f"{WANTED_TURN_S:g} s: {rate:,.0f} turns/s\n"
        f"  manager: {rate * manager / 1000:.2f} of a core; it could take {1000 / manager:,.0f} turns/s; "
        f"{chunks} chunks a batch\n"
        f"  a worker: {share} trajectories, {rate / WANTED_WORKERS * worker / 1000:.2f} of a core, "
        f"{share * kb / 1000:.0f} MB beyond its own\n"
        f"  connections: {share} of a worker, {-(-WANTED // WANTED_ENGINES)} of an engine"
    )


def in_process(config: RunConfig, found: Recorded, addresses: Sequence[str]) -> tuple[list[float], list[float], int]:
    """Print the parts that run in this process; CPU-ms of the router and of the manager at each size, and chunks."""
    shares = [WANTED // WANTED_WORKERS * factor for factor in (1, 2, 4)]
    rounds = [[router_ms(found, WANTED_ENGINES, count) for count in shares] for _ in range(6)][1:]
    print(f"in this process; CPU-ms a turn\nrouter: {WANTED_ENGINES} engines, {shares} in flight")
    router = sizes_row("router alone", list(zip(*rounds, strict=True)))
    sizes = [WANTED // 4, WANTED // 2, WANTED]
    costs, chunks = manager_ms(config, found, WANTED_WORKERS, WANTED, sizes, 3)
    print(f"manager: {WANTED_WORKERS} workers on paper, batches of {sizes}, of which the last has {chunks} chunks")
    manager = sizes_row("manager alone", costs)
    print(f"exchange: {len(addresses)} engines, {EXCHANGED} requests in flight")
    exchanges = [exchange_ms(found, addresses, EXCHANGED) for _ in range(3)]
    for way in exchanges[0]:
        each = sorted(one[way] for one in exchanges)
        ratio = statistics.median(one["httpx"] / one[way] for one in exchanges)
        shown = f"{each[1]:6.3f} ({each[0]:.3f} to {each[-1]:.3f})"
        print(f"by {way:19} {shown}   httpx takes {ratio:.1f} times that", flush=True)
    return router, manager, chunks


def missed(router_and_manager: float, kb: float, grown: dict[str, float]) -> list[str]:
    """The bars that are missed."""
    found = [f"{router_and_manager:.2f} CPU-ms a turn"] if router_and_manager > MOST_MS else []
    found += [f"{kb:.0f} kB per trajectory"] if kb > MOST_KB else []
    return found + [f"{what} grows by {factor:.1f}" for what, factor in grown.items() if factor > MOST_GROWTH]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[400, 800, 1600])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--calls", type=int, default=3, help="of the tool, by each trajectory")
    parser.add_argument("--latency-s", type=float, default=3.0, help="of a turn, on average")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokenizer", help="Hugging Face folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(options.tokenizer)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = run_config(write_model(folder / "model", tokenizer), max(options.in_flight))
        config.actor_rollout_ref.rollout.agent.num_workers = options.workers
        texts = [[text.replace("+4", f"+4{number:03}") for text in script(options.calls)] for number in range(SCRIPTS)]
        scripts = [[[*tokenizer.encode(text), tokenizer.eos_token_id] for text in turns] for turns in texts]
        (folder / "scripts.json").write_text(json.dumps(scripts))
        engines = [
            stack.enter_context(engine(folder / "scripts.json", options.latency_s)) for _ in range(options.engines)
        ]
        found = record(config, scripts[0])
        tokens = len(found.row.tokens.prompt) + len(found.row.tokens.response)
        print(f"{found.turns} turns, {tokens} tokens in the end; load {os.getloadavg()[0]:.1f}\n")
        costs, kb = report_whole(whole_path(config, engines, found.turns, options))
        managed = manager_kb(config, found, WANTED_WORKERS, 2000)
        router, paper, chunks = in_process(config, found, [address for address, _ in engines])
    both = router[-1] + costs["manager"][-1]
    whole = costs["workers"][-1] + costs["manager"][-1]
    print(f"\nrouter and manager: {both:.3f} CPU-ms a turn, of {whole:.3f} of workers and manager")
    print(f"in flight: {kb + managed:.1f} kB per trajectory, {managed:.1f} of them in the manager")
    print(on_paper(max(costs["manager"][-1], paper[-1]), costs["workers"][-1], kb, chunks))
    parts = {"the router": router, "the manager on paper": paper, "the manager": costs["manager"]}
    grown = {what: growth(each) for what, each in (parts | {"a worker": costs["workers"]}).items()}
    bars = missed(both, kb + managed, grown)
    print("missed: " + "; ".join(bars) if bars else "every bar is met")
    return 1 if bars else 0


if __name__ == "__main__":
    sys.exit(main())

"""How fast the retrieval service is: index build, queries per second over HTTP, latency, memory; dense recall.

The corpus is synthetic: English-like word lengths, term frequencies by Zipf's law, 60 to 140 words per document. Each
query is six different words of a document, and the result cache is off. Server and client share the machine.
`library_qps` is bm25s's own compiled search of the same queries in batches, in this process, without HTTP.
`single_ratio` compares this service with the server that one would write in an afternoon, FastAPI around bm25s's
compiled search of the same index (`--plain-server`): queries one by one from 64 clients, the two servers in turns.

    python benchmarks/retrieval.py [--documents 100000] [--seconds 8]
    python benchmarks/retrieval.py --encoder DIR [--documents 20000]     recall of the graph on real embeddings
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import psutil
from pydantic import BaseModel

VOCABULARY = 60_000
TARGETS = {
    "build_s": 40.0,
    "batch_qps": 600.0,
    "single_qps": 150.0,
    "single_p95_ms": 250.0,
    "single_ratio": 1.3,
    "recall@10": 0.95,
}
AT_MOST = {"build_s", "single_p95_ms"}
RUN = [sys.executable, "-c", "from agentrl.cli import main; main()"]
TEMPLATES = (
    "{a} {b} is known for its {c} and {d}.",
    "In {year} the {a} of {b} changed how people {v} {c}.",
    "Many {c} near {b} {v} every {d} because of the {a}.",
    "The {d} of {a} was first described in {year} by a {c} from {b}.",
)


class Words:
    """Draws words by Zipf's law."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        letters = np.array(list("etaoinshrdlcumwfgypbvkxjqz"))
        lengths = self._random.integers(3, 11, VOCABULARY)
        self.words = ["".join(self._random.choice(letters, size=n)) for n in lengths]
        weights = 1 / np.arange(1, VOCABULARY + 1)
        self._cumulative = np.cumsum(weights / weights.sum())

    def documents(self, count: int) -> list[npt.NDArray[np.int64]]:
        """Word numbers of every document."""
        lengths = self._random.integers(60, 140, count)
        drawn = np.searchsorted(self._cumulative, self._random.random(int(lengths.sum())))
        return np.split(np.minimum(drawn, VOCABULARY - 1), np.cumsum(lengths)[:-1])

    def queries(self, documents: list[npt.NDArray[np.int64]], count: int) -> list[str]:
        """Six different words of a document each."""
        chosen = self._random.integers(len(documents), size=count)
        return [
            " ".join(self.words[n] for n in self._random.choice(np.unique(documents[d]), 6, replace=False))
            for d in chosen
        ]


def write_corpus(path: Path, words: Words, documents: list[npt.NDArray[np.int64]]) -> None:
    """As `id, title, text`."""
    with path.open("w", encoding="utf-8") as file:
        for number, document in enumerate(documents):
            text = " ".join(words.words[n] for n in document)
            file.write(json.dumps({"id": number, "title": text[:20], "text": text}) + "\n")


def build(corpus: Path, out: Path, *arguments: str) -> float:
    """Seconds that `agentrl data index` takes, including the start of Python."""
    started = time.perf_counter()
    subprocess.run([*RUN, "data", "index", str(corpus), "--out", str(out), "--quiet", *arguments], check=True)
    return time.perf_counter() - started


class Asked(BaseModel):
    """A request to the plain server."""

    queries: list[str]
    topk: int = 3
    return_scores: bool = False


def plain_server(index: Path) -> None:
    """FastAPI around bm25s's compiled search of one request at a time, with the documents of the index."""
    import bm25s
    import uvicorn
    from fastapi import FastAPI

    from agentrl.services.common.http_server import listen
    from agentrl.services.retrieval.text_analysis import Analyzer

    analyze, app = Analyzer("english"), FastAPI()
    found = bm25s.BM25.load(index / "bm25", mmap=True, backend="numba")
    documents = [json.loads(line) for line in (index / "documents.jsonl").open(encoding="utf-8")]
    found.retrieve([["warm", "up"]], k=3, show_progress=False)

    def retrieve(asked: Asked) -> dict[str, Any]:
        tokens = [analyze(query) for query in asked.queries]
        rows, scores = found.retrieve(tokens, k=asked.topk, show_progress=False)
        pairs = [zip(*row, strict=True) for row in zip(rows.tolist(), scores.tolist(), strict=True)]
        return {"result": [[{"document": documents[n], "score": score} for n, score in row] for row in pairs]}

    app.post("/retrieve")(retrieve)
    with listen("127.0.0.1", 0) as listener:
        print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}), file=sys.stderr, flush=True)
        uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[listener])


def service_command(index: Path) -> list[str]:
    return [*RUN, "serve", "retrieval", "--index", str(index), "--port", "0", "--cache-mb", "0"]


@contextmanager
def server(command: list[str]) -> Iterator[tuple[str, psutil.Process]]:
    """A server in another process."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        process = subprocess.Popen(command, stderr=log)
        try:
            url, until = "", time.monotonic() + 60
            while not url and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
                line = (Path(folder) / "log").read_bytes().partition(b"\n")
                url = json.loads(line[0])["url"] if line[1] else ""
            yield url, psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


async def drive(
    url: str, bodies: list[bytes], clients: int, seconds: float
) -> tuple[int, float, npt.NDArray[np.float64]]:
    """Requests answered, seconds taken, latencies in ms; a client sends its next request after each answer."""
    waiting, latencies = iter(bodies), []
    connector = aiohttp.TCPConnector(limit=clients)
    async with aiohttp.ClientSession(connector=connector) as session:
        until = time.perf_counter() + seconds

        async def client() -> None:
            for body in waiting:
                started = time.perf_counter()
                if started > until:
                    return
                headers = {"Content-Type": "application/json"}
                async with session.post(f"{url}/retrieve", data=body, headers=headers) as answer:
                    await answer.read()
                    assert answer.status == 200, await answer.text()
                latencies.append((time.perf_counter() - started) * 1000)

        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return len(latencies), time.perf_counter() - started, np.array(latencies)


def body(queries: list[str]) -> bytes:
    return json.dumps({"queries": queries, "topk": 3, "return_scores": True}).encode()


def library_qps(index: Path, queries: list[str]) -> float:
    """bm25s alone, compiled, in batches of 32."""
    import bm25s

    from agentrl.services.retrieval.text_analysis import Analyzer

    analyze = Analyzer("english")
    found = bm25s.BM25.load(index / "bm25", mmap=True, backend="numba")
    tokens = [analyze(query) for query in queries]
    found.retrieve(tokens[:32], k=3, show_progress=False)
    started = time.perf_counter()
    for start in range(0, len(tokens), 32):
        found.retrieve(tokens[start : start + 32], k=3, show_progress=False)
    return len(tokens) / (time.perf_counter() - started)


def sparse(documents: int, seconds: float) -> dict[str, float]:
    """Everything about BM25."""
    words = Words(seed=1)
    texts = words.documents(documents)
    queries = words.queries(texts, 40_000)
    figures: dict[str, float] = {"documents": documents}
    with tempfile.TemporaryDirectory() as folder:
        corpus, index = Path(folder) / "corpus.jsonl", Path(folder) / "index"
        write_corpus(corpus, words, texts)
        figures["build_s"] = build(corpus, index)
        figures["index_mb"] = sum(file.stat().st_size for file in index.rglob("*") if file.is_file()) / 1e6
        started = time.perf_counter()
        with server(service_command(index)) as (url, process):
            figures["start_s"] = time.perf_counter() - started
            batches = [body(queries[n : n + 32]) for n in range(0, len(queries), 32)]
            asyncio.run(drive(url, batches[:8], 2, 5.0))
            count, took, _ = asyncio.run(drive(url, batches[8:], 2, seconds))
            figures["batch_qps"] = 32 * count / took
            count, took, latencies = asyncio.run(drive(url, [body([q]) for q in reversed(queries)], 16, seconds))
            figures["single_qps"] = count / took
            figures["single_p50_ms"], figures["single_p95_ms"] = np.percentile(latencies, [50, 95])
            memory = process.memory_full_info()
            figures["memory_private_mb"], figures["memory_rss_mb"] = memory.uss / 1e6, memory.rss / 1e6
        figures["library_qps"] = library_qps(index, queries[:2000])
        figures |= against_plain_server(index, [body([query]) for query in queries], seconds)
    return figures


def against_plain_server(index: Path, bodies: list[bytes], seconds: float) -> dict[str, float]:
    """Queries per second of both servers one by one at 64 clients, and their ratio, of three rounds in turns."""
    plain = [sys.executable, __file__, "--plain-server", str(index)]
    rates: dict[str, list[float]] = {"single64_qps": [], "plain64_qps": []}
    with server(service_command(index)) as (ours, _), server(plain) as (theirs, _):
        for seconds_each in (1.0, *[seconds / 2] * 3):
            for name, url in (("single64_qps", ours), ("plain64_qps", theirs)):
                count, took, _ = asyncio.run(drive(url, bodies, 64, seconds_each))
                rates[name].append(count / took)
    ours_qps, theirs_qps = (rate[1:] for rate in rates.values())  # the first round warms up
    ratios = [a / b for a, b in zip(ours_qps, theirs_qps, strict=True)]
    medians = {name: float(np.median(rate[1:])) for name, rate in rates.items()}
    spread = {"single_ratio_min": min(ratios), "single_ratio_max": max(ratios)}
    return {**medians, "single_ratio": float(np.median(ratios)), **spread}


def dense(encoder: str, documents: int) -> dict[str, float]:
    """Recall of the graph against exact search, on embeddings of different sentences."""
    from agentrl.services.retrieval.dense import find_nearest, make_faiss
    from agentrl.services.retrieval.encoder import Encoder, find_preset

    source = np.random.default_rng(3)
    words = (Path(__file__).parents[1] / "docs" / "concepts.md").read_text(encoding="utf-8").split()
    words += (Path(__file__).parents[1] / "services" / "retrieval" / "sample_corpus.jsonl").read_text().split()
    nouns = sorted({word.strip('".,:;()`*').lower() for word in words if word.strip('".,').isalpha()})

    def sentence() -> str:
        a, b, c, d, v = source.choice(nouns, 5)
        return TEMPLATES[source.integers(len(TEMPLATES))].format(
            a=a, b=b, c=c, d=d, v=v, year=source.integers(1500, 2020)
        )

    model = Encoder(encoder, find_preset("auto", encoder), 64)
    started = time.perf_counter()
    passages = np.concatenate([model.passages([sentence() for _ in range(64)]) for _ in range(documents // 64)])
    encoded = len(passages) / (time.perf_counter() - started)
    queries = model.queries([sentence() for _ in range(500)])
    exact, graph = (make_faiss(kind, passages.shape[1]) for kind in ("flat", "hnsw"))
    exact.add(passages)
    started = time.perf_counter()
    graph.add(passages)
    built = time.perf_counter() - started
    wanted = find_nearest(exact, queries, 10, False)[1]
    started = time.perf_counter()
    found = find_nearest(graph, queries, 10, True)[1]
    rate = len(queries) / (time.perf_counter() - started)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(wanted.tolist(), found.tolist(), strict=True)])
    return {
        "documents": len(passages),
        "encode_per_s": encoded,
        "graph_build_s": built,
        "graph_qps": rate,
        "recall@10": float(recall),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--encoder", help="measure dense search with this model folder instead")
    parser.add_argument("--plain-server", type=Path, metavar="INDEX", help="only run the server to compare with")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    given = parser.parse_args()
    if given.plain_server:
        plain_server(given.plain_server)
        return 0
    figures = dense(given.encoder, given.documents) if given.encoder else sparse(given.documents, given.seconds)
    missed = 0
    for name, value in figures.items():
        target = TARGETS.get(name)
        met = target is None or (value <= target if name in AT_MOST else value >= target)
        missed += not met
        sign = "<=" if name in AT_MOST else ">="
        print(
            f"{name:18} {value:10,.2f}"
            + (f"   target {sign} {target:g}: {'met' if met else 'MISSED'}" if target else "")
        )
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())

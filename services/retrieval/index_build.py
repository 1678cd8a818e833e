"""Build an index from a corpus: resumable block by block, published in one step."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from agentrl.errors import DataError, UserInputError
from agentrl.services.retrieval import bm25, dense
from agentrl.services.retrieval.build_options import BuildOptions
from agentrl.services.retrieval.corpus import Corpus, CorpusBlock
from agentrl.services.retrieval.corpus_shards import Shard, hash_id, make_shard
from agentrl.services.retrieval.document_store import DOCUMENTS, ENDS
from agentrl.services.retrieval.folder_replacement import replace_folder
from agentrl.services.retrieval.index_manifest import MANIFEST, deciding, find_versions, write_manifest
from agentrl.services.retrieval.text_analysis import Analyzer

_PLAN = "plan.json"


def build_index(files: list[Path], out: Path, options: BuildOptions, force: bool = False, quiet: bool = False) -> int:
    """Make an index folder.

    An interrupted build continues where it stopped when the same command runs again; until it ends, `out` does not
    exist (or is the old index, with `force`).

    Args:
        files: the corpus.
        out: the folder; must not exist unless `force`.
        options: kind and settings.
        force: replace an older index in one step.
        quiet: no progress bar.

    Returns:
        Number of documents.

    Raises:
        UserInputError: an argument cannot be used, or another build of the same folder is running.
        DataError: a row cannot be used.
    """
    if options.encoder is not None and Path(options.encoder).is_dir():  # the server may start in another folder
        options = replace(options, encoder=str(Path(options.encoder).resolve()))
    if out.exists() and not (force and (out / MANIFEST).is_file()):
        hint = "give --force to replace it" if (out / MANIFEST).is_file() else "it is not an index; choose another name"
        raise UserInputError(f"--out {out}: exists already; {hint}")
    Analyzer(options.stemmer)  # an unknown stemmer is an error at once, not in a worker
    encoder = dense.open_encoder(options) if options.kind != "bm25" else None
    if encoder is not None:
        options = replace(options, max_tokens=encoder.max_tokens)
    corpus = Corpus(files, options.block_rows)
    with _workplace(out) as work, _progress(quiet) as bars:
        _resume_or_start(work, corpus, options)
        shards = _read(corpus, work, options, bars)
        documents = _check_documents(shards)
        built = work / "built"
        shutil.rmtree(built, ignore_errors=True)
        built.mkdir()
        _join_documents(shards, built)
        settings = options.settings()
        if options.kind != "dense":
            task = bars.add_task("writing terms", total=len(shards))
            bm25.assemble(shards, built / bm25.FOLDER, options.k1, options.b, lambda: bars.advance(task))
        if encoder is not None:
            task = bars.add_task("encoding", total=documents)
            settings |= dense.assemble(
                shards, built / dense.FOLDER, encoder, options, lambda count: bars.advance(task, count)
            )
        about = {"files": corpus.fingerprint(), "sha256": corpus.sha256()}
        write_manifest(built, options.kind, documents, settings, about)
        replace_folder(built, out)
        shutil.rmtree(work)
    return documents


@contextmanager
def _workplace(out: Path) -> Iterator[Path]:
    """The folder of a build in progress, for one process at a time."""
    work = out.with_name(f".{out.name}.building")
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(work / "lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise UserInputError(f"--out {out}: cannot write beside it: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield work
    except BlockingIOError:
        raise UserInputError(f"--out {out}: another build of it is running") from None
    finally:
        os.close(lock)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    from rich.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=quiet) as bars:
        yield bars


def _resume_or_start(work: Path, corpus: Corpus, options: BuildOptions) -> None:
    """Keep the blocks of an earlier build only if it had the same corpus, settings and deciding versions."""
    settings = options.settings()
    about = {"corpus": corpus.fingerprint(), "versions": deciding(find_versions(options.kind, settings))}
    plan = {**about, "kind": options.kind, "rows": options.block_rows, **settings}
    path = work / _PLAN
    if path.is_file() and path.read_text(encoding="utf-8") == json.dumps(plan):
        return
    for old in work.iterdir():
        if old.name != "lock":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    path.write_text(json.dumps(plan), encoding="utf-8")


def _read(corpus: Corpus, work: Path, options: BuildOptions, bars: Progress) -> list[Shard]:
    """Make a shard of every block that has none."""
    task = bars.add_task("reading", total=corpus.total_bytes)
    stemmer = None if options.kind == "dense" else options.stemmer
    shards = []
    with _Workers(options.workers or os.cpu_count() or 1) as workers:
        for block in corpus.blocks():
            shard = Shard(work, block.number)
            shards.append(shard)
            if not shard.is_done():
                workers.run(block, work, stemmer)
            bars.update(task, completed=block.bytes_read)
    return shards


class _Workers:
    """Makes shards in other processes once there is more than one; a few blocks wait at most."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None
        self._first: tuple[CorpusBlock, Path, str | None] | None = None
        self._running: deque[Future[None]] = deque()

    def __enter__(self) -> _Workers:
        return self

    def run(self, block: CorpusBlock, folder: Path, stemmer: str | None) -> None:
        """Take a block; waits while enough others do."""
        if self._count == 1:
            make_shard(block, folder, stemmer)
        elif self._pool is None and self._first is None:
            self._first = (block, folder, stemmer)
        else:
            if self._pool is None:
                spawn = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self._count, spawn, initializer=_end_with_parent)
            if self._first is not None:
                self._running.append(self._pool.submit(make_shard, *self._first))
                self._first = None
            self._running.append(self._pool.submit(make_shard, block, folder, stemmer))
            while len(self._running) > self._count + 1:
                self._running.popleft().result()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._first is not None and self._pool is None:
                make_shard(*self._first)
            while kind is None and self._running:
                self._running.popleft().result()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this worker if its build is killed: it would otherwise wait for the next block indefinitely."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _check_documents(shards: list[Shard]) -> int:
    """Count the documents; no two have the same id."""
    hashes = [shard.load("id_hashes") for shard in shards]
    total = sum(len(part) for part in hashes)
    if not total:
        raise UserInputError("the corpus has no documents")
    values, counts = np.unique(np.concatenate(hashes), return_counts=True)
    if len(values) < total:
        twice = int(values[counts > 1][0])
        for shard in shards:
            for line in shard.documents.read_bytes().splitlines():
                identity = orjson.loads(line)["id"]
                if hash_id(identity) == twice:
                    raise DataError("the corpus", None, "id", f"{identity!r} more than once", "an id per document")
    return total


def _join_documents(shards: list[Shard], out: Path) -> None:
    ends, size = [], 0
    with (out / DOCUMENTS).open("wb") as joined:
        for shard in shards:
            ends.append(shard.load("ends").astype(np.int64) + size)
            with shard.documents.open("rb") as part:
                shutil.copyfileobj(part, joined, 1 << 20)
            size = joined.tell()
    np.save(out / ENDS, np.concatenate(ends))

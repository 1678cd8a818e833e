"""Builds: resumed, atomic, checked."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.errors import DataError, UserInputError
from agentrl.services.retrieval import bm25, index_manifest
from agentrl.services.retrieval.build_options import BuildOptions
from agentrl.services.retrieval.corpus_shards import Shard
from agentrl.services.retrieval.index import Index
from agentrl.services.retrieval.index_build import build_index
from agentrl.services.retrieval.index_manifest import content_hash
from agentrl.services.sandbox.process_tree import children, is_dead

Build = Callable[..., Path]
save = Shard.save
ROWS = [{"id": n, "contents": f"word{n} common"} for n in range(10)]


def count(index: Index, query: str) -> int:
    return len(index.search([query], 100)[0])


def test_worker_processes_build_the_same_index(build: Build, tmp_path: Path) -> None:
    alone = build(ROWS, block_rows=3)
    build_index([tmp_path / "corpus.jsonl"], tmp_path / "many", BuildOptions(workers=2, block_rows=3), quiet=True)
    first, second = (json.loads((folder / "index.json").read_text()) for folder in (alone, tmp_path / "many"))
    assert first["sha256"] == second["sha256"]
    assert first["corpus"]["sha256"] == second["corpus"]["sha256"]


BUILD = """
import sys, time
from pathlib import Path
from agentrl.services.retrieval.build_options import BuildOptions
from agentrl.services.retrieval.index_build import build_index
from agentrl.services.retrieval.corpus import Corpus

def blocks(corpus):
    yield from whole(corpus)
    print("read", flush=True)
    time.sleep(60)

whole, Corpus.blocks = Corpus.blocks, blocks
build_index([Path(sys.argv[1])], Path(sys.argv[2]), BuildOptions(workers=2, block_rows=3), quiet=True)
"""


def test_a_killed_build_leaves_no_processes(write_corpus: Callable[..., Path], tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(write_corpus(ROWS)), str(tmp_path / "index")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"read\n"
        workers = children(process.pid)
        process.kill()
    assert len(workers) >= 2
    deadline = time.monotonic() + 20
    while not all(map(is_dead, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_build_shows_its_progress_unless_it_is_quiet(
    write_corpus: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    build_index([write_corpus(ROWS)], tmp_path / "index", BuildOptions(workers=1), quiet=quiet)
    shown = capsys.readouterr()
    assert not shown.out.strip()
    for task in ("reading", "writing terms"):
        assert bool(re.search(rf"{task}.*━.*100%", shown.err)) is not quiet


def test_an_interrupted_build_goes_on(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bm25, "_write_small_files", killed)
        with pytest.raises(KeyboardInterrupt):
            build(ROWS, block_rows=3)
    assert not (tmp_path / "index").exists()
    work = tmp_path / ".index.building"
    made = {path.name: path.stat().st_mtime_ns for path in work.glob("*.npz")}
    assert len(made) == 4
    (work / "000002.npz").unlink()
    corpus = [tmp_path / "corpus.jsonl"]
    build_index(corpus, tmp_path / "index", BuildOptions(workers=1, block_rows=3), quiet=True)
    assert count(Index(tmp_path / "index"), "common") == 10
    assert not work.exists()


def test_shards_of_other_settings_or_another_corpus_are_not_used(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def interrupted(rows: list[dict[str, object]]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(bm25, "_write_small_files", killed)
            with pytest.raises(KeyboardInterrupt):
                build(rows, block_rows=3)

    interrupted([{"id": n, "contents": "running"} for n in range(10)])
    assert count(Index(build(ROWS, block_rows=3)), "running") == 0
    interrupted_name = [{"id": n, "contents": "running"} for n in range(4)]
    (tmp_path / "index").rename(tmp_path / "first")
    interrupted(interrupted_name)
    index = Index(build(interrupted_name, block_rows=3, stemmer="none"))
    assert (count(index, "running"), count(index, "run")) == (4, 0)


def test_shards_of_another_stemmer_release_are_not_used(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bm25, "_write_small_files", killed)
        patch.setattr(index_manifest, "version", lambda package: "0.9.9")
        with pytest.raises(KeyboardInterrupt):
            build(ROWS, block_rows=3)
    made: list[int] = []
    monkeypatch.setattr(Shard, "save", lambda shard, *files: (made.append(1), save(shard, *files)))
    build_index([tmp_path / "corpus.jsonl"], tmp_path / "index", BuildOptions(workers=1, block_rows=3), quiet=True)
    assert len(made) == 4


def test_an_index_is_replaced_only_by_force_and_an_open_one_goes_on(build: Build, tmp_path: Path) -> None:
    old = Index(build(ROWS))
    with pytest.raises(UserInputError, match="--force"):
        build(ROWS[:3])
    new = Index(build(ROWS[:3], force=True))
    assert (count(old, "common"), count(new, "common")) == (10, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]
    (tmp_path / "other").mkdir()
    with pytest.raises(UserInputError, match="not an index"):
        build(ROWS, name="other", force=True)


def test_two_builds_of_one_folder_do_not_mix(build: Build, tmp_path: Path) -> None:
    work = tmp_path / ".index.building"
    work.mkdir()
    lock = os.open(work / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(UserInputError, match="another build"):
        build(ROWS)
    os.close(lock)
    build(ROWS)


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ([], UserInputError, "no documents"),
        ([*ROWS, {"id": "3", "contents": "again"}], DataError, "'3' more than once"),
        ([*ROWS, {"id": "x"}], DataError, "row 11"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_corpora_that_cannot_be_used(
    build: Build, tmp_path: Path, rows: list[dict[str, object]], error: type[Exception], words: str, workers: int
) -> None:
    with pytest.raises(error, match=words):
        build(rows, block_rows=20, workers=workers)
    assert not (tmp_path / "index").exists()


def _edit(change: Callable[[dict[str, Any]], object], hashed: bool = False) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = json.loads((folder / "index.json").read_text())
        change(content)
        if hashed:
            content["sha256"] = content_hash(content)
        (folder / "index.json").write_text(json.dumps(content))

    return damage


def _flip(folder: Path) -> None:
    content = (folder / "documents.jsonl").read_bytes()
    (folder / "documents.jsonl").write_bytes(content.replace(b"word3", b"word4"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "index.json").unlink(), "agentrl data index"),
        (lambda folder: (folder / "index.json").write_text("{"), "agentrl data index"),
        (lambda folder: (folder / "bm25" / "vocab.index.json").unlink(), "vocab.index.json: got no file"),
        (lambda folder: (folder / "documents.jsonl").write_bytes(b"{}\n"), "documents.jsonl: got 3 bytes"),
        (_flip, "sha256"),
        (_edit(lambda content: content.update(format=99)), "format 99"),
        (_edit(lambda content: content.update(kind="bm26"), hashed=True), "Did you mean 'bm25'"),
        (_edit(lambda content: content.update(sha256="0")), "changed after the build"),
        (_edit(lambda content: content["settings"].update(stemmer="none")), "changed after the build"),
        (_edit(lambda content: content.update(documents=9)), "changed after the build"),
        (_edit(lambda content: content["versions"].update(agentrl="99")), "changed after the build"),
        (_edit(lambda content: content["corpus"].update(sha256="0")), "changed after the build"),
        (
            _edit(lambda content: content["versions"].update(PyStemmer="0.9.9"), hashed=True),
            "with PyStemmer 0.9.9",
        ),
        (_edit(lambda content: content["versions"].update(bm25s="0.0.0"), hashed=True), "with bm25s 0.0.0"),
        (_edit(lambda content: content["settings"].update(tokenizer_version=0), hashed=True), "tokenizer"),
    ],
)
def test_a_damaged_index_is_not_served(build: Build, damage: Callable[[Path], None], words: str) -> None:
    folder = build(ROWS)
    damage(folder)
    with pytest.raises(UserInputError) as problem:
        Index(folder)
    assert words in str(problem.value)


def test_other_versions_that_cannot_change_a_result_are_a_warning(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[dict[str, Any]] = []
    monkeypatch.setattr(index_manifest, "log", lambda level, event, **fields: warnings.append(fields))
    folder = build(ROWS)
    assert count(Index(folder), "common") == 10
    assert not warnings
    patch = f"{version('bm25s').rpartition('.')[0]}.999"
    _edit(lambda content: content["versions"].update(agentrl="99", bm25s=patch), hashed=True)(folder)
    assert count(Index(folder), "common") == 10
    assert [(one["built_with"], one["installed"]) for one in warnings] == [
        ({"agentrl": "99", "bm25s": patch}, {"agentrl": agentrl.__version__, "bm25s": version("bm25s")})
    ]


def test_only_versions_that_count_are_kept(build: Build) -> None:
    versions = Index(build(ROWS, stemmer="none")).about["versions"]
    assert sorted(versions) == ["agentrl", "bm25s", "numpy", "python"]


def test_without_hashes_only_sizes_are_checked(build: Build) -> None:
    folder = build(ROWS)
    _flip(folder)
    assert count(Index(folder, hash_files=False), "word3") == 1

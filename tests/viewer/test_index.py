"""The index of dumps: what is in it, how it follows a run that writes, and what damaged files do."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from made_dumps import record, write_dump

from agentrl.observability.viewer import index as index_module
from agentrl.observability.viewer import search
from agentrl.observability.viewer.index import STEP_BITS, DumpIndex
from agentrl.observability.viewer.store import INDEX_FILE, open_store


def refreshed(folder: Path) -> DumpIndex:
    index = DumpIndex(folder)
    index.refresh()
    return index


def rows(index: DumpIndex, **conditions: object) -> list[search.Row]:
    return search.page_of(index, search.Page(limit=1000, **conditions))[1]


def test_a_trajectory_in_the_table(tmp_path: Path) -> None:
    write_dump(tmp_path, 3, [record(7, 3, advantages=[0.5, 1.5, 0.0, 0.5, 1.5])])
    (row,) = rows(refreshed(tmp_path))
    assert row.pop("prompt_key")
    assert row == {
        "id": 3 << STEP_BITS,
        "step": 3,
        "uid": "3-3",
        "data_source": "agentrl/arithmetic",
        "reward": 1.0,
        "advantage": 1.0,
        "stop_reason": "completed",
        "turns": 4,
        "tool_calls": 1,
        "tokens": 5,
        "tools": ["calculator"],
        "failed": False,
        "question": "What is 7 + 1?",
        "start": "<call>7+1</call><|tool|>8<|assistant|>It is 8",
    }


def test_a_dump_of_verl_has_fewer_fields(tmp_path: Path) -> None:
    write_dump(tmp_path, 1, [{"input": "user\nHi", "output": "Hello", "gts": None, "score": 0.5, "step": 1}])
    (row,) = rows(refreshed(tmp_path))
    assert (row["question"], row["start"], row["reward"], row["uid"]) == ("user\nHi", "Hello", 0.5, "")
    assert [row[name] for name in ("advantage", "turns", "tool_calls", "tokens", "tools")] == [None] * 4 + [[]]


def test_a_record_is_read_from_its_place(tmp_path: Path) -> None:
    write_dump(tmp_path, 1, [record(number) for number in range(5)])
    index = refreshed(tmp_path)
    assert [index.read(1 << STEP_BITS | number) for number in range(5)] == [record(number) for number in range(5)]
    assert index.read(99) is None


@pytest.mark.parametrize("bad", ["{", "[1]", "null", '{"input": 1, "output": "x"}', '{"input": "only"}', "\\"])
def test_damaged_lines_are_counted_and_left_out(tmp_path: Path, bad: str) -> None:
    write_dump(tmp_path, 1, [record(0), bad, "", record(1)])
    index = refreshed(tmp_path)
    assert [row["id"] & 0xFF for row in rows(index)] == [0, 2]
    assert (index.damaged, index.complete, index.problem) == (1, True, None)
    assert index.read(1 << STEP_BITS | 2) == record(1)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_half_written_line_counts_when_it_is_whole(tmp_path: Path, cut: int) -> None:
    path = write_dump(tmp_path, 1, [record(0)])
    line = json.dumps(record(1)) + "\n"
    index = DumpIndex(tmp_path)
    with path.open("a") as file:
        file.write(line[:cut])
        file.flush()
        index.refresh()
        assert len(rows(index)) == 1
        file.write(line[cut:])
    index.refresh()
    assert [index.read(row["id"]) for row in rows(index)] == [record(0), record(1)]
    assert index.damaged == 0


def test_a_last_line_without_an_end_counts(tmp_path: Path) -> None:
    path = write_dump(tmp_path, 1, [])
    path.write_text(json.dumps(record(0)))
    index = refreshed(tmp_path)
    assert len(rows(index)) == 1
    with path.open("a") as file:
        file.write("\n" + json.dumps(record(1)) + "\n")
    index.refresh()
    assert [index.read(row["id"]) for row in rows(index)] == [record(0), record(1)]


def test_appended_steps_and_lines_appear(tmp_path: Path) -> None:
    index = refreshed(tmp_path)
    assert rows(index) == []
    for step in range(1, 4):
        path = write_dump(tmp_path, step, [record(0, step)])
        index.refresh()
        with path.open("a") as file:
            file.write(json.dumps(record(1, step)) + "\n")
        index.refresh()
        assert len(rows(index)) == 2 * step


def test_what_is_indexed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_dump(tmp_path, 1, [record(number) for number in range(3)])
    first = refreshed(tmp_path)
    first.close()
    read: list[bytes] = []
    parse = index_module.parse_record
    monkeypatch.setattr(index_module, "parse_record", lambda line, **kind: (read.append(line), parse(line, **kind))[1])
    second = refreshed(tmp_path)
    assert (len(rows(second)), read) == (3, [])
    with path.open("a") as file:
        file.write(json.dumps(record(3)) + "\n")
    second.refresh()
    assert (len(rows(second)), len(read)) == (4, 1)


def test_a_replaced_dump_is_indexed_anew(tmp_path: Path) -> None:
    write_dump(tmp_path, 1, [record(0), record(1)])
    write_dump(tmp_path, 2, [record(0, 2)])
    index = refreshed(tmp_path)
    part = write_dump(tmp_path / "part", 1, [record(5), record(6), record(7)])
    os.replace(part, tmp_path / "1.jsonl")
    assert index.read(1 << STEP_BITS) is None, "the place holds another conversation by now"
    index.refresh()
    assert [row["question"][8] for row in rows(index)] == ["5", "6", "7", "0"]
    assert len(rows(index, text="what is 1 + 1")) == 0


def test_a_dump_that_is_written_from_the_start_again_is_indexed_anew(tmp_path: Path) -> None:
    path = write_dump(tmp_path, 1, [record(0), record(1)])
    index = refreshed(tmp_path)
    path.write_text("".join(json.dumps(record(number)) + "\n" for number in (8, 9, 10)))
    index.refresh()
    assert [index.read(row["id"]) for row in rows(index)] == [record(8), record(9), record(10)]


def test_a_removed_dump_leaves_the_table(tmp_path: Path) -> None:
    path = write_dump(tmp_path, 1, [record(0)])
    write_dump(tmp_path, 2, [record(0, 2)])
    index = refreshed(tmp_path)
    path.unlink()
    index.refresh()
    assert [row["step"] for row in rows(index)] == [2]
    assert index.read(1 << STEP_BITS) is None


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_index_is_made_again(tmp_path: Path, content: bytes) -> None:
    write_dump(tmp_path, 1, [record(0)])
    (tmp_path / INDEX_FILE).write_bytes(content)
    assert len(rows(refreshed(tmp_path))) == 1


def test_an_index_that_is_damaged_while_it_is_open_is_made_again(tmp_path: Path) -> None:
    write_dump(tmp_path, 1, [record(number) for number in range(400)])
    refreshed(tmp_path).close()
    with (tmp_path / INDEX_FILE).open("r+b") as file:
        file.seek(65536)
        file.write(b"\xee" * (file.seek(0, os.SEEK_END) - 65536))
        file.seek(65536)
        file.write(b"\xee" * 300_000)
    index = DumpIndex(tmp_path)
    for _ in range(3):
        write_dump(tmp_path, 2, [record(0, 2)])
        index.refresh()
    assert len(rows(index)) == 401


def test_an_index_of_another_version_is_made_again(tmp_path: Path) -> None:
    write_dump(tmp_path, 1, [record(0)])
    database = sqlite3.connect(tmp_path / INDEX_FILE)
    database.execute("CREATE TABLE rows (id, other)")
    database.execute("PRAGMA user_version=99")
    database.close()
    assert len(rows(refreshed(tmp_path))) == 1


def test_two_viewers_of_one_folder_do_not_meet(tmp_path: Path) -> None:
    write_dump(tmp_path, 1, [record(0)])
    first, second = refreshed(tmp_path), refreshed(tmp_path)
    write_dump(tmp_path, 2, [record(0, 2)])
    for index in (second, first):
        index.refresh()
        assert len(rows(index)) == 2


def test_a_folder_that_cannot_be_written_has_its_index_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps, cache = tmp_path / "dumps", tmp_path / "cache"
    write_dump(dumps, 1, [record(0)])
    (dumps / INDEX_FILE).mkdir()  # also root can write no file there
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    index = refreshed(dumps)
    assert len(rows(index)) == 1
    (file,) = (cache / "agentrl" / "viewer").glob("*.sqlite")
    index.close()
    assert open_store(dumps).place == str(file)


def test_without_any_place_the_index_ends_with_the_viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = tmp_path / "dumps"
    write_dump(dumps, 1, [record(0)])
    (dumps / INDEX_FILE).mkdir()
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(rows(refreshed(dumps))) == 1


def test_an_index_that_cannot_grow_says_so_and_goes_on_later(tmp_path: Path) -> None:
    write_dump(tmp_path, 1, [record(number) for number in range(3)])
    index = refreshed(tmp_path)
    with index.database() as database:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count={pages}")  # as on a full disk
    write_dump(tmp_path, 2, [record(number, 2, output="long " * 20_000) for number in range(5)])
    index.refresh()
    assert not index.complete
    assert "full" in str(index.problem)
    assert len(rows(index)) == 3
    with index.database() as database:
        database.execute("PRAGMA max_page_count=1000000")
    index.refresh()
    assert (len(rows(index)), index.complete, index.problem) == (8, True, None)


def test_pieces_are_written_while_a_long_dump_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_PIECE_ROWS", 10)
    write_dump(tmp_path, 1, [record(number) for number in range(45)])
    index, seen = DumpIndex(tmp_path), list[int]()

    def stop() -> bool:
        seen.append(search.count_of(index))
        return len(seen) >= 4

    index.refresh(stop)
    assert seen[:4] == [0, 10, 20, 30]
    assert not index.complete
    index.refresh()
    assert (index.complete, len(rows(index, text="What is 44 + 1"))) == (True, 1)


def test_files_of_other_names_are_no_dumps(tmp_path: Path) -> None:
    write_dump(tmp_path, 1, [record(0)])
    for name in ("metrics.jsonl", "1.json", ".2.jsonl.part", f"{2**40}.jsonl"):
        (tmp_path / name).write_text(json.dumps(record(9)) + "\n")
    assert len(rows(refreshed(tmp_path))) == 1


def test_a_dump_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_dump(tmp_path, 2, [record(0, 2)])
    (tmp_path / "1.jsonl").mkdir()
    index = refreshed(tmp_path)
    assert len(rows(index)) == 1
    assert f"cannot read {tmp_path / '1.jsonl'}" in str(index.problem)


def test_an_empty_folder_and_one_that_does_not_exist_yet(tmp_path: Path) -> None:
    index = refreshed(tmp_path / "later")
    assert index.complete
    write_dump(tmp_path / "later", 1, [record(0)])
    index.refresh()
    assert len(rows(index)) == 1


def test_a_folder_that_is_removed_and_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts"
    write_dump(folder, 1, [record(0), record(1)])
    index = refreshed(folder)
    shutil.rmtree(folder)
    index.refresh()
    assert (rows(index), index.complete, index.problem) == ([], True, None)
    write_dump(folder, 2, [record(0, 2)])
    index.refresh()
    assert [row["step"] for row in rows(index)] == [2]

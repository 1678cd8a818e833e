"""A plug-in file imports its neighbours as a script does, and its errors name it as its user does."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import AgentRLError, PluginError, repr_of, text_of
from agentrl.plugins import load_file, load_interactions, load_tools, resolve

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def modules_and_path() -> Any:
    modules, path, finders = set(sys.modules), list(sys.path), list(sys.meta_path)
    yield
    assert sys.path == path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.meta_path[:] = finders


def plugin(folder: Path, source: str, **neighbours: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in neighbours.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "mine.py").write_text(source)
    return folder / "mine.py"


def test_a_neighbour_file_and_a_neighbour_package(tmp_path: Path) -> None:
    (tmp_path / "nearby_parts").mkdir()
    (tmp_path / "nearby_parts" / "words.py").write_text("WORD = 'package'")
    source = "from nearby_helpers import WORD\nfrom nearby_parts.words import WORD as OTHER\n"
    module = load_file(plugin(tmp_path, source, nearby_helpers="WORD = 'file'"))
    assert (module.WORD, module.OTHER) == ("file", "package")


def test_neighbours_of_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    source = "import nearby_helpers\nclass Thing:\n    word = nearby_helpers.WORD\n"
    words = [
        load_file(plugin(tmp_path / name, source, nearby_helpers=f"WORD = '{name}'")).Thing.word
        for name in ("first", "second", "third")
    ]
    assert words == ["first", "second", "third"]
    assert sys.modules["nearby_helpers"].WORD == "first"  # type: ignore[attr-defined]


def test_a_neighbour_that_is_imported_only_when_a_function_runs(tmp_path: Path) -> None:
    source = "def word():\n    from nearby_later import WORD\n    return WORD\n"
    assert load_file(plugin(tmp_path, source, nearby_later="WORD = 'late'")).word() == "late"
    with pytest.raises(ImportError):
        import nearby_never  # type: ignore[import-not-found] # noqa: F401


def test_neighbours_of_the_same_name_are_kept_apart_when_functions_import_them(tmp_path: Path) -> None:
    source = "def word():\n    import nearby_helpers\n    return nearby_helpers.WORD\n"
    source += "def deep():\n    from nearby_parts.words import WORD\n    import nearby_parts.words as w\n"
    source += "    from nearby_parts import words\n    return WORD, w.WORD, words.WORD\n"
    source += "def later():\n    from nearby_helpers import later\n    return later()\n"
    helpers = "def later():\n    import nearby_more\n    return nearby_more.WORD\n"
    loaded = []
    for name in ("first", "second", "third"):
        (tmp_path / name / "nearby_parts").mkdir(parents=True)
        (tmp_path / name / "nearby_parts" / "words.py").write_text(f"WORD = '{name}'")
        nearby = {"nearby_helpers": f"WORD = '{name}'\n{helpers}", "nearby_more": f"WORD = '{name}'"}
        loaded.append(load_file(plugin(tmp_path / name, source, **nearby)))
    for names in (("first", "second", "third"), ("third", "first", "second")):
        for name, module in zip(
            names, (loaded[["first", "second", "third"].index(name)] for name in names), strict=True
        ):
            assert (module.word(), module.deep(), module.later()) == (name, (name,) * 3, name)


def test_threads_of_two_plugins_import_neighbours_of_the_same_name(tmp_path: Path) -> None:
    source = "def word():\n    import nearby_helpers\n    return nearby_helpers.WORD\n"
    slow = "import time; time.sleep(0.05); WORD = "
    names = ["first", "second", "third", "fourth"]
    loaded = [load_file(plugin(tmp_path / name, source, nearby_helpers=f"{slow}'{name}'")) for name in names]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda module: module.word(), loaded * 4)) == names * 4


def test_a_neighbour_that_fails_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"mine\.py cannot be imported: ZeroDivisionError"):
        load_file(plugin(tmp_path, "import nearby_broken", nearby_broken="1 / 0"))
    with pytest.raises(PluginError, match="ModuleNotFoundError: No module named 'nearby_gone'"):
        load_file(plugin(tmp_path / "two", "import nearby_gone"))


def test_a_neighbour_of_a_score_function_reaches_other_processes(tmp_path: Path) -> None:
    file = plugin(tmp_path / "a b", "from nearby_helpers import Kept\ndef make(): return Kept(3)\n",
                  nearby_helpers="class Kept:\n    def __init__(self, n): self.n = n\n")  # fmt: skip
    code = (
        "import pickle, sys; from pathlib import Path; from agentrl.plugins import load_file\n"
        f"made = load_file(Path({str(file)!r})).make()\n"
        "print(pickle.loads(pickle.dumps(made)).n)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "3\n"


NAMED: dict[str, str] = {
    "class Thing: pass": "Thing",
    "thing = 3": "thing",
    "def thing(x: 'Other'): 'Do.'\nclass Other: pass": "thing",
    "class Thing:\n    def __init__(self, config): raise ValueError(self)": "Thing",
}


@pytest.mark.parametrize("source", NAMED)
def test_no_error_shows_the_module_name_of_a_file(tmp_path: Path, source: str) -> None:
    file = plugin(tmp_path, source)
    for kind, load in (("tools", load_tools), ("interaction", load_interactions)):
        listed = tmp_path / f"{kind}.yaml"
        for name in (NAMED[source], "Missing"):
            listed.write_text(f"{kind}: [{{class_name: mine.py:{name}}}]")
            with pytest.raises(AgentRLError) as caught:
                load(listed)
            assert "agentrl_plugin" not in str(caught.value)
    with pytest.raises(PluginError, match="mine has no 'Missing'"):
        resolve("tools", f"{file}:Missing")


def test_values_and_errors_of_a_file_are_named_after_it(tmp_path: Path) -> None:
    module = load_file(plugin(tmp_path, "class Thing: pass\nclass Bad(Exception): pass"))
    for text in (repr_of(module.Thing()), repr_of([module.Thing]), text_of(module.Bad(module.Thing)), repr_of(module)):
        assert "mine" in text
        assert "agentrl_plugin" not in text

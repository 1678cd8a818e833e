"""Finds the files that a user names: as given, beside the YAML that names them, or in agentrl's `configs/`.

::

    find_file("tools/calculator.yaml")                       # here, else agentrl's configs/tools/calculator.yaml
    find_file("servers.json", near=Path("runs/tools"))       # here, else runs/tools/servers.json, else configs/
    find_file("grpo", suffix=".yaml")                        # a recipe: its suffix may be left out
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentrl.errors import ConfigError, UserInputError, suggest

CONFIGS = Path(__file__).resolve().parent / "configs"
_MOST_NAMES = 12
"""If no name is near, at most this many names of files are listed."""


def expand(text: str) -> str:
    """Expand `~` and `$NAME`."""
    return os.path.expandvars(os.path.expanduser(text))


def find_file(name: str | Path, near: Path | None = None, suffix: str = "") -> Path:
    """The file that a user names.

    Args:
        name: a path; `~` and `$NAME` are expanded.
        near: folder of the YAML that names it.
        suffix: suffix that the name may omit.

    Raises:
        ConfigError: no file has that name; the message says where it was looked for, and the nearest name.
    """
    places = _places(str(name), near)
    for place in places:
        for candidate in (place, place.with_name(place.name + suffix)) if place.name else ():
            if os.path.isfile(candidate):  # False where `Path.is_file` raises: a name that is too long
                return candidate
    if os.path.isdir(CONFIGS / name) and suffix == ".yaml" and not os.path.isdir(places[0]):
        within = sorted(f"{name}/{file.stem}" for file in _files(CONFIGS / name) if file.suffix == suffix)
        raise ConfigError(f"{name} is a folder of recipes, wanted one of them: {', '.join(within)}")
    if os.path.isdir(places[0]):
        own = Path(name) / "config.yaml"  # that of a run folder
        hint = f". Did you mean {own}?" if suffix == ".yaml" and os.path.isfile(places[0] / own.name) else ""
        raise ConfigError(f"{name} is a folder, wanted a file{hint}")
    looked_for = ", ".join(map(str, places))
    raise ConfigError(f"{name} does not exist (looked for {looked_for}).{_nearest(places, suffix)}")


def find_input(text: str, near: Path | None) -> str:
    """The same search for any input of a run: a file, a folder, a glob, `file.py:Name`.

    An input that is in none of these places is returned as given: it may be a dotted module or a name on a hub.
    """
    return next((str(place) for place in _places(text, near) if _exists(str(place))), expand(text))


def keep_inputs(outputs: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Refuse to write over a file that the same command reads, whatever it is allowed to replace.

    Raises:
        UserInputError: names the file.
    """
    read = {Path(name).expanduser().resolve() for name in inputs}
    for output in outputs:
        if output.expanduser().resolve() in read:
            raise UserInputError(f"{output} is a file that this command reads: give another output")


def put_on_import_path(folder: Path) -> None:
    """Let modules of a recipe's folder be imported by name, after those of the working folder.

    Ray's workers get the path from this process. A Python that runs in safe mode (`-P`) keeps its path.
    """
    folder = folder.resolve()
    if str(folder) in sys.path or sys.flags.safe_path or CONFIGS.resolve() in (folder, *folder.parents):
        return
    sys.path.insert(1 if sys.path[:1] in ([""], [str(Path.cwd())]) else 0, str(folder))


def flush(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _places(text: str, near: Path | None) -> list[Path]:
    given = Path(expand(text))
    return list(dict.fromkeys([given, *([near / given] if near else []), CONFIGS / given]))


def _exists(path: str) -> bool:
    file = path.split(".py:")[0] + ".py" if ".py:" in path else path
    return os.path.exists(file) or (glob.has_magic(path) and bool(glob.glob(path, recursive=True)))


def _nearest(places: list[Path], suffix: str) -> str:
    """A sentence with the nearest name of a file of the same kind in one of the folders."""
    given = places[0]
    whole = not suffix or given.suffix == suffix
    names = {
        str(given.with_name(file.name if whole else file.stem))
        for folder in {place.parent for place in places}
        for file in _files(folder)
        if file.suffix == (given.suffix if whole else suffix)
    }
    if recipes := _in_folders_of_recipes(given, suffix):
        return f" Did you mean {' or '.join(recipes)}?"
    near = suggest(str(given), names)
    return near if "Did you mean" in near or 0 < len(names) <= _MOST_NAMES else ""


def _in_folders_of_recipes(given: Path, suffix: str) -> list[str]:
    """`'gpu/NAME'` of a recipe that was named without its folder."""
    if suffix != ".yaml" or given.is_absolute():
        return []
    pattern = f"*/{glob.escape(given.name.removesuffix(suffix))}{suffix}"
    return [f"'{found.relative_to(CONFIGS).with_suffix('')}'" for found in sorted(CONFIGS.glob(pattern))]


def _files(folder: Path) -> Iterator[Path]:
    try:
        yield from (file for file in folder.iterdir() if file.is_file())
    except OSError:
        return

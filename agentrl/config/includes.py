"""Hydra's `defaults`: the files that a file includes, in order, and the section that each of them fills.

::

    defaults:
      - base                                       base.yaml, at the top
      - actor@actor_rollout_ref.actor: dp_actor    actor/dp_actor.yaml, in that section
      - optional data: mine                        data/mine.yaml, in `data`; skipped if the file is missing
      - override critic: small                     critic/small.yaml for what an included file names there
      - _self_                                     the file's own values; last where it is not listed

A file that is itself included for a section names sections below that one; `_global_` is the top again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, suggest
from agentrl.files import expand, find_file

SELF = "_self_"
VERL_NAMES = frozenset(
    {
        *("ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine", "generation", "evaluation"),
        *(f"{kind}{role}" for kind in ("", "dp_", "megatron_") for role in ("actor", "ref", "critic", "reward_model")),
        *("rollout", "hf_model", "legacy_data", "rollout_correction", "reward_manager", "reward", "profiler"),
        *("dp_reward_loop", "megatron_reward_loop", "npu_profile", "fsdp", "megatron", "dp"),
    }
)
"""Names of verl's own base configurations. Where no such file is found, or only that of a checkout of verl, agentrl's
defaults stand in its place."""
_HEADER = re.compile(r"\A(?:\s*#.*\n)*?\s*#\s*@package\s+(\S+)")
_TOP = "_global_"


@dataclass(frozen=True, slots=True)
class Include:
    """One entry of `defaults`.

    Attributes:
        group: folder of the file, with `/` in front if it starts at a search folder.
        name: file in it; None: none.
        package: section for its values as the entry says it; None: the entry does not say.
        optional: whether the file may be missing.
        override: whether the entry only changes what another one names.
    """

    group: str
    name: str | None
    package: str | None = None
    optional: bool = False
    override: bool = False

    @property
    def file(self) -> str:
        """The file without its suffix."""
        return f"{self.group}/{self.name}" if self.group else str(self.name)

    @property
    def is_hydras(self) -> bool:
        """Whether it is about Hydra itself: its logging, its launchers."""
        return self.group.strip("/").partition("/")[0] == "hydra"

    def target(self, parent: str, header: str | None = None) -> str:
        """The section that its values fill.

        Args:
            parent: section of the file that includes it.
            header: what a `# @package` line at the top of the file says.
        """
        package = self.package if self.package is not None else header
        own = ".".join(part for part in self.group.split("/") if part not in ("", ".", ".."))
        if package is None or package == "_group_":
            package = own
        elif package.partition(".")[0] == _TOP:
            return package.partition(".")[2]
        return key_below(parent, "" if package == "_here_" else package)


def key_below(parent: str, key: str) -> str:
    """A key below a section; an empty section is the top."""
    return f"{parent}.{key}".strip(".")


def read_defaults(given: Any, where: str) -> list[Include]:
    """The entries of a `defaults` list; `_self_` comes last unless it is listed.

    Raises:
        ConfigError: the list or an entry has another form.
    """
    entries = [given] if isinstance(given, str) else ([] if given is None else given)
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: defaults: got {given!r}, wanted a list of recipe names")
    found = [include for entry in entries for include in _read_entry(entry, where)]
    return found if any(include.name == SELF for include in found) else [*found, Include("", SELF)]


def _read_entry(entry: Any, where: str) -> Iterator[Include]:
    """`NAME`, `NAME@SECTION`, `GROUP: NAME`, `optional GROUP@SECTION: [NAME, NAME]`, `override GROUP: NAME`."""
    wrong = ConfigError(
        f"{where}: defaults: got {entry!r}, wanted a list of recipe names, each `NAME` or `FOLDER@section: NAME`"
    )
    if isinstance(entry, Mapping) and len(entry) == 1:
        (text, names), alone = next(iter(entry.items())), False
    else:
        text, names, alone = entry, None, True
    if not isinstance(text, str) or not text.split():
        raise wrong
    *flags, what = text.split()
    what, at, package = what.partition("@")
    names = [names] if names is None or isinstance(names, str) else names
    if set(flags) - {"optional", "override"} or not isinstance(names, list):
        raise wrong
    for name in names:
        if alone:
            group, _, name = what.rpartition("/")
            group = f"/{group}".rstrip("/") if what.startswith("/") else group
            # A name alone fills the section of the file that names it, whatever folder it is in.
            yield Include(group, name, package if at else "_here_", "optional" in flags)
        elif name is None or isinstance(name, str):
            yield Include(what, name, package if at else None, "optional" in flags, "override" in flags)
        else:
            raise wrong


def find_include(include: Include, folder: Path | None, roots: Sequence[Path], where: str) -> Path | None:
    """The file of an entry; None: not found, and agentrl's defaults stand in its place or it is optional.

    Args:
        include: the entry.
        folder: of the file that includes it.
        roots: further folders, after those of every path, in order (`hydra.searchpath`, and that of the first file).
        where: the file that includes it, for errors.

    Raises:
        ConfigError: it is not found; the message has the nearest name.
    """
    relative = include.file.lstrip("/")
    near = [] if folder is None or include.group.startswith("/") else [folder]
    for place in [Path(), *near, *roots]:
        for candidate in (place / f"{relative}.yaml", place / f"{relative}.yml", place / relative):
            if candidate.is_file():
                return None if is_of_verl(candidate) else candidate
    try:
        return find_file(relative, folder, ".yaml")
    except ConfigError as error:
        if include.optional or include.name in VERL_NAMES:
            return None
        text = str(error)
        near_verl = suggest(str(include.name), VERL_NAMES)
        hint = near_verl if "Did you mean" in near_verl and "Did you mean" not in text else ""
        raise ConfigError(f"{where}: defaults: {text}{hint}") from None


def is_of_verl(path: Path) -> bool:
    """Whether a file is one of verl's own base configurations, in a checkout or an installation of verl."""
    return any(
        folder.parts[-3:] == ("verl", "trainer", "config") and (folder.parents[1] / "__init__.py").is_file()
        for folder in path.resolve().parents
    )


def header_package(text: str) -> str | None:
    """What a `# @package SECTION` line at the top of a file says."""
    match = _HEADER.match(text)
    return match.group(1) if match else None


def search_folders(given: Any, near: Path | None) -> list[Path]:
    """The folders of `hydra.searchpath`: `file://DIR`, from the working folder or from that of the file."""
    found = []
    for text in [given] if isinstance(given, str) else given if isinstance(given, list) else []:
        kind, _, path = str(text).rpartition("://")
        if kind in ("", "file"):
            folder = Path(expand(path))
            places = [folder, *([near / folder] if near is not None else [])]
            found += [place for place in places if place.is_dir()][:1]
    return found

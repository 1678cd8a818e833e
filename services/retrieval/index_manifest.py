"""`index.json`: what an index folder holds, how and with which versions it was made, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentrl import __version__
from agentrl.errors import UserInputError, suggest
from agentrl.services.common.logs import log
from agentrl.services.retrieval.text_analysis import NO_STEMMER

MANIFEST = "index.json"
FORMAT = 3
KINDS = ("bm25", "dense", "hybrid")
_DECIDING = ("bm25s", "PyStemmer", "faiss")
"""Packages whose next major version may read a file otherwise or give other stems."""


def write_manifest(folder: Path, kind: str, documents: int, settings: dict[str, Any], corpus: dict[str, Any]) -> None:
    """Describe a finished folder; the last file that is written."""
    files = {str(path.relative_to(folder)): _describe(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    content = {
        "format": FORMAT,
        "kind": kind,
        "documents": documents,
        "settings": settings,
        "corpus": corpus,
        "versions": find_versions(kind, settings),
        "files": files,
    }
    content["sha256"] = content_hash(content)
    (folder / MANIFEST).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def content_hash(content: dict[str, Any]) -> str:
    """One hash over the whole description, and so over the hashes of all files."""
    hashed = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path, hash_files: bool = True) -> dict[str, Any]:
    """Read and check the description of an index.

    Args:
        folder: the index.
        hash_files: read every file and compare its hash; else only their sizes.

    Raises:
        UserInputError: no index, one of other versions, or files that are not those that were built.
    """
    try:
        content: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        found_format, kind, files, hashed = content["format"], content["kind"], content["files"], content_hash(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserInputError(
            f"{folder}: got a folder without a readable {MANIFEST} ({type(error).__name__}), "
            "wanted an index made by `agentrl data index CORPUS --out INDEX`"
        ) from error
    if found_format != FORMAT:
        raise UserInputError(f"{folder}: got an index of format {found_format}, wanted {FORMAT}; build it again")
    if kind not in KINDS:
        raise UserInputError(f"{folder}: an index of kind {kind!r}.{suggest(str(kind), KINDS)}")
    if content.get("sha256") != hashed:
        raise UserInputError(f"{folder / MANIFEST} was changed after the build; build the index again")
    _check_versions(folder, content["versions"], find_versions(kind, content["settings"]))
    for name, wanted in files.items():
        _check_file(folder / name, wanted, hash_files)
    return content


def _check_file(path: Path, wanted: dict[str, Any], hash_file: bool) -> None:
    size = path.stat().st_size if path.is_file() else None
    if size != wanted["bytes"]:
        got = "no file" if size is None else f"{size} bytes"
        raise UserInputError(f"{path}: got {got}, wanted {wanted['bytes']} bytes; the index is damaged, build it again")
    if hash_file and _sha256(path) != wanted["sha256"]:
        raise UserInputError(
            f"{path}: its content is not what was built (sha256); the index is damaged, build it again"
        )


def _describe(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_versions(kind: str, settings: dict[str, Any]) -> dict[str, str]:
    """What is installed here of what makes and searches such an index."""
    found = {"agentrl": __version__, "python": platform.python_version()}
    packages = ["numpy"]
    if kind != "dense":
        packages += ["bm25s"] if settings["stemmer"] == NO_STEMMER else ["bm25s", "PyStemmer"]
    if kind != "bm25":
        packages += ["faiss-cpu", "faiss-gpu", "torch", "transformers"]
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package.partition("-")[0]] = version(package)
    return found


def deciding(versions: dict[str, str]) -> dict[str, str]:
    """What must be the same for the same results: the first number, or 0 and the second, of some versions."""
    parts = {name: versions[name].split(".") for name in _DECIDING if name in versions}
    return {name: ".".join(numbers[: 2 if numbers[0] == "0" else 1]) for name, numbers in parts.items()}


def _check_versions(folder: Path, built: dict[str, str], installed: dict[str, str]) -> None:
    differ = sorted(name for name in built.keys() & installed.keys() if built[name] != installed[name])
    for name, wanted in deciding(built).items():
        if name in installed and deciding(installed)[name] != wanted:
            raise UserInputError(
                f"{folder}: it was made with {name} {built[name]}, and {installed[name]} is installed, which may give "
                "other results; build it again"
            )
    if differ:
        shown = [{name: versions[name] for name in differ} for versions in (built, installed)]
        log(logging.WARNING, "index of other versions", folder=str(folder), built_with=shown[0], installed=shown[1])

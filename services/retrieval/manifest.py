"""`index.json`: what an index folder holds, how it was made, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import agentrl
from agentrl.errors import UserInputError, suggest

MANIFEST = "index.json"
FORMAT = 2
KINDS = ("bm25", "dense", "hybrid")
_PACKAGES = ("numpy", "bm25s", "faiss-cpu", "faiss-gpu", "torch", "transformers", "PyStemmer")


def write_manifest(folder: Path, kind: str, documents: int, settings: dict[str, Any], corpus: dict[str, Any]) -> None:
    """Describe a finished folder; the last file that is written."""
    files = {str(path.relative_to(folder)): _describe(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    content = {
        "format": FORMAT,
        "kind": kind,
        "documents": documents,
        "settings": settings,
        "corpus": corpus,
        "versions": {"agentrl": agentrl.__version__, "python": platform.python_version(), **_versions()},
        "files": files,
    }
    content["sha256"] = content_hash(content)
    (folder / MANIFEST).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def content_hash(content: dict[str, Any]) -> str:
    """One hash over all that decides what a search finds: the settings, and the names and hashes of all files."""
    decides = {name: content[name] for name in ("kind", "documents", "settings", "files")}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path, hash_files: bool = True) -> dict[str, Any]:
    """Read and check the description of an index.

    Args:
        folder: the index.
        hash_files: read every file and compare its hash; else only their sizes.

    Raises:
        UserInputError: no index, one of another version, or files that are not those that were built.
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


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

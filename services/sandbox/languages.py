"""Languages the sandbox runs: their files, compilers and programs, and which of them this machine has."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fastapi import HTTPException

from agentrl.errors import suggest
from agentrl.services.sandbox.filesystem_layout import FilesystemLayout, is_shown

_VERSION_S = 10


@dataclass(frozen=True, slots=True)
class Language:
    """How to run one language.

    Attributes:
        name: as requests spell it.
        file: the code's file name.
        run: arguments that run it; None: the launcher's own interpreter does.
        compile: arguments that compile it; None: nothing to do.
        reserves_memory: its runtime maps far more memory than it uses, so the limit counts data only.
    """

    name: str
    file: str
    run: tuple[str, ...] | None
    compile: tuple[str, ...] | None = None
    reserves_memory: bool = False


_KNOWN = (
    Language("python", "main.py", None),
    Language("bash", "main.sh", ("bash", "main.sh")),
    Language("nodejs", "main.js", ("node", "--max-old-space-size={memory_mb}", "main.js"), reserves_memory=True),
    Language("cpp", "main.cpp", ("./main",), ("g++", "-std=c++17", "-O2", "-o", "main", "main.cpp")),
    Language("c", "main.c", ("./main",), ("gcc", "-O2", "-o", "main", "main.c", "-lm")),
    Language("rust", "main.rs", ("./main",), ("rustc", "-O", "-o", "main", "main.rs")),
    Language("go", "main.go", ("./main",), ("go", "build", "-o", "main", "main.go"), reserves_memory=True),
    Language(
        "java", "Main.java", ("java", "-ea", "-Xmx{memory_mb}m", "Main"), ("javac", "Main.java"), reserves_memory=True
    ),
    Language("perl", "main.pl", ("perl", "main.pl")),
    Language("ruby", "main.rb", ("ruby", "main.rb")),
    Language("lua", "main.lua", ("lua", "main.lua")),
    Language("php", "main.php", ("php", "main.php")),
    Language("R", "main.R", ("Rscript", "main.R")),
    Language("julia", "main.jl", ("julia", "main.jl"), reserves_memory=True),
)
_ALSO = {"py": "python", "python3": "python", "sh": "bash", "javascript": "nodejs", "js": "nodejs", "c++": "cpp"}


def installed_languages(layout: FilesystemLayout) -> dict[str, Language]:
    """Those languages whose programs the sandbox can see, by name."""
    found = {}
    for language in _KNOWN:
        programs = [arguments[0] for arguments in (language.compile, language.run) if arguments]
        paths = {name: _find(name, layout) for name in programs if name != "./main"}
        if all(paths.values()):
            run, compiled = _with_path(language.run, paths), _with_path(language.compile, paths)
            found[language.name] = replace(language, run=run, compile=compiled)
    return found


def find_language(name: str, installed: Mapping[str, Language]) -> Language:
    """A language by name or alias.

    Raises:
        HTTPException: 422, the language is unknown or not installed here.
    """
    name = _ALSO.get(name, name)
    if name in installed:
        return installed[name]
    if any(language.name == name for language in _KNOWN):
        raise HTTPException(
            422, f"language: {name!r} is not installed on this server; GET /languages lists those that are"
        )
    raise HTTPException(422, f"language: got {name[:80]!r}, wanted a known one.{suggest(name[:80], installed)}")


def _find(program: str, layout: FilesystemLayout) -> str | None:
    paths = (shutil.which(program, path=folder) for folder in layout.path.split(":"))
    return next((path for path in paths if path is not None and is_shown(path, layout)), None)


def _with_path(arguments: tuple[str, ...] | None, paths: Mapping[str, str | None]) -> tuple[str, ...] | None:
    return None if arguments is None else (paths.get(arguments[0]) or arguments[0], *arguments[1:])


def language_version(language: Language, layout: FilesystemLayout) -> str:
    """The first line that its program says about itself; empty when it says nothing."""
    program = (language.compile or language.run or (layout.python,))[0]
    flag = "version" if language.name == "go" else "--version"
    try:
        told = subprocess.run([program, flag], capture_output=True, text=True, timeout=_VERSION_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = (told.stdout or told.stderr).strip().splitlines()
    return lines[0] if lines else ""

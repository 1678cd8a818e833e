"""The installation: Python, the packages that agentrl needs, its extras, and whether torch works."""

from __future__ import annotations

import importlib
import platform
from collections import defaultdict
from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement

from agentrl import __version__
from agentrl.cli.doctor.findings import Findings, note, ok, wrong

TOPIC = "installation"
SHOWN = ("torch", "transformers", "ray")
"""Packages whose versions are always told."""
DEVELOPERS = "dev"


def check_installation(distribution: str = "agentrl") -> Findings:
    """Versions in their ranges, extras that are whole, and a torch that can be imported."""
    try:
        requirements = [Requirement(text) for text in metadata.requires(distribution) or []]
    except metadata.PackageNotFoundError:
        todo = "install it: pip install -e . in its folder"
        yield note(TOPIC, "agentrl is imported from a folder and not installed: its packages are not known", todo)
        return
    base, extras = _by_extra(requirements)
    problems = [problem for needed in base if (problem := _problem(needed))]
    versions = ", ".join(f"{name} {_version(name) or 'missing'}" for name in SHOWN)
    if not problems:
        said = f"agentrl {__version__}, Python {platform.python_version()}, {versions}; {len(base)} packages in range"
        yield ok(TOPIC, said)
    for problem in problems:
        yield wrong(TOPIC, problem, "pip install -U agentrl, or the package alone")
    yield from _check_extras(extras)
    yield from _check_torch()


def _check_extras(extras: dict[str, list[Requirement]]) -> Findings:
    """An extra of which a package is out of range is wrong; one that lacks packages is not installed."""
    whole, absent = [], []
    for name, needed in extras.items():
        if name == DEVELOPERS:
            continue
        installed = [requirement for requirement in needed if _version(requirement.name) is not None]
        outside = [problem for requirement in installed if (problem := _problem(requirement))]
        for problem in outside:
            yield wrong(TOPIC, f"extra {name}: {problem}", f"pip install -U 'agentrl[{name}]'")
        if len(installed) < len(needed):
            absent.append(name)
        elif not outside:
            whole.append(name)
    rest = f"; not installed: {', '.join(absent)} (pip install 'agentrl[NAME]' where you need one)" if absent else ""
    yield ok(TOPIC, f"extras: {', '.join(whole) or 'none'}{rest}")


def check_engine_packages() -> Findings:
    """What `rollout.name: auto` means on this machine; GPUs without SGLang are the usual mistake."""
    from agentrl.config.engine_choice import vllm_installed
    from agentrl.config.machine import cuda_available, sglang_installed

    try:
        gpus = cuda_available()
    except (ImportError, OSError):  # told already
        return
    sglang, vllm = sglang_installed(), vllm_installed()
    here = f"sglang is {_installed(sglang)}, vllm {_installed(vllm)}"
    text = f"rollout.name=auto means {'sglang' if gpus and sglang else 'embedded'} here: {here}"
    if gpus and not sglang:
        yield note("engines", text, "pip install 'agentrl[sglang]': the embedded engine is made for CPUs")
    else:
        yield ok("engines", text)


def _installed(there: bool) -> str:
    return "installed" if there else "not installed"


def _check_torch() -> Findings:
    """A torch whose libraries are missing or were built for another machine fails when it is imported."""
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        yield wrong(TOPIC, f"torch cannot be imported: {error}", "install torch again, for this machine")


def _by_extra(requirements: Iterable[Requirement]) -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """Those that are always needed here, and those of each extra."""
    base, extras = [], defaultdict(list)
    for requirement in requirements:
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            base.append(requirement)
            continue
        named = str(marker).partition("extra ==")[2].strip().strip("\"'")
        if named and marker.evaluate({"extra": named}):
            extras[named].append(requirement)
    return base, dict(extras)


def _problem(needed: Requirement) -> str | None:
    version = _version(needed.name)
    if version is None:
        return f"{needed.name} is missing, wanted {needed.name}{needed.specifier}"
    if not needed.specifier.contains(version, prereleases=True):
        return f"{needed.name} is {version}, wanted {needed.name}{needed.specifier}"
    return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

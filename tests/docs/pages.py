"""Reads a page's code blocks and does what a reader would do with them, top to bottom.

- `` `name.py`: `` on the line before a block: the block is that file (of any language that is named here, or JSON).
- ```` ```bash ````: run. ```` ```python ```` without a file name: run. ```` ```yaml ```` without one: must be YAML.
- `<!-- not run: reason -->` before a block: left out.
- `<!-- run with: key=value ... -->` before a block: added to every `agentrl train` and `agentrl sft` in it.
- `COMMAND || true` in bash: the command may say no, with exit code 1, but not fail otherwise or with a traceback.
- `agentrl train`, `generate` and `eval --model` get an engine that runs already, unless they are dry.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

LANGUAGES = ("bash", "python", "yaml")
_FENCE = re.compile(r"^```(\w*)\s*$")
_FILE = re.compile(r"`([\w./-]+\.\w+)`[^`]{0,40}:?$")
_NOT_RUN = re.compile(r"^<!-- not run: (\S.*) -->$")
_RUN_WITH = re.compile(r"^<!-- run with: (\S.*) -->$")
_RUNS = re.compile(r"^(\s*agentrl (?:train|sft) .*)$", re.MULTILINE)
_MAY_SAY_NO = re.compile(r"\|\| true$", re.MULTILINE)
_TRAINS = re.compile(r"^(\s*agentrl (?:train|generate|eval --model) (?!.*--dry-run).*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block that a reader would use."""

    language: str
    text: str
    line: int
    file: str | None = None
    not_run: str | None = None
    run_with: str | None = None


def blocks(page: Path) -> list[Block]:
    """The bash, python and yaml blocks of a page."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number, before = 0, ""
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            before = lines[number].strip() or before
            number += 1
            continue
        end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == "```")
        marks = [pattern.search(before) for pattern in (_FILE, _NOT_RUN, _RUN_WITH)]
        if fence[1] in LANGUAGES or (fence[1] == "json" and marks[0]):
            text = "\n".join(lines[number + 1 : end]) + "\n"
            found.append(Block(fence[1], text, number + 1, *(mark[1] if mark else None for mark in marks)))
        number, before = end + 1, ""
    return found


def run_page(
    page: Path, folder: Path, environment: dict[str, str], overrides: str, addresses: Mapping[str, str]
) -> list[str]:
    """Use every block of a page in `folder`; what each printed.

    Args:
        page: the page.
        folder: where a reader stands.
        environment: of the commands.
        overrides: added to every command that would start an engine: one that runs already.
        addresses: where services that the page asks really are.

    Raises:
        AssertionError: a command failed, with its output; or a block is no YAML.
    """
    printed = []
    for block in blocks(page):
        if block.not_run is not None:
            continue
        where, said = f"{page.name}, line {block.line}", ""
        if block.file is not None:
            target = folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("a", encoding="utf-8") as part:  # a page may write a file in parts
                part.write(block.text)
        if block.language == "yaml":
            assert yaml.safe_load(block.text) is not None, f"{where}: no YAML"
        elif block.language == "bash":
            script = _small(block, overrides).replace("curl -s", "curl -sSf")
            for written, real in addresses.items():
                script = script.replace(written, real)
            may_say_no = _MAY_SAY_NO.search(script) is not None
            script = _MAY_SAY_NO.sub("|| [ $? -eq 1 ]", script)
            said = _run(["bash", "-euo", "pipefail", "-c", script], folder, environment, where)
            assert not (may_say_no and "Traceback" in said), f"{where}:\n{script}\n{said}"
        elif block.file is None:
            file = folder / f"block_{block.line}.py"
            file.write_text(block.text)
            said = _run(["bash", "-c", f"python {file.name}"], folder, environment, where)
        printed.append(said)
    return printed


def _small(block: Block, overrides: str) -> str:
    """The commands, with the overrides that make a long training a short one."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    if block.run_with is not None:
        assert _RUNS.search(joined), f"line {block.line}: nothing to run with {block.run_with}"
        joined = _RUNS.sub(lambda match: f"{match[1]} {block.run_with}", joined)
    return _TRAINS.sub(lambda match: f"{match[1]} {overrides}", joined)


def _run(command: list[str], folder: Path, environment: dict[str, str], where: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{command[-1]}\n{done.stdout}"
    return done.stdout

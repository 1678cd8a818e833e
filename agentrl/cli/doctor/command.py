"""Asks every check and prints what it found."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from agentrl.cli.doctor.findings import Finding, Findings, Severity, ok
from agentrl.cli.doctor.installation import check_engine_packages, check_installation
from agentrl.cli.doctor.machine import check_machine
from agentrl.cli.output import print_json
from agentrl.errors import ConfigError

_STYLES = {Severity.OK: "green", Severity.NOTE: "yellow", Severity.WRONG: "bold red"}
_TOPIC_WIDTH = 16


def doctor_command(recipe: str | Path | None, overrides: list[str], *, asked: bool, as_json: bool) -> bool:
    """Print what is wrong, and what to do.

    Args:
        recipe: of a run.
        overrides: of it.
        asked: a run was named; else only the installation and the machine are looked at.
        as_json: for programs.

    Returns:
        Whether nothing is wrong.
    """
    console, found = Console(soft_wrap=True, highlight=False), list[Finding]()
    for finding in _findings(recipe, overrides, asked):
        found.append(finding)
        if not as_json:
            _show(console, finding)
    counts = {verdict: sum(finding.verdict is verdict for finding in found) for verdict in Severity}
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        told = f"{counts[Severity.WRONG]} wrong, {_count(counts[Severity.NOTE], 'note')}"
        console.print(told if counts[Severity.WRONG] or counts[Severity.NOTE] else "all is well")
    return not counts[Severity.WRONG]


def _findings(recipe: str | Path | None, overrides: list[str], asked: bool) -> Findings:
    yield from check_installation()
    yield from check_engine_packages()
    if not asked:
        yield from check_machine()
        yield ok("configuration", "none given: `agentrl doctor CONFIG` looks at its engines, services, models and rows")
        return
    from agentrl.config import load, load_config
    from agentrl.config.idle_sft_keys import IDLE_SFT_KEYS
    from agentrl.config.sft import SFT_CHECKS, SFTConfig

    try:
        config = load_config(recipe, overrides)
    except ConfigError as error:
        yield from check_machine()
        from agentrl.cli.doctor.of_run import check_sft, problem_findings

        try:
            sft = load(recipe, overrides, SFTConfig, SFT_CHECKS, IDLE_SFT_KEYS)
        except ConfigError:  # nor is it a recipe of `agentrl sft`
            yield from problem_findings("configuration", error)
            return
        yield ok("configuration", "a recipe of `agentrl sft`, all of whose keys are known")
        yield from check_sft(sft)
        return
    yield from check_machine(config.actor_rollout_ref.rollout.agent.max_in_flight)
    yield ok("configuration", "every key is known, and they fit together")
    from agentrl.cli.doctor.of_run import check_run

    yield from check_run(config)


def _show(console: Console, finding: Finding) -> None:
    head = Text(f"{finding.verdict.value:<6}", _STYLES[finding.verdict]) + Text(
        f"{finding.topic:<{_TOPIC_WIDTH}}", "dim"
    )
    todo = f" -> {finding.todo}" if finding.todo else ""
    console.print(head + Text(finding.text) + Text(todo, "bold"))


def _count(many: int, what: str) -> str:
    return f"{many} {what}" if many == 1 else f"{many} {what}s"

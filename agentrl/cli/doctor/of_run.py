"""A run's configuration, looked at with the checks that `agentrl plan` and `agentrl train` do at their start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from agentrl.cli.check_grader import grade_sources
from agentrl.cli.demo.warm_start import refuse_if_missing
from agentrl.cli.doctor.answers import check_services
from agentrl.cli.doctor.findings import Finding, Findings, ok, wrong
from agentrl.cli.doctor.machine import port_is_free
from agentrl.cli.doctor.mistakes import MISTAKES, TOPIC
from agentrl.cli.doctor.services import services_of
from agentrl.config import RunConfig
from agentrl.config.sft import SFTConfig
from agentrl.errors import AgentRLError, ConfigError
from agentrl.inference.sglang import resolve_engine
from agentrl.placement.lengths import Lengths
from agentrl.placement.model_shape import find_shape
from agentrl.placement.of_run import place
from agentrl.placement.verdict import memory_problems
from agentrl.single_controller.ray_runtime import require_listener
from agentrl.trainer.disk_space import Need, room_problems
from agentrl.trainer.inputs import RunInputs, prepare

CHECKPOINT_BYTES = 12
"""A weight and Adam's two numbers, 4 bytes each: what a checkpoint takes of each weight that learns."""
GRADED_ROWS = 8
_SHOWN = 5
"""Problems of one kind that are told."""


def check_run(config: RunConfig) -> Findings:
    """Everything about a run but its installation and machine."""
    told: set[str] = set()
    for found in _all(config):
        if found.text not in told:  # the plan's problems stop the start too
            told.add(found.text)
            yield found


def _all(config: RunConfig) -> Findings:
    yield from check_plan(config)
    yield from _check_engines(config)
    yield from check_services(services_of(config))
    inputs = list[RunInputs]()
    yield from _refused("models and rows", lambda: inputs.append(_prepared(config)))
    if inputs:
        yield ok("models and rows", _told(inputs[0]))
        yield from _check_room(config)
        yield from check_scores(config)
    yield from check_mistakes(config)


def check_sft(config: SFTConfig) -> Findings:
    """The checks that `agentrl sft --dry-run` does."""
    from agentrl.trainer.sft import SFTTrainer

    lines = list[tuple[str, str]]()
    yield from _refused("models and rows", lambda: lines.extend(SFTTrainer(config).plan()), "agentrl sft")
    if lines:
        yield ok("models and rows", "; ".join(f"{topic}: {text}" for topic, text in lines[:2]))


def _prepared(config: RunConfig) -> RunInputs:
    refuse_if_missing(config)
    return prepare(config)


def _told(inputs: RunInputs) -> str:
    rows, steps = inputs.loader.num_rows, inputs.total_steps
    return f"{rows} rows, {len(inputs.val_samples)} to validate on, {steps} steps; model, template and plug-ins load"


def check_plan(config: RunConfig) -> Findings:
    """Where ranks and engines would be, and whether their memory is there."""
    placement = place(config)
    problems = [*placement.problems, *memory_problems(config, placement, Lengths.most(config))]
    yield from (wrong("plan", problem, "`agentrl plan` shows the whole of it") for problem in problems)
    if not problems:
        yield ok("plan", f"ranks and engines have places on {placement.cluster.source}")


def _check_engines(config: RunConfig) -> Findings:
    """The engine is installed, its ports are free, and the Ray cluster that is named runs."""
    server, name = config.actor_rollout_ref.rollout.server, list[str]()
    yield from _refused("engines", lambda: name.append(resolve_engine(config)))
    taken = []
    if server.port is not None and not server.addresses:
        ports = range(server.port, server.port + (server.launch or 1))
        taken = [port for port in ports if not port_is_free(server.host, port)]
    if taken:
        what = f"port {', '.join(map(str, taken))} of {server.host} is taken"
        yield wrong("ports", what, "end who has it (`ss -ltnp`), or rollout.server.port=null for free ports")
    page = config.trainer.prometheus_host_port
    if page is not None and not port_is_free(*page):
        what = f"trainer.prometheus_address: port {page[1]} of {page[0]} is taken"
        yield wrong("ports", what, "end who has it (`ss -ltnp`), or give another port")
    if name and not taken:
        yield ok("engines", f"{name[0]}, {'running' if server.addresses else 'started by the run'}")
    address = config.ray_init.address
    if address not in (None, "auto", "local") and config.trainer.backend == "ray":
        yield from _refused("engines", lambda: require_listener(str(address)))


def _check_room(config: RunConfig) -> Findings:
    """Whether a checkpoint fits on the disk, by the model's size: the run measures it."""
    policy = config.actor_rollout_ref.model
    shape = find_shape(policy.path)
    if config.trainer.save_freq <= 0 or shape is None or policy.adapts:
        return
    size = shape.parameters * CHECKPOINT_BYTES * (2 if config.needs_critic else 1)
    need = Need("a checkpoint", Path(config.trainer.default_local_dir), size)
    for problem in room_problems([need]):
        yield wrong(
            "disk", problem, "trainer.default_local_dir on a larger disk, or checkpoint.save_contents with less"
        )


def check_scores(config: RunConfig) -> Findings:
    """Some right and wrong answers, as `agentrl check --grader` scores them all. A judge, which costs, is not asked."""
    if config.reward_model.combine.outcome == 0 or config.reward_model.has_judge:
        return
    graded = list[Any]()
    yield from _refused("scores", lambda: graded.extend(grade_sources(config, GRADED_ROWS)))
    problems = [problem for source in graded for problem in source.problems]
    todo = "`agentrl check --grader CONFIG` tries all rows"
    yield from (wrong("scores", problem, todo) for problem in problems[:_SHOWN])
    golds = [row.gold for source in graded for row in source.rows if row.gold is not None]
    if golds and not problems:
        yield ok("scores", f"{len(golds)} right answers score {fmean(golds):.3g}, and wrong ones less")


def check_mistakes(config: RunConfig) -> Findings:
    """The ten usual ones."""
    found = [finding for mistake in MISTAKES if (finding := mistake(config)) is not None]
    yield from found
    if not found:
        yield ok(TOPIC, f"none of the {len(MISTAKES)} usual ones")


def problem_findings(topic: str, error: AgentRLError, command: str = "agentrl train") -> Iterator[Finding]:
    """A line for each problem of an error, which says itself what was wanted; `command` is what would meet it too."""
    texts = error.problems if isinstance(error, ConfigError) else [str(error)]
    todo = f"mend it; `{command} CONFIG --dry-run` checks this alone"
    yield from (wrong(topic, text, todo) for text in texts[:_SHOWN])
    if len(texts) > _SHOWN:
        yield wrong(topic, f"and {len(texts) - _SHOWN} more", f"`{command} CONFIG --dry-run` lists all")


def _refused(topic: str, check: Callable[[], object], command: str = "agentrl train") -> Findings:
    """The findings of a check that refuses by an error."""
    try:
        check()
    except AgentRLError as error:
        yield from problem_findings(topic, error, command)

"""The ten usual mistakes: what works, and is regretted after the first long run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from agentrl.cli.doctor.findings import Finding, note, wrong
from agentrl.cli.doctor.machine import caught_by_proxy
from agentrl.cli.doctor.services import services_of
from agentrl.config import RunConfig
from agentrl.errors import UserInputError
from agentrl.hub import model_folder
from agentrl.observability.run_folder import RunFolder, differences, is_run
from agentrl.observability.run_state import State
from agentrl.placement.model_shape import find_shape

TOPIC = "mistakes"
COLD = 0.5
"""Below this temperature the rollouts of a group hardly differ."""
LARGE_MODEL, LARGE_RATE = 100e6, 2e-5
"""Weights of a model from which on, and learning rate above which, a policy whose weights all learn breaks."""
SHOWN_KEYS = 5
LOCAL = {"127.0.0.1", "localhost"}
_LFS, _LFS_BYTES = b"version https://git-lfs", 1024
_MOVES = ("trainer.total_training_steps", "trainer.total_epochs", "trainer.default_local_dir")
"""Keys that change whenever a run goes on."""


def no_validation(config: RunConfig) -> Finding | None:
    """Training reward alone says little: it is of other rows at each step."""
    if config.data.val_files and (config.trainer.test_freq > 0 or config.trainer.val_only):
        return None
    return note(TOPIC, "nothing is validated while the run goes on", "data.val_files=... trainer.test_freq=10")


def no_checkpoints(config: RunConfig) -> Finding | None:
    """What is not saved is lost when the machine is."""
    if config.trainer.save_freq > 0 or config.trainer.val_only:
        return None
    return note(TOPIC, "no checkpoint is written: whatever ends the run ends its weights", "trainer.save_freq=50")


def no_dumps(config: RunConfig) -> Finding | None:
    """A curve does not tell what was said."""
    trainer = config.trainer
    if trainer.rollout_data_dir or trainer.validation_data_dir:
        return None
    todo = f"trainer.rollout_data_dir={trainer.default_local_dir}/rollouts, for `agentrl show`, `diff` and `replay`"
    return note(TOPIC, "no conversation is kept", todo)


def no_metrics(config: RunConfig) -> Finding | None:
    """The commands that look at runs read the jsonl tracker's file."""
    if "jsonl" in config.trainer.logger:
        return None
    return note(
        TOPIC, "no metrics.jsonl is written, which `agentrl runs`, `diff` and `trace` read", "trainer.logger: add jsonl"
    )


def same_rows(config: RunConfig) -> Finding | None:
    """Validation on training rows measures memory."""
    train, val = (_files(files) for files in (config.data.train_files, config.data.val_files))
    if not (both := sorted(train & val)):
        return None
    return note(TOPIC, f"{', '.join(both)}: is trained on and validated on", "data.val_files: other rows")


def cold_sampling(config: RunConfig) -> Finding | None:
    """Groups whose rollouts are equal have no advantages."""
    rollout = config.actor_rollout_ref.rollout
    if config.trainer.val_only or (rollout.temperature >= COLD and rollout.top_k != 1):
        return None
    got = "top_k 1" if rollout.top_k == 1 else f"temperature {rollout.temperature:g}"
    return note(TOPIC, f"rollouts are sampled with {got}: those of a group hardly differ", "rollout.temperature=1.0")


def large_rate(config: RunConfig) -> Finding | None:
    """A rate of supervised training breaks a policy within steps."""
    policy, rate = config.actor_rollout_ref, config.actor_rollout_ref.actor.optim.lr
    shape = find_shape(policy.model.path)
    if config.trainer.val_only or policy.model.adapts or shape is None or rate <= LARGE_RATE:
        return None
    if shape.parameters < LARGE_MODEL:
        return None
    size = f"{shape.parameters / 1e9:.2g} billion weights"
    return note(TOPIC, f"actor.optim.lr is {rate:g}, for a model of {size} that all learn", "actor.optim.lr=1e-6")


def used_folder(config: RunConfig) -> Finding | None:
    """A run in a folder that holds another one continues it, or replaces its metrics."""
    folder = Path(config.trainer.default_local_dir)
    if not is_run(folder):
        return None
    run = RunFolder(folder)
    try:
        state, keys = run.state(), [key for key, _, _ in differences(run.config, config.model_dump(mode="json"))]
    except UserInputError as error:
        return note(TOPIC, f"{folder} holds a run that cannot be read: {error}", "give another folder")
    if state.state is State.RUNNING:
        other = "give another folder: trainer.default_local_dir"
        return wrong(TOPIC, f"a run goes on in {folder} (process {state.pid})", other)
    changed = [key for key in keys if key not in _MOVES]
    if config.trainer.resume_mode == "disable":
        return note(TOPIC, f"{folder} holds a run, whose metrics this one replaces", "give another folder")
    if state.state is State.FINISHED and "trainer.total_training_steps" not in keys:
        return note(TOPIC, f"the run in {folder} has finished: this one would do nothing", "give another folder")
    if changed:
        shown = ", ".join(changed[:SHOWN_KEYS]) + (", …" if len(changed) > SHOWN_KEYS else "")
        return note(
            TOPIC, f"the run in {folder} would go on with other keys: {shown}", "give another folder, if not meant"
        )
    return None


def proxied(config: RunConfig) -> Finding | None:
    """Requests to this machine that go to a proxy do not come back."""
    hosts = LOCAL & {urlsplit(service.url).hostname or "" for service in services_of(config)}
    caught = caught_by_proxy(sorted(hosts or LOCAL))
    if not caught:
        return None
    named, todo = " and ".join(caught), f"export NO_PROXY={','.join(sorted(LOCAL))} no_proxy={','.join(sorted(LOCAL))}"
    if hosts:
        return wrong(TOPIC, f"the environment sends requests to the services on {named} to a proxy", todo)
    return note(TOPIC, f"the environment names a proxy also for {named}: plug-ins may ask it", todo)


def pointers(config: RunConfig) -> Finding | None:
    """A model that was cloned without git-lfs has files of a few lines in place of weights."""
    try:
        folder = model_folder(config.actor_rollout_ref.model.path)
    except UserInputError:  # the check of the models tells it
        return None
    small = [file for file in folder.glob("*.safetensors") if file.stat().st_size < _LFS_BYTES]
    empty = sorted(file.name for file in small if file.read_bytes().startswith(_LFS))
    if not empty:
        return None
    return wrong(TOPIC, f"{folder}: {', '.join(empty)}: pointers of git-lfs in place of weights", "git lfs pull, there")


MISTAKES: tuple[Callable[[RunConfig], Finding | None], ...] = (
    no_validation,
    no_checkpoints,
    no_dumps,
    no_metrics,
    same_rows,
    cold_sampling,
    large_rate,
    used_folder,
    proxied,
    pointers,
)


def _files(given: str | list[str] | None) -> set[str]:
    return {given} if isinstance(given, str) else set(given or [])

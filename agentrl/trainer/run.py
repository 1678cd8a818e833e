"""A training run from Python: `train` is what `agentrl train` calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentrl.config import RunConfig, dump_config, load_config
from agentrl.errors import ConfigError, PluginError
from agentrl.observability.run_folder import CONFIG_FILE
from agentrl.observability.tracker import Tracker
from agentrl.observability.trackers import make_trackers
from agentrl.plugins import registered_name
from agentrl.plugins.plugin_files import file_being_imported
from agentrl.plugins.registry import registered_in
from agentrl.trainer.folders import make_folders, output_folders
from agentrl.trainer.ppo import RayPPOTrainer

TOOLS_FILE = "tools.yaml"
_TOOLS_KEY = "actor_rollout_ref.rollout.multi_turn.tool_config_path"


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run left."""

    folder: Path
    """Its configuration, metrics, logs and checkpoints."""
    step: int
    """The last finished step, counted over resumed runs."""
    metrics: dict[str, float]
    """Of the last step; empty where a resumed run had nothing left to do."""


def train(
    config: RunConfig | str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    tools: Sequence[Callable[..., Any] | str] = (),
    trackers: Sequence[Tracker] | None = None,
) -> TrainResult:
    """Run a training run to its end.

    Args:
        config: the run, or what `load_config` reads it from.
        overrides: `section.key=value`, where `config` is not loaded yet.
        tools: registered functions, classes or names that the model may call, instead of a tool YAML. What a script
            registers is found in every process of the run: the script is one of its `plugins`, so that everything else
            in it must stand below `if __name__ == "__main__":`.
        trackers: who hears about the run; None: those that `trainer.logger` names.

    Raises:
        UserInputError: the configuration, data, model folder or a plug-in cannot be used; nothing has run.
        AgentRLError: the run failed; see `RayPPOTrainer.fit`.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after a clean stop.
    """
    file = file_being_imported()
    if file is not None:
        raise PluginError(f'{file} trains while it is imported: put `if __name__ == "__main__":` before `train`')
    if not isinstance(config, RunConfig):
        config = load_config(config, overrides)
    elif overrides:
        raise ConfigError(f"train: got a RunConfig and overrides {list(overrides)}, wanted them in load_config")
    config = _with_tools(_with_script(config), tools)
    last = _LastMetrics()
    heard = make_trackers(config.trainer.logger) if trackers is None else trackers
    trainer = run_training(config, [*heard, last])
    return TrainResult(trainer.folder, trainer.state.step, last.metrics)


def run_training(config: RunConfig, trackers: Sequence[Tracker] | None = None) -> RayPPOTrainer:
    """Check, start, train, stop.

    The run folder (`trainer.default_local_dir`) gets the resolved configuration, logs and checkpoints.

    Args:
        config: the run.
        trackers: receive the run's events; None: those that `trainer.logger` names.

    Returns:
        The trainer, its processes stopped.

    Raises:
        AgentRLError: see `RayPPOTrainer`.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after a clean stop.
    """
    trainer = RayPPOTrainer(config, trackers)
    make_folders(output_folders(config))
    (trainer.folder / CONFIG_FILE).write_text(dump_config(config), encoding="utf-8")
    trainer.fit()
    return trainer


class _LastMetrics(Tracker):
    """Keeps the numbers of the last step."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.metrics = {name: float(value) for name, value in metrics.items()}


def _with_script(config: RunConfig) -> RunConfig:
    """The run with the running script among its plug-ins, where the script has registered any.

    Raises:
        PluginError: they were registered in a session without a file, which Ray's workers could not import.
    """
    own = registered_in("__main__")
    file = Path(getattr(sys.modules["__main__"], "__file__", None) or "<stdin>")
    if not own or (not file.is_file() and config.trainer.backend == "local"):
        return config
    if not file.is_file():
        raise PluginError(
            f"{', '.join(own)}: defined in a session without a file, which the run's workers cannot import. Put it in "
            "a file and name it `file.py:name` in a tool YAML, or train with trainer.backend=local"
        )
    return config.model_copy(update={"plugins": list(dict.fromkeys([*config.plugins, str(file.resolve())]))})


def _with_tools(config: RunConfig, tools: Sequence[Callable[..., Any] | str]) -> RunConfig:
    """The run with a tool YAML of its own.

    Raises:
        ConfigError: it has one already.
        PluginError: a function or class has no name.
    """
    if not tools:
        return config
    given = config.actor_rollout_ref.rollout.multi_turn.tool_config_path
    if given is not None:
        raise ConfigError(f"train: got `tools` and {_TOOLS_KEY}={given}, wanted one of them")
    names = [plugin if isinstance(plugin, str) else registered_name("tools", plugin) for plugin in tools]
    for plugin, name in zip(tools, names, strict=True):
        if name is None:
            raise PluginError(f"train: {plugin!r} has no name: put `@agentrl.tool` before it")
    config = config.model_copy(deep=True)
    make_folders({"trainer.default_local_dir": config.trainer.default_local_dir})
    file = Path(config.trainer.default_local_dir).resolve() / TOOLS_FILE
    file.write_text(yaml.safe_dump({"tools": [{"class_name": name} for name in names]}), encoding="utf-8")
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = str(file)
    return config

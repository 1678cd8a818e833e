"""On several machines: the run's folders are the same for all of them, and every machine has the models and files.

Found before anything loads, by a file that is written here and read there. A checkpoint whose parts are in folders of
the same name on two machines would be found out at the end of the first save, or only when a run goes on.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.config.resource_pools import roles_of
from agentrl.config.schema import path_kind, walk
from agentrl.config.value_tree import get_value
from agentrl.config.weight_transport import weight_transport
from agentrl.errors import ConfigError
from agentrl.trainer.folders import make_folders

ANSWER_S = 120.0
"""How long a machine may take to look at the folders."""
_PROBE = ".agentrl-probe-"
_NOTHING = "nothing"
_READ_HERE = ("data.train_files", "data.val_files", "trainer.resume_from_path")
"""Rows are read on the driver's machine alone; a checkpoint is only needed by ranks, which tell where it is missing."""
_SYNC_KEY = "actor_rollout_ref.rollout.weight_sync_dir"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a machine looks at.

    Attributes:
        probe: name of the file that lies in each folder.
        folders: by configuration key.
        inputs: models and files by configuration key.
    """

    probe: str
    folders: Mapping[str, str]
    inputs: Mapping[str, str]

    def only(self, keys: Collection[str]) -> Asked:
        """The same without other folders."""
        return Asked(self.probe, {key: folder for key, folder in self.folders.items() if key in keys}, self.inputs)


@dataclass(frozen=True, slots=True)
class Answer:
    """What it found.

    Attributes:
        missing: keys of folders in which the file is not.
        inputs: what each model and file holds, as `contents_of` has it, by key.
    """

    missing: frozenset[str]
    inputs: Mapping[str, str]


def look(asked: Asked) -> Answer:
    """Runs on the other machine."""
    missing = {key for key, folder in asked.folders.items() if not (Path(folder) / asked.probe).is_file()}
    return Answer(frozenset(missing), {key: contents_of(Path(path)) for key, path in asked.inputs.items()})


def contents_of(path: Path) -> str:
    """A word that tells one model or file from another.

    That of a folder has what is in its `config.json`, and names and sizes of weights and the tokenizer's files.
    """
    if path.is_file():
        return hashlib.sha1(path.read_bytes()).hexdigest()
    if not path.is_dir():
        return _NOTHING
    config = path / "config.json"
    parts = [config.read_bytes() if config.is_file() else b""]
    files = sorted(file for pattern in ("*.safetensors", "tokenizer*") for file in path.glob(pattern))
    parts += [f"{file.name} {file.stat().st_size}".encode() for file in files]
    return hashlib.sha1(b"\n".join(parts)).hexdigest()


def check_shared_folders(config: RunConfig, rank_nodes: Collection[str]) -> None:
    """Let every machine of the Ray cluster look at the run's folders.

    Args:
        config: the run.
        rank_nodes: Ray nodes of the machines with ranks: these need the run folder, for checkpoints. Weights for
            engines, models, tool files and plug-ins are needed everywhere.

    Raises:
        ConfigError: lists each folder that a machine does not share or lacks, with the machine.
    """
    from agentrl.single_controller.ray_machines import alive, machine_name, several

    if not several():
        return
    here, *others = [node["NodeID"] for node in alive()]
    shared, needed = _folders(config), _needed_everywhere(config)
    make_folders(shared)
    asked = Asked(f"{_PROBE}{uuid.uuid4().hex}", shared, _inputs(config))
    probes = [Path(folder) / asked.probe for folder in shared.values()]
    try:
        for probe in probes:
            probe.touch()
        wanted = {node: asked if node in rank_nodes else asked.only(needed) for node in others}
        answers = _ask(wanted)
    finally:
        for probe in probes:
            with suppress(FileNotFoundError):
                probe.unlink()
    here_has = {key: contents_of(Path(path)) for key, path in asked.inputs.items()}
    problems = [
        problem
        for node, answer in answers.items()
        for problem in problems_of(asked, here_has, answer, machine_name(node), machine_name(here))
    ]
    if problems:
        raise ConfigError(problems)


def problems_of(asked: Asked, here_has: Mapping[str, str], answer: Answer | None, machine: str, here: str) -> list[str]:
    """What one machine's answer means; None: it gave none."""
    if answer is None:
        return [f"machine {machine}: gives no answer about the run's folders within {ANSWER_S:g} s"]
    problems = [
        f"{key}: got '{asked.folders[key]}', but a file that was written there on machine {here} is not found on "
        f"machine {machine}: wanted a folder that all machines share, such as one on NFS"
        for key in sorted(answer.missing)
    ]
    for key, found in answer.inputs.items():
        if found != here_has[key]:
            what = "does not have" if found == _NOTHING else f"has with other contents than machine {here}"
            problems.append(
                f"{key}: got '{asked.inputs[key]}', which machine {machine} {what}: copy it to every machine, or name "
                "one in a folder that all machines share"
            )
    return problems


def _ask(wanted: Mapping[str, Asked]) -> dict[str, Answer | None]:
    """The answers by Ray node."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(look)
    sent: dict[str, Any] = {
        node: task.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(asked)
        for node, asked in wanted.items()
    }
    ray.wait(list(sent.values()), num_returns=len(sent), timeout=ANSWER_S)
    answers: dict[str, Answer | None] = {}
    for node, reference in sent.items():
        try:
            answers[node] = ray.get(reference, timeout=0)
        except RayError:
            answers[node] = None
    return answers


def _folders(config: RunConfig) -> dict[str, str]:
    """The folders that must be the same for all, by key, as this machine understands relative ones."""
    given = {"trainer.default_local_dir": config.trainer.default_local_dir}
    sync = config.actor_rollout_ref.rollout.weight_sync_dir
    given |= {_SYNC_KEY: sync} if sync is not None and _sends_files(config) else {}
    return {key: str(Path(folder).absolute()) for key, folder in given.items()}


def _needed_everywhere(config: RunConfig) -> set[str]:
    """Keys of the folders that machines without ranks need too: any of them may get an engine."""
    if config.actor_rollout_ref.rollout.server.addresses is not None or not _sends_files(config):
        return set()
    return {_SYNC_KEY if config.actor_rollout_ref.rollout.weight_sync_dir else "trainer.default_local_dir"}


def _sends_files(config: RunConfig) -> bool:
    return weight_transport(config) in ("disk", "adapter")


def _inputs(config: RunConfig) -> dict[str, str]:
    """What workers read on their own machines, by key; names on the hub are loaded by each machine itself."""
    roles, found = roles_of(config), dict[str, str]()
    tree = config.model_dump()
    for key, field in walk(RunConfig):
        kind, value = path_kind(field), get_value(tree, key)
        section = key.partition(".model.")[0]
        idle = section in ("critic", "reward_model") and section not in roles
        if kind is None or kind.kind == "output" or key in _READ_HERE or idle or value == field.default:
            continue
        for part, name in _parts(key, value):
            path = name.partition(".py:")[0] + ".py" if ".py:" in name else name
            if os.path.isfile(path) or (".model." in key and os.path.isdir(path)):
                found[part] = str(Path(path).absolute())
    return found


def _parts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """The paths of a key: `plugins[1]` of a list, `tool_envs.NAME` of a mapping."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        yield from ((f"{key}[{number}]", name) for number, name in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{key}.{name}", path) for name, path in value.items())

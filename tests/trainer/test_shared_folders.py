"""Folders that machines do not share, and models that one lacks, are told with the folder and the machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.single_controller import ray_machines
from agentrl.trainer import shared_folders
from agentrl.trainer.shared_folders import Answer, Asked, check_shared_folders, contents_of, look

ROLLOUT = "actor_rollout_ref.rollout."


@pytest.fixture
def config(tmp_path: Path, tiny_model_dir: Path) -> RunConfig:
    made = RunConfig.model_validate(
        {"actor_rollout_ref": {"model": {"path": str(tiny_model_dir)}, "rollout": {"name": "embedded"}}}
    )
    made.trainer.default_local_dir = str(tmp_path / "run")
    made.actor_rollout_ref.rollout.weight_sync_dir = str(tmp_path / "sync")
    return made


@pytest.fixture
def other(tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The disk of machine `b`, which shares nothing; `a` is this machine, `c` sees what this one sees."""
    disk = tmp_path / "disk_of_b"
    shutil.copytree(tiny_model_dir, disk / tiny_model_dir.relative_to("/"))

    def on_b(folders: Mapping[str, str]) -> dict[str, str]:
        return {key: str(disk / Path(folder).relative_to("/")) for key, folder in folders.items()}

    def ask(wanted: Mapping[str, Asked]) -> dict[str, Answer | None]:
        b, c = wanted["b"], wanted["c"]
        return {"b": look(replace(b, folders=on_b(b.folders), inputs=on_b(b.inputs))), "c": look(c)}

    monkeypatch.setattr(ray_machines, "several", lambda: True)
    monkeypatch.setattr(ray_machines, "alive", lambda: [{"NodeID": name} for name in "abc"])
    monkeypatch.setattr(ray_machines, "machine_name", lambda node: f"10.0.0.{'abc'.index(node) + 1}")
    monkeypatch.setattr(shared_folders, "_ask", ask)
    return disk


def problems(config: RunConfig, *rank_nodes: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check_shared_folders(config, rank_nodes)
    return caught.value.problems


def test_a_folder_that_a_machine_does_not_share_is_told(config: RunConfig, other: Path, tmp_path: Path) -> None:
    sync, run = problems(config, "a", "b")
    assert run == (
        f"trainer.default_local_dir: got '{tmp_path}/run', but a file that was written there on machine 10.0.0.1 is "
        "not found on machine 10.0.0.2: wanted a folder that all machines share, such as one on NFS"
    )
    assert sync.startswith(f"{ROLLOUT}weight_sync_dir: got '{tmp_path}/sync', but a file")
    assert not list(tmp_path.rglob(".agentrl-probe-*")), "the files are gone"


def test_a_machine_without_ranks_needs_only_the_weights(config: RunConfig, other: Path) -> None:
    (problem,) = problems(config, "a")
    assert problem.startswith(f"{ROLLOUT}weight_sync_dir: got")
    config.actor_rollout_ref.rollout.weight_sync_dir = None
    (problem,) = problems(config, "a")
    assert problem.startswith("trainer.default_local_dir: got"), "weights are in the run folder"
    config.actor_rollout_ref.rollout.weight_sync = "distributed"
    check_shared_folders(config, ["a"])
    config.actor_rollout_ref.rollout.weight_sync = "auto"
    config.actor_rollout_ref.rollout.server.addresses = ["http://h:1"]
    check_shared_folders(config, ["a"])


def test_a_machine_without_the_model(config: RunConfig, other: Path, tiny_model_dir: Path) -> None:
    config.actor_rollout_ref.rollout.server.addresses = ["http://h:1"]
    model = other / tiny_model_dir.relative_to("/")
    (model / "config.json").write_text("{}")
    (problem,) = problems(config, "a")
    assert problem == (
        f"actor_rollout_ref.model.path: got '{tiny_model_dir}', which machine 10.0.0.2 has with other contents than "
        "machine 10.0.0.1: copy it to every machine, or name one in a folder that all machines share"
    )
    shutil.rmtree(model)
    (problem,) = problems(config, "a")
    assert f"got '{tiny_model_dir}', which machine 10.0.0.2 does not have: copy it" in problem


INPUTS = {
    "actor_rollout_ref.model.tokenizer_path": "tokenizer",
    "actor_rollout_ref.model.lora_adapter_path": "adapter",
    "actor_rollout_ref.model.chat_template": "chat.jinja",
    f"{ROLLOUT}multi_turn.tool_config_path": "tools.yaml",
    f"{ROLLOUT}multi_turn.tool_envs": {"shop": "shop.yaml"},
    f"{ROLLOUT}multi_turn.interaction_config_path": "talk.yaml",
    f"{ROLLOUT}agent.agent_loop_config_path": "loops.yaml",
    "custom_reward_function.path": "score.py",
    "reward_manager.module.path": "manager.py",
    "reward_model.judge.rubric_path": "rubric.yaml",
    "actor_rollout_ref.actor.policy_loss": "losses.py:mine",
    "plugins": ["json", "own.py"],
}
MISSING = {
    **{key: name for key, name in INPUTS.items() if isinstance(name, str)},
    "actor_rollout_ref.actor.policy_loss": "losses.py",
    f"{ROLLOUT}multi_turn.tool_envs.shop": "shop.yaml",
    "plugins[1]": "own.py",
}


def test_every_file_that_workers_read_is_looked_for(config: RunConfig, other: Path, tmp_path: Path) -> None:
    config.actor_rollout_ref.rollout.server.addresses = ["http://h:1"]
    for key, value in INPUTS.items():
        *sections, last = key.split(".")
        section: Any = config
        for name in sections:
            section = getattr(section, name)
        section.__dict__[last] = _in(tmp_path, value)
    for name in MISSING.values():
        (tmp_path / name).write_text("") if "." in name else (tmp_path / name).mkdir()
    assert sorted(problems(config, "a")) == sorted(
        f"{key}: got '{tmp_path / name}', which machine 10.0.0.2 does not have: copy it to every machine, or name one "
        "in a folder that all machines share"
        for key, name in MISSING.items()
    )
    for name in MISSING.values():
        (other / tmp_path.relative_to("/")).mkdir(parents=True, exist_ok=True)
        copy = other / (tmp_path / name).relative_to("/")
        copy.write_text("") if "." in name else copy.mkdir()
    check_shared_folders(config, ["a"])
    copy = other / (tmp_path / "tools.yaml").relative_to("/")
    copy.write_text("tools: []")
    (problem,) = problems(config, "a")
    assert problem.startswith(f"{ROLLOUT}multi_turn.tool_config_path: got '{tmp_path}/tools.yaml', which machine 10.0")
    assert "has with other contents than machine 10.0.0.1" in problem


def test_names_on_the_hub_and_modules_are_no_paths(config: RunConfig, other: Path) -> None:
    config.actor_rollout_ref.rollout.server.addresses = ["http://h:1"]
    config.actor_rollout_ref.model.tokenizer_path = "someone/tokenizer"
    config.plugins = ["json.tool"]
    config.custom_reward_function.path = "json"
    check_shared_folders(config, ["a"])


def _in(folder: Path, value: Any) -> Any:
    """A value of `INPUTS`, its names as paths in a folder."""
    if isinstance(value, list):
        return [_in(folder, item) for item in value]
    if isinstance(value, dict):
        return {name: _in(folder, item) for name, item in value.items()}
    return value if value == "json" else str(folder / value)


def test_a_copy_of_the_model_will_do(tiny_model_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model_dir, tmp_path / "copy")
    assert contents_of(tiny_model_dir) == contents_of(tmp_path / "copy")
    next((tmp_path / "copy").glob("*.safetensors")).write_bytes(b"")
    assert contents_of(tiny_model_dir) != contents_of(tmp_path / "copy")


def test_a_machine_that_gives_no_answer(config: RunConfig, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_folders, "_ask", lambda wanted: dict.fromkeys(wanted))
    assert problems(config)[0] == "machine 10.0.0.2: gives no answer about the run's folders within 120 s"

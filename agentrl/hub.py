"""Finds the model that a user names: a folder, else a model of the Hugging Face hub, from its cache if possible."""

from __future__ import annotations

import json
import logging
import os
import re
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

from agentrl.errors import ConfigError, suggest

logger = logging.getLogger(__name__)

_HUB_NAME = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?")
_STEP = "global_step_"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FOLDER = "lora_adapter"
"""Of a checkpoint's `actor/` and `critic/`: the LoRA adapter, as peft reads it."""
_MODEL_FOLDERS = ("actor/huggingface", "huggingface")
_TEXT_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.py"]
_ASK_TIMEOUT_S = 5.0


def model_folder(name: str, *, weights: bool = False) -> Path:
    """The folder of a model.

    A name that is no folder is looked up in the hub's cache, without any network. Only if that has no such model, and
    the name looks like one of the hub, the hub is asked, once; a download is announced before it begins.

    Args:
        name: a folder, or a model of the hub (`owner/name`).
        weights: False: without the weights, as for a tokenizer.

    Raises:
        ConfigError: it is neither; names the nearest folder.
    """
    given = Path(name).expanduser()
    if given.is_dir():
        return given
    problem = f"no model folder '{name}'"
    # `models/qwen` beside a folder `models` is a path with a typo; a name of the hub has no folder of its owner here.
    is_path = _HUB_NAME.fullmatch(name) is None or given.exists() or (len(given.parts) > 1 and given.parent.is_dir())
    if is_path:
        raise ConfigError(f"{problem}{nearest_folder(given)}")
    from huggingface_hub import constants, snapshot_download

    patterns = None if weights else _TEXT_FILES
    try:
        cached = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
    except OSError:  # not in the cache
        cached = None
    if cached is not None and (cached / "config.json").is_file() and (not weights or _has_weights(cached)):
        return cached
    problem += f"{nearest_folder(given)} The hub's cache has no such model either"
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"{problem}, and HF_HUB_OFFLINE is set")
    refusal = _ask_hub(name, constants.ENDPOINT)
    if refusal:
        raise ConfigError(f"{problem}, and {refusal}")
    logger.info("'%s' is no folder here: downloading it from %s", name, constants.ENDPOINT)
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{problem}, and its download failed: {error}") from error


def config_file(name: str) -> Path | None:
    """`config.json` of a model in its folder, or in the hub's cache; nothing is asked or downloaded."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder / "config.json" if (folder / "config.json").is_file() else None
    if _HUB_NAME.fullmatch(name) is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    return Path(found) if isinstance(found, str) else None


def check_model(name: str) -> None:
    """Refuse what is no model to load: no folder, or one without a configuration or weights.

    Of a model of the hub only the configuration is looked at: its weights may not be here yet.

    Raises:
        ConfigError: see `model_folder`, or the folder lacks a file.
    """
    folder = model_folder(name)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"'{name}' is no model folder: it has no config.json")
    if Path(name).expanduser().is_dir() and not _has_weights(folder):
        raise ConfigError(f"'{name}' holds no whole model: wanted all its weights (*.safetensors)")


def model_of_checkpoint(path: str) -> str:
    """The model inside a checkpoint of a run; any other path as it is.

    ::

        outputs/run                        the last step that was saved whole
        outputs/run/global_step_40         global_step_40/actor/huggingface; of a warm start global_step_40/huggingface
        outputs/run/global_step_40/actor   the same
    """
    folder = Path(path).expanduser()
    if not path or not folder.is_dir() or (folder / "config.json").is_file():
        return path
    for step in (folder, *_steps(folder)):
        for inside in _MODEL_FOLDERS:
            if (step / inside / "config.json").is_file():
                return str(step / inside)
    return path


def adapter_folder(path: str) -> Path:
    """The folder of a LoRA adapter: the given one, or that in a checkpoint, or in the newest one of a run.

    Raises:
        ConfigError: there is none.
    """
    given = Path(path).expanduser()
    for step in (given, *(_steps(given) if given.is_dir() else [])):
        for folder in (step, step / ADAPTER_FOLDER, step / "actor" / ADAPTER_FOLDER):
            if (folder / ADAPTER_CONFIG).is_file():
                return folder
    raise ConfigError(f"'{path}' holds no adapter: it has no {ADAPTER_CONFIG}")


def holds_adapter(path: str) -> bool:
    """Whether a folder without a model is a LoRA adapter, or a checkpoint or run folder with one."""
    folder = Path(path).expanduser()
    if not path or not folder.is_dir() or (folder / "config.json").is_file():
        return False
    with suppress(ConfigError):
        return adapter_folder(path).is_dir()
    return False


def _steps(run: Path) -> list[Path]:
    """The checkpoints of a run's folder: the one that it names as its last, then the others from the newest on."""
    numbers = sorted(
        int(entry.name[len(_STEP) :]) for entry in run.glob(f"{_STEP}*") if entry.name[len(_STEP) :].isdigit()
    )
    with suppress(OSError, ValueError):
        numbers.append(int((run / "latest_checkpointed_iteration.txt").read_text(encoding="utf-8")))
    return [run / f"{_STEP}{number}" for number in reversed(numbers)]


def _has_weights(folder: Path) -> bool:
    """Whether a folder of the cache holds all weights: a download may have been cut off between two files."""
    for index in folder.glob("*.index.json"):
        files = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        return all((folder / file).is_file() for file in files)
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def _ask_hub(name: str, endpoint: str) -> str | None:
    """Why a model cannot be downloaded; None: it can. One request, without the retries of a download."""
    from huggingface_hub import get_token

    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{endpoint}/api/models/{name}", headers=headers)
    try:
        urllib.request.urlopen(request, timeout=_ASK_TIMEOUT_S).close()
    except HTTPError as error:
        missing = "has none of that name (or it is private: `hf auth login`)"
        return f"{endpoint} {missing if error.code in (401, 403, 404) else f'answers HTTP {error.code}'}"
    except OSError as error:
        return f"{endpoint} cannot be reached ({getattr(error, 'reason', error)})"
    return None


def nearest_folder(name: str | Path) -> str:
    """The end of a sentence about a missing folder: the nearest name beside it, if there is one."""
    given = Path(name).expanduser()
    try:
        names = [entry for entry in os.listdir(given.parent) if (given.parent / entry).is_dir()]
    except OSError:
        return "."
    hint = suggest(str(given), [str(given.parent / name) for name in names])
    return f".{hint}" if "Did you mean" in hint else "."

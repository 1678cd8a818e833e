"""Recognises the recipe of another trainer or command: one message instead of one for each of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.config.base import Section
from agentrl.config.schema import find_field
from agentrl.config.translate import is_known
from agentrl.config.value_tree import Tree, leaves
from agentrl.errors import ConfigError

_FEWEST = 4
"""Fewer keys than these are told one by one."""
_MOST_SHOWN = 4
SIGNS: dict[str, frozenset[str]] = {
    "axolotl": frozenset(
        {
            *("base_model", "datasets", "sequence_len", "sample_packing", "adapter", "dataset_prepared_path"),
            *("micro_batch_size", "num_epochs", "val_set_size", "flash_attention", "rl", "load_in_4bit"),
        }
    ),
    "TRL": frozenset(
        {
            *("model_name_or_path", "dataset_name", "per_device_train_batch_size", "max_completion_length"),
            *("num_generations", "bf16", "gradient_checkpointing", "output_dir", "reward_funcs", "beta", "use_vllm"),
        }
    ),
    "OpenRLHF": frozenset(
        {
            *("pretrain", "reward_pretrain", "prompt_data", "actor_num_nodes", "actor_num_gpus_per_node"),
            *("rollout_batch_size", "micro_rollout_batch_size", "micro_train_batch_size", "n_samples_per_prompt"),
            *("advantage_estimator", "init_kl_coef", "actor_learning_rate", "generate_max_len", "zero_stage"),
        }
    ),
    "LLaMA-Factory": frozenset(
        {
            *(
                "stage",
                "finetuning_type",
                "template",
                "cutoff_len",
                "do_train",
                "dataset_dir",
                "preprocessing_num_workers",
            )
        }
    ),
    "NeMo RL": frozenset({"policy", "grpo", "loss_fn", "cluster", "env", "checkpointing"}),
}
"""Keys at the top of other trainers' recipes; two of them name the trainer."""
HERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("base_model", "model_name_or_path", "pretrain"), ("actor_rollout_ref.model.path", "model.path")),
    **dict.fromkeys(("datasets", "dataset_name", "prompt_data", "dataset"), ("data.train_files",)),
    **dict.fromkeys(("learning_rate", "actor_learning_rate"), ("actor_rollout_ref.actor.optim.lr", "optim.lr")),
    **dict.fromkeys(("num_generations", "n_samples_per_prompt"), ("actor_rollout_ref.rollout.n",)),
    **dict.fromkeys(("num_epochs", "num_train_epochs", "max_epochs"), ("trainer.total_epochs",)),
    **dict.fromkeys(("output_dir", "save_path"), ("trainer.default_local_dir",)),
    **dict.fromkeys(("max_completion_length", "generate_max_len"), ("data.max_response_length",)),
    **dict.fromkeys(("sequence_len", "cutoff_len", "max_seq_length", "max_length"), ("data.max_length",)),
    **dict.fromkeys(("micro_batch_size", "per_device_train_batch_size"), ("data.micro_batch_size_per_gpu",)),
    "rollout_batch_size": ("data.train_batch_size",),
    "advantage_estimator": ("algorithm.adv_estimator",),
}
"""What such a key is here: the first that the model has."""
_OWN_SECTION = {"train": "actor_rollout_ref", "sft": "optim", "eval": "eval", "generate": "rollout"}
"""A section that tells each command; `agentrl eval` also has those of `agentrl generate`."""
_OF_EVALUATION = ("data_source_key", "reward_model_key")


def refuse_other_command(where: str, tree: Mapping[str, Any], model: type[Section]) -> None:
    """Raise a ConfigError if a recipe is another command's: `optim` beside `model` is one of `agentrl sft`."""
    top = {key for key, value in tree.items() if isinstance(value, Mapping)}
    signs = {
        "train": sorted(top & {"actor_rollout_ref", "algorithm", "critic"}) if not top & {"model", "rollout"} else [],
        "sft": ["optim"] if {"model", "optim"} <= top and "rollout" not in top else [],
        "generate": ["rollout"] if {"model", "rollout"} <= top else [],
        "eval": [f"data.{key}" for key in _OF_EVALUATION if "data" in top and key in tree["data"]],
    }
    command = next((name for name, found in signs.items() if found), None)
    includes = "defaults" in tree and command != "train"  # sections of this command may stand in what it includes
    if command is None or includes or _OWN_SECTION[command] in model.model_fields:
        return
    here = next(name for name, section in _OWN_SECTION.items() if section in model.model_fields)
    raise ConfigError(
        f"{where}: is a recipe of `agentrl {command}` (it has {', '.join(signs[command])}), wanted the sections of "
        f"`agentrl {here}`: {', '.join(model.model_fields)}"
    )


def refuse_other_trainer(path: Path, tree: Tree, model: type[Section]) -> None:
    """Raise a ConfigError if hardly a key of a file is agentrl's or verl's."""
    keys = [key for key, _ in leaves(tree)]
    known = sum(is_known(key, model) for key in keys)
    if len(keys) < _FEWEST or 3 * known > len(keys):
        return
    name = next((name for name, signs in SIGNS.items() if len(signs & tree.keys()) > 1), None)
    whose = f"the recipe of another trainer ({name})" if name else "no recipe of agentrl"
    unknown = [key for key in tree if find_field(model, key) is None]
    shown = ", ".join(unknown[:_MOST_SHOWN]) + (", …" if len(unknown) > _MOST_SHOWN else "")
    ours = ((key, next((name for name in HERE.get(key, ()) if find_field(model, name)), None)) for key in unknown)
    here = [f"{key} is {name}" for key, name in ours if name is not None]
    hints = f"; here {', '.join(here[:_MOST_SHOWN])}" if here else ""
    raise ConfigError(
        f"{path}: is {whose}: {len(keys) - known} of its {len(keys)} keys ({shown}) are unknown{hints}. "
        f"A recipe has the sections {', '.join(model.model_fields)}"
    )

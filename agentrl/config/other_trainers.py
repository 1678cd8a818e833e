"""Recognises the recipe of another trainer or command: one message instead of one for each of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.config.base import Section
from agentrl.config.other_names import called_here
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
    "slime": frozenset(
        {
            *("hf_checkpoint", "ref_load", "num_rollout", "rm_type", "rollout_max_response_len", "prompt_data"),
            *("rollout_batch_size", "n_samples_per_prompt", "advantage_estimator"),
        }
    ),
    "AReaL": frozenset({"allocation_mode", "gconfig", "train_dataset", "valid_dataset", "saver", "stats_logger"}),
    "SkyRL": frozenset({"generator", "environment"}),
    "ROLL": frozenset({"actor_train", "actor_infer", "reference", "rewards", "num_gpus_per_node"}),
    "Trinity-RFT": frozenset({"buffer", "explorer", "synchronizer", "cluster", "project"}),
    "prime-rl": frozenset({"orchestrator", "inference", "max_steps", "seq_len"}),
    "torchtune": frozenset({"tokenizer", "model", "optimizer", "checkpointer", "loss", "dataset"}),
}
"""Keys at the top of other trainers' recipes; the trainer with most of them, of at least two, is named."""
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
    """Raise a ConfigError if hardly a key of a file is agentrl's or verl's.

    A file whose sections are known is a recipe with mistakes in it: each of its keys is told with the nearest.
    """
    keys = [key for key, _ in leaves(tree)]
    known = sum(is_known(key, model) for key in keys)
    unknown = [key for key in tree if find_field(model, key.partition(".")[0]) is None]
    if len(keys) < _FEWEST or 3 * known > len(keys) or 2 * len(unknown) < len(tree):
        return
    name = max(SIGNS, key=lambda trainer: len(SIGNS[trainer] & tree.keys()))
    named = len(SIGNS[name] & tree.keys()) > 1
    whose = f"the recipe of another trainer ({name})" if named else "no recipe of agentrl"
    shown = ", ".join(unknown[:_MOST_SHOWN]) + (", …" if len(unknown) > _MOST_SHOWN else "")
    ours = ((key, called_here(key, model)) for key in unknown)
    here = [f"{key} is {name}" for key, name in ours if name is not None]
    hints = f"; here {', '.join(here[:_MOST_SHOWN])}" if here else ""
    raise ConfigError(
        f"{path}: is {whose}: {len(keys) - known} of its {len(keys)} keys ({shown}) are unknown{hints}. "
        f"A recipe has the sections {', '.join(model.model_fields)}"
    )

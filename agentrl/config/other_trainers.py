"""Recognises the recipe of another trainer: one message instead of one for each of its keys."""

from __future__ import annotations

from pathlib import Path

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

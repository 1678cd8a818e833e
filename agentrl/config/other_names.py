"""Keys of other trainers by their names here."""

from __future__ import annotations

from agentrl.config.base import Section
from agentrl.config.schema import find_field

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
    **dict.fromkeys(("rollout_batch_size", "batch_size"), ("data.train_batch_size",)),
    **dict.fromkeys(
        ("model", "model.path", "model_path", "model_name"), ("actor_rollout_ref.model.path", "model.path")
    ),
    **dict.fromkeys(("lr", "optim.lr"), ("actor_rollout_ref.actor.optim.lr", "optim.lr")),
    "advantage_estimator": ("algorithm.adv_estimator",),
}
"""What such a key is here: the first that the model has."""


def called_here(key: str, model: type[Section]) -> str | None:
    """What another trainer's key is here; None: nothing that is known."""
    return next((name for name in HERE.get(key, ()) if find_field(model, name)), None)

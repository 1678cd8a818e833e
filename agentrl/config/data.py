"""`data.*`: the source of the rows and the sizes of batches."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentrl.config.base import InputPath, Section


class DataConfig(Section):
    """Datasets and batches."""

    train_files: InputPath | list[InputPath] | None = None
    """Parquet file, list of files, or glob with the training rows."""
    val_files: InputPath | list[InputPath] | None = None
    """Parquet file, list of files, or glob with the validation rows; null: no validation."""
    dataset_weights: list[float] | None = None
    """One sampling weight per training file; null: every row once per epoch."""
    prompt_key: str = "prompt"
    """Column that holds the messages."""
    image_key: str = "images"
    """Column that holds a row's pictures, for a model that sees them."""
    video_key: str = "videos"
    """Column that holds a row's videos, which must be empty: videos are not supported."""
    max_image_pixels: int | None = Field(default=None, ge=1)
    """Pictures with more pixels are made smaller, with the same aspect, before the model sees them; null: as the
    model's own image processor does."""
    max_prompt_length: int = Field(default=512, ge=1)
    """Most tokens of a rendered prompt, tool schemas included."""
    max_response_length: int = Field(default=512, ge=1)
    """Most tokens of a response, observations included."""
    train_batch_size: int = Field(default=256, ge=1)
    """Prompts per step; each is rolled out `rollout.n` times."""
    gen_batch_size: int | None = Field(default=None, ge=1)
    """With `algorithm.filter_zero_variance_groups`: prompts that a step rolls out at a time, until `train_batch_size`
    of them are left or `algorithm.max_gen_batches` is reached; null: `train_batch_size`."""
    val_batch_size: int | None = Field(default=None, ge=1)
    """Prompts per validation batch; null: all at once."""
    train_max_samples: int = -1
    """Use at most this many training rows; -1: all."""
    val_max_samples: int = -1
    """Use at most this many validation rows; -1: all."""
    shuffle: bool = True
    """Use the training rows in a seeded random order, a new one in each epoch."""
    seed: int = 1
    """Seed of the order of rows."""
    filter_overlong_prompts: bool = False
    """Drop (and count) prompts over `max_prompt_length`; false: such a row is an error."""
    apply_chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the chat template, for example `{enable_thinking: false}`."""

    @property
    def rollout_batch_size(self) -> int:
        """Prompts that are rolled out at a time."""
        return self.gen_batch_size or self.train_batch_size

"""The part of `reward_model` that names a classifier, and the weights of a trajectory's rewards."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from agentrl.config.actor import FSDPConfig
from agentrl.config.base import InputPath, ModelPath, RowsDecide, Section
from agentrl.config.trainer import MOST_MACHINES, MOST_RANKS

POLICY = "policy"


class CombineConfig(Section):
    """Weights of the parts of a trajectory's reward, which is their sum (docs/rewards.md)."""

    outcome: float = 1.0
    """Weight of the score function's score; 0: no score function is called."""
    turn: float = 0.0
    """Weight of the scores that the interaction gives to turns."""
    tool: float = 0.0
    """Weight of the rewards that tools give to calls."""
    model: float = 1.0
    """Weight of the reward model's score, where `reward_model.enable` is true."""
    judge: float = 1.0
    """Weight of the judge's score, where `reward_model.judge.base_url` is given; 0: the judge is not asked."""
    level: Literal["trajectory", "turn"] = "trajectory"
    """trajectory: the whole reward is on the last sampled token; turn: turn scores and tool rewards are on the last
    sampled token of their own turn."""


class ClassifierConfig(Section):
    """The reward model's weights, tokenizer and chat template."""

    path: ModelPath = ""
    """Hugging Face folder of a sequence classifier with one label (`AutoModelForSequenceClassification`; a token
    classifier with one label is read at the last token), with its tokenizer and chat template."""
    input_tokenizer: InputPath | None = POLICY
    """The tokenizer of the conversations: `policy`, or its folder, as in verl. Conversations are then rendered anew
    with the reward model's own tokenizer and chat template. null: both are the policy's, and the reward model reads
    the policy's tokens as they are."""
    chat_template: InputPath | None = None
    """A Jinja chat template (text, or path of a `.jinja` file) in place of that of the reward model's tokenizer."""
    use_remove_padding: bool = True
    """Pack conversations if the attention kernel skips masked blocks; on CPU, use micro-batches of similar lengths."""
    trust_remote_code: bool = False
    """Run model code that comes with the model folder."""


class ClassifierSection(RowsDecide):
    """A classifier that scores whole conversations, and how they are split into micro-batches."""

    rows_key: ClassVar[str] = "micro_batch_size_per_gpu"
    dynamic_key: ClassVar[str] = "use_dynamic_bsz"
    enable: bool = False
    """Score every conversation with a reward model too; `combine` weights its score."""
    model: ClassifierConfig = Field(default_factory=ClassifierConfig)
    """The reward model."""
    fsdp_config: FSDPConfig = Field(default_factory=FSDPConfig)
    """Sharding and precision of the reward model, which never learns."""
    use_dynamic_bsz: bool = True
    """Split conversations by tokens (`forward_max_token_len_per_gpu`) instead of by rows."""
    forward_max_token_len_per_gpu: int = Field(default=16384, ge=1)
    """Most tokens of a micro-batch, padding included."""
    micro_batch_size_per_gpu: int | None = Field(default=None, ge=1)
    """Conversations of a micro-batch. Where it is given, `use_dynamic_bsz` is false unless it is given too."""
    enable_resource_pool: bool = False
    """Give the reward model a pool of its own, `reward_pool`; `trainer.resource_pools` and `role_pools` do the same for
    every role."""
    nnodes: int = Field(default=0, ge=0, le=MOST_MACHINES)
    """Machines of `reward_pool`."""
    n_gpus_per_node: int = Field(default=0, ge=0, le=MOST_RANKS)
    """Ranks of `reward_pool` on each machine."""
    max_length: int | None = Field(default=None, ge=1)
    """Most tokens of a conversation that the reward model reads; null: as many as it has positions."""
    truncation: Literal["left", "right"] = "left"
    """Side on which a longer conversation is cut: left keeps its end (and the token that begins every text), where the
    answer is; right keeps its beginning, as verl does."""

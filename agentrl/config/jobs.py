"""The configurations of `agentrl generate` and `agentrl eval`, with the keys of verl's generation and eval YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from agentrl.config.actor import ModelConfig
from agentrl.config.base import InputPath, ModelPath, OutputPath, Section, TokenizerPath
from agentrl.config.rewards import CustomRewardFunction
from agentrl.config.rollout import RolloutConfig
from agentrl.config.root import RewardModelConfig
from agentrl.config.trainer import MOST_MACHINES, MOST_RANKS, RayInitConfig
from agentrl.config.verl_keys import Answer, Harmless

_POLICY = "actor_rollout_ref."


class GenerationDataConfig(Section):
    """The prompts, and where their responses go."""

    path: InputPath | list[InputPath] | None = None
    """Parquet file, list of files, or glob with the prompts."""
    prompt_key: str = "prompt"
    """Column of the prompts: messages, or text."""
    text_prompts: Literal["raw", "user_message"] = "raw"
    """What a prompt that is text becomes: raw, the model continues it and no chat template is used; or the message of a
    user, as in training. With an agent loop it always is the latter."""
    n_samples: int = Field(default=1, ge=1)
    """Responses per prompt."""
    output_path: OutputPath | None = None
    """Parquet file to write: the columns of the input, and the responses."""
    response_key: str = "responses"
    """Column of the responses: a list of texts per row."""
    facts_key: str = "response_facts"
    """Column for what the score function is told besides the text (messages, turns, tool rewards): a list of JSON texts
    per row. Written only with an agent loop; `agentrl eval` reads it where it is present."""
    batch_size: int = Field(default=128, ge=1)
    """Prompts per batch. Finished batches are kept, so that a second start goes on after them."""
    max_samples: int = -1
    """Use at most this many rows; -1: all."""
    filter_overlong_prompts: bool = False
    """Leave out (and count) rows whose prompt is over `rollout.prompt_length`; false: such a row is an error."""
    apply_chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the chat template, for example `{enable_thinking: false}`."""


class GenerationModelConfig(Section):
    """The model that answers."""

    path: ModelPath = ""
    """Hugging Face folder of the model, or its name on the hub."""
    tokenizer_path: TokenizerPath | None = None
    """Folder of the tokenizer; null: the model's."""
    chat_template: InputPath | None = None
    """A Jinja chat template (text, or path of a `.jinja` file) that replaces the tokenizer's own."""
    trust_remote_code: bool = ModelConfig.model_fields["trust_remote_code"].default
    """Run model code that comes with the model folder."""


class GenerationRolloutConfig(RolloutConfig):
    """Sampling, engines and agent loops: the keys of `actor_rollout_ref.rollout`, and these with their own defaults."""

    do_sample: bool = True
    """False: greedy, whatever `temperature` says."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0: greedy."""
    prompt_length: int = Field(default=1024, ge=1)
    """Most tokens of a prompt, tool schemas included."""
    response_length: int = Field(default=512, ge=1)
    """Most tokens of a response, observations included."""
    max_failure_rate: float = Field(default=0.0, ge=0, le=1)
    """Largest share of a batch's responses that may be missing (null in their column) because something around the
    model failed; above it the job stops, and a second start goes on."""
    refill: bool = True
    """Repeat failed trajectories in the same batch."""


class GenerationTrainerConfig(Section):
    """Where the job runs."""

    backend: Literal["ray", "local"] = "local"
    """Where agent loops run: in Ray actors (`rollout.agent.num_workers`), or in this process."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the engines; auto: cuda if available."""
    nnodes: int = Field(default=1, ge=1, le=MOST_MACHINES)
    """Number of machines: 1. Engines on others are named in `rollout.server.addresses`."""
    n_gpus_per_node: int = Field(default=1, ge=1, le=MOST_RANKS)
    """GPUs of this machine: as many engines are started as they hold (`rollout.tensor_model_parallel_size` each),
    unless `rollout.server.launch` says how many."""
    seed: int = 1
    """Every response has a seed made of this, its row and its number."""
    deterministic: bool = False
    """Use an embedded engine whose numbers do not depend on batching: equal responses to the last bit. Slower."""


class GenerationConfig(Section):
    """One job of `agentrl generate`."""

    data: GenerationDataConfig = Field(default_factory=GenerationDataConfig)
    """Prompts and responses."""
    model: GenerationModelConfig = Field(default_factory=GenerationModelConfig)
    """The model that answers."""
    rollout: GenerationRolloutConfig = Field(default_factory=GenerationRolloutConfig)
    """Sampling, engines and agent loops."""
    trainer: GenerationTrainerConfig = Field(default_factory=GenerationTrainerConfig)
    """Where the job runs."""
    ray_init: RayInitConfig = Field(default_factory=RayInitConfig)
    """Ray."""
    plugins: list[InputPath] = Field(default_factory=list)
    """Python modules and files that every process imports first, to register plug-ins by name (`@register`)."""

    training_sections: ClassVar[dict[str, str]] = {section: f"{_POLICY}{section}" for section in ("model", "rollout")}
    foreign_keys: ClassVar[Mapping[str, Answer]] = {
        "actor": Harmless("nothing is trained"),
        "actor.*": Harmless("nothing is trained"),
        "rollout.mode": Harmless("generation is always asynchronous"),
    }

    @property
    def has_loop(self) -> bool:
        """Whether an agent loop is asked for; else a row is one question and one answer."""
        return "default_agent_loop" in self.rollout.agent.model_fields_set

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken, so that all samples of a prompt are equal."""
        return not self.rollout.do_sample or self.rollout.temperature == 0


class EvalDataConfig(GenerationDataConfig):
    """The responses; with `model.path` the prompts that it answers first."""

    path: InputPath | list[InputPath] | None = None
    """Parquet file, list of files, or glob with the responses (with `model.path`: with the prompts)."""
    data_source_key: str = "data_source"
    """Column that picks the score function, and by which results are listed."""
    reward_model_key: str = "reward_model"
    """Column with the ground truth: `{ground_truth: …}`."""
    output_path: OutputPath | None = None
    """JSON file of the result; its plot is beside it, and with `model.path` the responses. null: FILE.eval.json beside
    the file with the responses (of several: beside the first)."""


class EvalStatistics(Section):
    """What is computed from the scores."""

    k: list[int] | None = None
    """The k of pass@k and maj@k; null: 1, 2, 4, … and the number of responses per prompt."""
    pass_at: float = 1.0
    """A response passes if its score is at least this."""
    max_failure_rate: float = Field(default=0.1, ge=0, le=1)
    """Largest share of the responses that may be left without a score because their score function or its service
    failed; above it nothing is written."""
    seed: int = 1
    """Seed of the subsets that maj@k takes where there are too many to take all."""


class EvalConfig(GenerationConfig):
    """One job of `agentrl eval`."""

    data: EvalDataConfig = Field(default_factory=EvalDataConfig)
    """Responses."""
    custom_reward_function: CustomRewardFunction = Field(default_factory=CustomRewardFunction)
    """The user's own score function."""
    reward_model: RewardModelConfig = Field(default_factory=RewardModelConfig)
    """Scoring."""
    eval: EvalStatistics = Field(default_factory=EvalStatistics)
    """What is computed from the scores."""

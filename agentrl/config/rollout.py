"""`actor_rollout_ref.rollout.*`: engines, sampling, agent loops and their limits."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from agentrl.config.base import DtypeSpelling, InputPath, Names, OutputPath, RowsDecide, Section

LAST_PORT = 65535


class ServerConfig(Section):
    """The inference servers."""

    addresses: list[str] | None = None
    """`http://host:port` of running servers; null: the run starts its own."""
    launch: int | None = Field(default=None, ge=1, le=10_000)
    """Number of servers that the run starts if `addresses` is null; null: on GPUs as many as these have room for
    (`rollout.placement`), on CPUs one."""
    host: str = "127.0.0.1"
    """Address that started servers listen on. On several machines 127.0.0.1 stands for the address of each machine."""
    port: int | None = Field(default=None, ge=1, le=LAST_PORT)
    """Port of the first started server (the next ones count up); null: free ports."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Longest time until a started server is healthy."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Deadline of one generation."""
    retries: int = Field(default=3, ge=0)
    """How often a failed call to a server is retried."""
    args: list[str] = Field(default_factory=list)
    """Additional command-line arguments for a started SGLang or vLLM server."""
    python: str | None = None
    """Python of an environment that has SGLang or vLLM, on every machine on which the run starts servers; null: this
    one."""


class EngineKwargs(Section):
    """Flags of started servers: `{swap_space: 8, x: true}` is `--swap-space 8 --x`. Not those that other keys give."""

    vllm: dict[str, Any] = Field(default_factory=dict)
    """Flags of vLLM; false is written `--no-…`."""
    sglang: dict[str, Any] = Field(default_factory=dict)
    """Flags of SGLang; false leaves a flag out."""


class EmbeddedConfig(Section):
    """The embedded engine."""

    max_running_requests: int = Field(default=128, ge=1)
    """Most requests that decode together if `rollout.max_num_seqs` is null."""
    max_context_length: int | None = Field(default=None, ge=1)
    """Most tokens per slot of the KV cache if `rollout.max_model_len` is null; null: prompt plus response length."""
    prefill_chunk: int = Field(default=2048, ge=1)
    """Most prompt tokens of one prefill step if `rollout.max_num_batched_tokens` is null."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the engine process; null: as many as the model's size makes worthwhile."""


class ToolCacheConfig(Section):
    """Results of tool calls on disk, so that a run can be repeated without the services behind its tools."""

    mode: Literal["off", "record", "replay"] = "off"
    """record: keep every result; replay: answer with kept results and call no tool (a call that was not recorded
    fails)."""
    path: OutputPath | None = None
    """Folder of the results; required for record and replay."""


class ToolAgentLimits(Section):
    """`multi_turn.*`: tools, interactions and the limits of a conversation."""

    tool_config_path: InputPath | None = None
    """Tool YAML."""
    tool_envs: dict[str, InputPath] = Field(default_factory=dict)
    """Tool YAMLs by name; a row picks one with `extra_info.tool_env_name`, other rows get `tool_config_path`."""
    stop_tools: list[str] = Field(default_factory=list)
    """Tools that end the trajectory once they have run, for example one that takes the final answer."""
    interaction_config_path: InputPath | None = None
    """Interaction YAML."""
    tool_cache: ToolCacheConfig = Field(default_factory=ToolCacheConfig)
    """Record the results of tool calls, or replay them."""
    format: str = "hermes"
    """Tool-call format: a name from docs/tool_formats.md, `auto` (by the chat template), or your own parser."""
    max_assistant_turns: int | None = Field(default=None, ge=1)
    """Most generations; null: no limit."""
    max_user_turns: int | None = Field(default=None, ge=0)
    """Most user or tool rounds; null: no limit."""
    max_parallel_calls: int | None = Field(default=None, ge=1)
    """Most calls in one turn; further ones are not run, and a message tells the model so; null: no limit."""
    max_tool_calls: int | None = Field(default=None, ge=1)
    """Most calls of a trajectory; null: no limit."""
    max_tool_response_length: int | None = Field(default=256, ge=0)
    """Most tokens of one tool response; null: no limit."""
    tool_response_truncate_side: Literal["left", "right", "middle"] = "middle"
    """Which part of a long response is kept: left the head, right the tail, middle both ends."""
    max_tokens_per_turn: int | None = Field(default=None, ge=1)
    """Most tokens of one generation; null: the rest of the response."""
    tool_timeout_s: float = Field(default=60.0, gt=0)
    """Deadline of one tool call."""
    turn_timeout_s: float | None = Field(default=None, gt=0)
    """Deadline of one generation; null: `server.request_timeout_s`."""
    trajectory_timeout_s: float | None = Field(default=None, gt=0)
    """Deadline of a trajectory; null: no limit."""
    trainable_turns: Literal["all_assistant", "last_assistant", "final_answer"] = "all_assistant"
    """Which sampled turns are trained on: all, the last, or the last only if it is an answer (it calls nothing but a
    stop tool)."""
    mask_tool_call_args: bool = False
    """Leave the arguments of tool calls out of training; with `trainable_turns` only ever narrows the loss mask."""


class AgentConfig(Section):
    """Agent loops and the workers that run them."""

    num_workers: int = Field(default=1, ge=1)
    """Agent-loop workers."""
    default_agent_loop: str = "single_turn_agent"
    """Loop of rows without `agent_name`."""
    agent_loop_config_path: InputPath | None = None
    """YAML list of `{name, _target_, ...}` that adds loops."""
    max_in_flight: int = Field(default=1024, ge=1)
    """Most trajectories that run at the same time, in all workers together."""


class OutageConfig(Section):
    """When a service (engine, tool, interaction) counts as down, and what new trajectories that need it do then."""

    failures: int = Field(default=8, ge=0)
    """A service is down after this many failures in a row without a success in between; 0: never."""
    backoff_s: float = Field(default=1.0, gt=0)
    """Pause before one trajectory tries the service again; doubled after each failed try, up to 30 s."""
    wait_s: float = Field(default=300.0, ge=0)
    """How long trajectories wait for a service that is down; then they fail with its cause. They do not wait for
    engines that the run started: the run restarts those."""


class ValKwargs(Section):
    """Sampling in validation."""

    n: int = Field(default=1, ge=1)
    """Rollouts per validation prompt."""
    temperature: float = Field(default=0.0, ge=0)
    """0: greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: the smallest set of tokens with this probability."""
    top_k: int = Field(default=-1, ge=-1)
    """Most likely tokens to sample from; -1: all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Tokens below this share of the most likely token's probability are not sampled."""
    do_sample: bool = False
    """False: greedy, whatever `temperature` says."""


class RolloutConfig(RowsDecide):
    """Generation and agent loops."""

    rows_key: ClassVar[str] = "log_prob_micro_batch_size_per_gpu"
    dynamic_key: ClassVar[str] = "log_prob_use_dynamic_bsz"
    name: Literal["auto", "sglang", "vllm", "hf", "embedded"] = "auto"
    """The engine; auto: sglang if CUDA and sglang are present, else embedded; hf: transformers' `generate`. vllm is
    read as auto where vLLM is not installed."""
    n: int = Field(default=1, ge=1)
    """Rollouts per prompt; they share one group. Where it is not given, an estimator that compares them gets 8."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; log-probs are those of the scaled logits."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling; below 1 the old log-probs are recomputed."""
    top_k: int = Field(default=-1, ge=-1)
    """Number of most likely tokens to sample from; -1: all. Otherwise the old log-probs are recomputed."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Tokens below this share of the most likely token's probability are not sampled."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Above 1: tokens that already occurred become less likely."""
    stop: Names = Field(default_factory=list)
    """Strings that end a turn; a single string needs no list."""
    stop_token_ids: list[int] = Field(default_factory=list)
    """Ids that end a turn, besides the model's own."""
    ignore_eos: bool = False
    """Never stop at the end-of-turn id (for benchmarks)."""
    prompt_length: int | None = Field(default=None, ge=1)
    """Most tokens of a prompt; null: `data.max_prompt_length`."""
    response_length: int | None = Field(default=None, ge=1)
    """Most tokens of a response; null: `data.max_response_length`."""
    limit_images: int | None = Field(default=None, ge=1)
    """Most pictures of a trajectory, those of its prompt included; null: no limit. A prompt with more is an error, and
    an observation with more ends the trajectory."""
    max_failure_rate: float = Field(default=0.1, ge=0, le=1)
    """Largest share of a step's trajectories that may end in infrastructure failures; above it the run stops."""
    refill: bool = False
    """Repeat failed trajectories in the same step; false: groups continue with the remaining ones."""
    max_refills: int = Field(default=2, ge=1)
    """How often one trajectory is repeated in a step."""
    outage: OutageConfig = Field(default_factory=OutageConfig)
    """What happens while a service is down."""
    weight_sync: Literal["auto", "disk", "ipc", "distributed", "tensor", "adapter"] = "auto"
    """How weights reach the engines. disk: a file per rank, in shared memory if the machine has it. ipc: handles of GPU
    memory to engines on the ranks' GPUs, shared memory to the embedded engine on a CPU. distributed: a process group of
    rank 0 and all engines (nccl, gloo on CPUs). tensor: over HTTP, which only the embedded and the hf engine know.
    adapter: with LoRA, engines load it in place of merged weights. auto: on GPUs ipc or, where engines have their own,
    distributed; on CPUs and for given servers disk."""
    weight_sync_timeout_s: float = Field(default=600.0, gt=0)
    """How long engines may take for each phase of a weight update; a slower one is left out until a later update."""
    update_weights_bucket_megabytes: int = Field(default=512, ge=1)
    """Most megabytes of weights that a rank gathers at once on their way to engines and files; a tensor that is larger
    travels alone."""
    weight_sync_dir: OutputPath | None = None
    """Folder for weights sent to the engines, visible to trainer and servers; null: a temporary one, on several
    machines in the run folder."""
    placement: Literal["auto", "colocated", "split"] = "auto"
    """GPUs of started servers: colocated: those of the actor's ranks, in turns; split: others, which no rank has; auto:
    split if `n_gpus` is given, else colocated."""
    n_gpus: int | None = Field(default=None, ge=1)
    """With `placement: split`: GPUs of all started servers together; null: all that ranks leave."""
    tensor_model_parallel_size: int = Field(default=1, ge=1)
    """GPUs per started SGLang or vLLM server."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, le=1)
    """Share of GPU memory for a started SGLang or vLLM server."""
    free_cache_engine: bool | None = None
    """Started engines release KV cache and weights while ranks train, and get both back before the next rollouts; null:
    where engines and ranks share GPUs. On a CPU the embedded engine can do it too."""
    max_num_seqs: int | None = Field(default=None, ge=1)
    """Most requests that a started server decodes together; null: the engine's own limit."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Most tokens of a request in a started server; null: prompt plus response length. SGLang is started with a context
    of 8 more, of which it uses none."""
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    """Most prompt tokens of one prefill step of a started server; null: the engine's own limit."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], DtypeSpelling] = "auto"
    """Data type of the engine's weights; auto: float32 on CPU, bfloat16 on GPU."""
    enable_chunked_prefill: bool = True
    """Long prompts are computed in several prefill steps of a started server; false: a prompt is computed in one."""
    enable_prefix_caching: bool = True
    """A started SGLang or vLLM server reuses the prefixes that requests share, such as a trajectory's earlier turns."""
    enforce_eager: bool = False
    """A started SGLang or vLLM server captures no CUDA graphs."""
    load_format: Literal["auto", "safetensors", "pt", "dummy"] = "auto"
    """Weights that a started SGLang or vLLM server begins with; dummy: random ones, until it gets the trainer's."""
    log_prob_use_dynamic_bsz: bool = True
    """Split the micro-batches of old log-probs by tokens instead of by rows."""
    log_prob_max_token_len_per_gpu: int = Field(default=16384, ge=1)
    """Most tokens of a micro-batch of old log-probs, padding included."""
    log_prob_micro_batch_size_per_gpu: int | None = Field(default=None, ge=1)
    """Rows of such a micro-batch. Where it is given, `log_prob_use_dynamic_bsz` is false unless it is given too."""
    server: ServerConfig = Field(default_factory=ServerConfig)
    """The inference servers."""
    engine_kwargs: EngineKwargs = Field(default_factory=EngineKwargs)
    """Flags of started servers."""
    embedded: EmbeddedConfig = Field(default_factory=EmbeddedConfig)
    """The embedded engine."""
    multi_turn: ToolAgentLimits = Field(default_factory=ToolAgentLimits)
    """Tools, interactions and the limits of a conversation."""
    agent: AgentConfig = Field(default_factory=AgentConfig)
    """Agent loops and their workers."""
    val_kwargs: ValKwargs = Field(default_factory=ValKwargs)
    """Sampling in validation."""

    @property
    def sync_bucket_bytes(self) -> int:
        """`update_weights_bucket_megabytes` in bytes."""
        return self.update_weights_bucket_megabytes * 2**20

    def sampling_params(self) -> dict[str, Any]:
        """Sampling fields of a training request, as `/generate` names them, without `max_new_tokens`."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
        }

"""Keys of verl that agentrl does not have itself: renamed here, without effect, or allowed with one value only.

A recipe or command written for verl passes through `translate` before it is checked. A key without effect is accepted
with a note, so nothing is ignored silently; a value that asks for something that agentrl does not do is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentrl.config import megatron

_AR = "actor_rollout_ref."


@dataclass(frozen=True, slots=True)
class Renamed:
    """The key has another name here."""

    to: str


@dataclass(frozen=True, slots=True)
class Fallback:
    """Another name of a key, which counts where that key is not given itself."""

    to: str


@dataclass(frozen=True, slots=True)
class Harmless:
    """The key changes nothing here, whatever its value."""

    note: str


@dataclass(frozen=True, slots=True)
class Only:
    """The key changes nothing with these values; another value asks for something that agentrl does not have.

    A list is compared with a frozenset, whatever its order. Where `switch` (a key beside it) is written false, nothing
    is asked for. `told` are values that change nothing either, but whose users get the reason as a note.
    """

    allowed: tuple[Any, ...]
    reason: str
    switch: str | None = None
    told: tuple[Any, ...] = ()


Answer = Renamed | Fallback | Harmless | Only


@dataclass(frozen=True, slots=True)
class Foreign:
    """A key of verl as the user gave it, to be judged when everything that they gave is known."""

    key: str
    """Its name in `VERL_KEYS`: two spellings of a key are one."""
    value: Any
    answer: Fallback | Harmless | Only
    where: str = ""
    """File that it was last given in; empty: an override."""
    written: str = ""
    """As the user spelt it; empty: as `key`."""


_OFF = (False, None, 0)
_SMALL = (1, None)
_NO_COMPILE = Harmless("agentrl does not use torch.compile")
_BATCH_PER_GPU = "give `{}` instead: a size per GPU does not depend on the number of GPUs"
_REMOTE = Only((None,), "HDFS is not supported: use a mounted folder")
_PROFILED = Harmless("`trainer.profile_steps` says which steps are profiled, in every process")
_NSIGHT = Harmless("Nsight's options stand on its own command line: `nsys profile OPTIONS agentrl train …`")
_WHOLE = frozenset({"model", "optimizer", "extra"})
_TURNS = _AR + "rollout.multi_turn."

_TIS = (
    "importance weights are cut here: set algorithm.rollout_correction.is_level=token, and "
    "algorithm.rollout_correction.is_threshold to the cap"
)
_ONE_KIND = Harmless("every section has one kind, so it needs no class")


def lora_answers(model: str) -> dict[str, Answer]:
    """Other spellings of the keys of LoRA: the section `lora` of peft's names and of verl's, below `model`."""
    names = {
        "lora_rank": ("rank", "r", "lora_rank"),
        "lora_alpha": ("alpha", "lora_alpha"),
        "lora_dropout": ("dropout", "lora_dropout"),
        "lora_adapter_path": ("adapter_path", "lora_adapter_path"),
        "lora_enable": ("enable", "enabled"),
        "target_modules": ("target_modules",),
        "exclude_modules": ("exclude_modules",),
    }
    return {
        f"{model}lora": Renamed(f"{model}lora_enable"),
        **{f"{model}lora.{other}": Renamed(f"{model}{own}") for own, others in names.items() for other in others},
        f"{model}lora.type": Only(("lora", None), "plain LoRA is the one kind of adapter here"),
        f"{model}lora.task_type": Harmless("the model says what it is"),
        f"{model}lora.merge": Harmless("engines get merged weights"),
        f"{model}lora.init_lora_weights": Only((True, None), "A begins at peft's random numbers and B at zero"),
        f"{model}lora.lora_A_init_method": Harmless("A begins at peft's random numbers"),
        f"{model}lora.lora_B_init_method": Only(("zero", None), "B begins at zero"),
        f"{model}lora.freeze_*": Only((True, None), "the weights beside adapters are frozen"),
        f"{model}lora.*": Only((*_OFF, "none", "pre", {}, []), "LoRA here is plain: leave it out"),
    }


# The first pattern that fits a key counts.
VERL_KEYS: dict[str, Answer] = {
    "_target_": _ONE_KIND,
    "*._target_": _ONE_KIND,
    # data
    "data.return_raw_chat": Only((True,), "agent loops need the raw messages"),
    "data.return_raw_input_ids": Harmless("the agent loop makes the ids"),
    "data.return_full_prompt": Harmless("rollout dumps hold the whole prompt"),
    "data.return_multi_modal_inputs": Harmless("the inputs of pictures always travel beside the tokens"),
    "data.truncation": Only(("error",), "a prompt is never cut: set `data.filter_overlong_prompts=true`"),
    "data.filter_overlong_prompts_workers": Harmless("filtering needs no extra processes"),
    "data.reward_fn_key": Only(("data_source",), "the score function is picked by the column `data_source`"),
    "data.tokenizer": Renamed("actor_rollout_ref.model.tokenizer_path"),
    "data.trust_remote_code": Renamed("actor_rollout_ref.model.trust_remote_code"),
    "data.dataloader_num_workers": Harmless("the loader reads in this process, so that it resumes exactly"),
    "data.validation_shuffle": Only(_OFF, "validation rows keep their order"),
    "data.image_patch_size": Harmless("the model's own image processor knows its patches"),
    "data.use_shm": Only(_OFF, "files are memory-mapped where they are"),
    "data.train_data_num": Renamed("data.train_max_samples"),
    "data.val_data_num": Renamed("data.val_max_samples"),
    "data.shuffle_train_dataloader": Renamed("data.shuffle"),
    "data.max_obs_length": Renamed(_TURNS + "max_tool_response_length"),
    "data.max_start_length": Harmless("`data.max_prompt_length` limits a row's prompt"),
    "data.custom_cls.*": Only((None,), "agentrl has no dataset plug-ins"),
    "data.sampler.*": Only((None,), "agentrl has no sampler plug-ins"),
    "data.datagen.*": Only((None,), "agentrl has no dataset plug-ins"),
    "data.need_tools_kwargs": Harmless("a row says itself whether it has `tools_kwargs`"),
    "data.tool_config_path": Renamed("actor_rollout_ref.rollout.multi_turn.tool_config_path"),
    # actor_rollout_ref
    _AR + "hybrid_engine": Only((True,), "trainer and engines share the machine's devices in one run"),
    _AR + "model.custom_chat_template": Renamed(_AR + "model.chat_template"),
    "reward_model.model_path": Renamed("reward_model.model.path"),
    "reward_model.batch_size": Renamed("reward_model.micro_batch_size_per_gpu"),
    "reward_model.model.fsdp_config.*": Renamed("reward_model.fsdp_config.*"),
    "reward_model.model.enable_gradient_checkpointing": Harmless("the reward model does not learn"),
    "reward_model.rollout.*": Harmless("the reward model scores in the ranks of the trainer, without an engine"),
    "*.model.use_shm": Harmless("weights are read where they are"),
    "*.model.external_lib": Only((None,), "model code comes with the model folder (`trust_remote_code`)"),
    "*.model.override_config.*drop*": Only((0, None), "dropout is always off: the policy that samples has none"),
    "*.model.override_config*": Only((None, {}), "change the model folder's config.json"),
    "*.model.enable_activation_offload*": Only(_OFF, "activations are not offloaded"),
    **lora_answers("*.model."),
    "lora": Renamed(_AR + "model.lora_enable"),
    "lora.*": Renamed(_AR + "model.lora.*"),
    _AR + "actor.lora": Renamed(_AR + "model.lora_enable"),
    _AR + "actor.lora.*": Renamed(_AR + "model.lora.*"),
    "*.model.use_liger": Only(_OFF, "Liger kernels are not supported"),
    "*.use_fused_kernels": Harmless("log-probs and entropy are computed in chunks, without the logits of all tokens"),
    "*.model.fused_kernel_options.*": Harmless("log-probs are computed in chunks, by torch"),
    "*.model.hf_config_path": Only((None,), "the config is read from the model folder"),
    "*.model.mtp.enable": Only(_OFF, "multi-token prediction is not supported"),
    "*.model.mtp.*": Harmless("multi-token prediction is not supported"),
    "*.model.tiled_mlp.enabled": Only(_OFF, "tiled MLPs are not supported"),
    "*.model.tiled_mlp.*": Harmless("tiled MLPs are not supported"),
    _AR + "ref.model*": Only((None, {}), "the reference policy is the model at the start of the run"),
    "*.ulysses_sequence_parallel_size": Renamed("*.fsdp_config.ulysses_sequence_parallel_size"),
    "*.megatron.*": Only((*_OFF, *_SMALL, {}), megatron.REASON),
    "*.use_torch_compile": _NO_COMPILE,
    "*.entropy_from_logits_with_chunking": Harmless("log-probs and entropy are computed in chunks anyway"),
    "*.entropy_checkpointing": Harmless("log-probs and entropy are computed in chunks anyway"),
    "*.calculate_entropy": Harmless("the entropy is always computed"),
    "*.profiler.*": _PROFILED,
    "*.profile.*": _PROFILED,
    "*.checkpoint.contents": Renamed("*.checkpoint.save_contents"),
    "*.checkpoint.async_save": Fallback("trainer.async_save"),
    "*.checkpoint.*": Harmless("`save_contents` and `load_contents` say what a checkpoint holds"),
    "*.fsdp_config.wrap_policy.*": Harmless("every decoder layer is wrapped"),
    "*.fsdp_config.forward_prefetch": Harmless("FSDP2 prefetches by itself"),
    "*.fsdp_config.use_orig_params": Harmless("FSDP2 keeps the original parameters"),
    "*.fsdp_config.grad_offload": Only(_OFF, "gradients are not offloaded"),
    "*.fsdp_config.strategy": Only(("fsdp2", "fsdp", None), "models are sharded by FSDP2"),
    "*.fsdp_config.seed": Harmless("`trainer.seed` counts"),
    "*.fsdp_config.full_determinism": Only(_OFF, "set `trainer.deterministic=true`"),
    "*.fsdp_config.forward_only": Harmless("a model without an optimizer is never updated"),
    "*.fsdp_config.mixed_precision.param_dtype": Renamed("*.fsdp_config.compute_dtype"),
    "*.fsdp_config.mixed_precision.reduce_dtype": Only((None, "fp32", "float32"), "gradients are reduced in float32"),
    "*.fsdp_config.mixed_precision.*": Harmless("buffers keep the dtype that the model gives them"),
    "*.fsdp_config.dtype": Renamed("*.fsdp_config.compute_dtype"),
    "critic.model.fsdp_config.*": Renamed("critic.fsdp_config.*"),
    "*.optim.lr_scheduler_type": Renamed("*.optim.warmup_style"),
    "*.optim.num_cycles": Only((0.5, None), "the cosine schedule is half a period"),
    "*.optim.optimizer": Only(("AdamW", None), "the optimizer is AdamW"),
    "*.optim.optimizer_impl": Only(("torch.optim", None), "the optimizer is torch's AdamW"),
    "*.optim.override_optimizer_config*": Only((None, {}), "the optimizer is torch's AdamW, with `betas` and the like"),
    "*.optim.zero_indexed_step": Harmless("the first step has the first learning rate of the schedule"),
    "*.optim.clip_grad": Fallback("*.grad_clip"),
    _AR + "actor.strategy": Only(("fsdp2", "fsdp"), "models are sharded by FSDP2"),
    "critic.strategy": Only(("fsdp2", "fsdp"), "models are sharded by FSDP2"),
    _AR + "ref.strategy": Only(("fsdp2", "fsdp"), "models are sharded by FSDP2"),
    _AR + "actor.state_masking": Only((True, None), "what the environment says is never trained on"),
    "algorithm.no_think_rl": Only(_OFF, "the whole response is trained on"),
    _AR + "actor.policy_loss.loss_mode": Renamed(_AR + "actor.policy_loss"),
    _AR + "actor.policy_loss.*": Renamed(_AR + "actor.policy_loss_options.*"),
    _AR + "actor.ppo_micro_batch_size": Only((None,), _BATCH_PER_GPU.format("ppo_micro_batch_size_per_gpu")),
    "critic.ppo_micro_batch_size": Only((None,), _BATCH_PER_GPU.format("ppo_micro_batch_size_per_gpu")),
    "*.log_prob_micro_batch_size": Only((None,), _BATCH_PER_GPU.format("log_prob_micro_batch_size_per_gpu")),
    _AR + "actor.ppo_infer_max_token_len_per_gpu": Fallback(_AR + "rollout.log_prob_max_token_len_per_gpu"),
    _AR + "actor.ppo_infer_micro_batch_size_per_gpu": Fallback(_AR + "rollout.log_prob_micro_batch_size_per_gpu"),
    _AR + "actor.use_rollout_log_probs": Renamed("algorithm.rollout_correction.bypass_old_log_prob"),
    _AR + "actor.tis_imp_ratio_cap": Only((None, -1), _TIS),
    _AR + "actor.loss_scale_factor": Only(
        (None,), "`loss_agg_mode=seq-mean-token-sum-norm` divides by the longest response that the run allows"
    ),
    _AR + "actor.freeze_vision_tower": Only(_OFF, "the vision tower is trained with the rest of the model"),
    _AR + "actor.calculate_sum_pi_squared": Only(_OFF, "the sum of squared probabilities is not computed"),
    "*.use_prefix_grouper": Only(_OFF, "prefixes of a group are not shared in training"),
    "*.router_replay.mode": Only((None, "disabled"), "router replay is not supported"),
    "*.router_replay.*": Harmless("router replay is not supported"),
    _AR + "actor.rollout_n": Harmless("`rollout.n` counts"),
    _AR + "actor.data_loader_seed": Harmless("`trainer.seed` counts"),
    # rollout
    _AR + "rollout.mode": Only(("async",), "agent loops are always asynchronous", told=("sync",)),
    _AR + "rollout.agent_loop": Renamed(_AR + "rollout.agent.default_agent_loop"),
    _AR + "rollout.n_agent": Renamed(_AR + "rollout.n"),
    _AR + "rollout.sampling_params.max_tokens": Renamed(_TURNS + "max_tokens_per_turn"),
    _AR + "rollout.sampling_params.max_new_tokens": Renamed(_TURNS + "max_tokens_per_turn"),
    _AR + "rollout.sampling_params.timeout": Renamed(_TURNS + "turn_timeout_s"),
    _AR + "rollout.sampling_params.logprobs": Harmless("the engine's log-probs are always recorded"),
    _AR + "rollout.sampling_params.*": Renamed(_AR + "rollout.*"),
    "sampling_params.*": Renamed(_AR + "rollout.sampling_params.*"),
    "tool_config_path": Renamed(_TURNS + "tool_config_path"),
    "tool_config.max_tool_calls": Renamed(_TURNS + "max_tool_calls"),
    "tool_config.timeout": Renamed(_TURNS + "tool_timeout_s"),
    "tool_config.tool_format": Renamed(_TURNS + "format"),
    _AR + "rollout.do_sample": Only((True,), "training rollouts are sampled"),
    _AR + "rollout.calculate_log_probs": Harmless("the engine's log-probs are always recorded"),
    _AR + "rollout.disable_log_stats": Harmless("the engine's figures are at its `/metrics`"),
    _AR + "rollout.layered_summon": Harmless("weights are gathered one by one"),
    _AR + "rollout.cudagraph_capture_sizes": Harmless("give the engine's flags in `engine_kwargs`"),
    _AR + "rollout.multi_stage_wake_up": Harmless(
        "engines that release their memory (`rollout.free_cache_engine`) get first the weights back and then the cache"
    ),
    _AR + "rollout.engine_kwargs.trtllm*": Only(
        (None, {}), "the engines here are SGLang, vLLM, hf and the embedded one"
    ),
    _AR + "rollout.data_parallel_size": Only(_SMALL, "start more servers: `rollout.server.launch`"),
    _AR + "rollout.expert_parallel_size": Only(_SMALL, "expert parallelism is not supported"),
    _AR + "rollout.pipeline_model_parallel_size": Only(_SMALL, "pipeline parallelism is not supported"),
    _AR + "rollout.over_sample_rate": Only(_OFF, "over-sampling is not supported"),
    _AR + "rollout.prometheus.enable": Only(
        _OFF, "set `trainer.prometheus_address`: the engines' metrics are there with all others"
    ),
    _AR + "rollout.prometheus.*": Harmless("`trainer.prometheus_address` says where all metrics are"),
    _AR + "rollout.quantization*": Only((None,), "give the engine's flags in `server.args`"),
    _AR + "rollout.nnodes": Only((None, 0), "engines run on the machines of `trainer.nnodes`"),
    _AR + "rollout.n_gpus_per_node": Harmless("`trainer.n_gpus_per_node` counts"),
    _AR + "rollout.checkpoint_engine.update_weights_bucket_megabytes": Renamed(
        _AR + "rollout.update_weights_bucket_megabytes"
    ),
    _AR + "rollout.checkpoint_engine.*": Harmless("`rollout.weight_sync` says how weights reach the engines"),
    _AR + "rollout.logprobs_mode": Harmless("log-probs are those of the logits divided by the temperature"),
    _AR + "rollout.scheduling_policy": Harmless("engines serve requests in the order of their arrival"),
    _AR + "rollout.enable_sleep_mode": Harmless("`rollout.free_cache_engine` says whether engines release memory"),
    _AR + "rollout.swap_space": Harmless("give the engine's flags in `engine_kwargs`"),
    _AR + "rollout.use_fire_sampling": Only(_OFF, "FIRE sampling is not supported"),
    _AR + "rollout.micro_batch_size": Harmless("the engine forms its own batches"),
    _AR + "rollout.seed": Harmless("`trainer.seed` counts"),
    _AR + "rollout.skip.enable": Only(_OFF, "a step always rolls out"),
    _AR + "rollout.skip.*": Harmless("a step always rolls out"),
    _AR + "rollout.enable_rollout_routing_replay": Only(_OFF, "router replay is not supported"),
    _AR + "rollout.agent.agent_loop_manager_class": Only((None,), "agentrl has one agent-loop manager"),
    _AR + "rollout.multi_turn.tokenization_sanity_check_mode": Harmless("the template is probed when the run starts"),
    _AR + "rollout.multi_turn.use_inference_chat_template": Harmless("sampled turns are never rendered again"),
    _AR + "rollout.multi_turn.num_repeat_rollouts": Only((None,), "`rollout.n` counts"),
    _AR + "rollout.multi_turn.completion_callback": Only((None,), "write an agent loop instead"),
    _AR + "rollout.trace.backend": Only(
        (None,), "traces go to any OpenTelemetry collector: set `trainer.otlp_endpoint` to its address"
    ),
    _AR + "rollout.trace.*": Harmless("`trainer.otlp_endpoint` sends traces of every trajectory"),
    _AR + "rollout.skip_rollout": Only(_OFF, "a step always rolls out"),
    _AR + "rollout.skip_dump_dir": Harmless("a step always rolls out"),
    _AR + "rollout.agent.custom_async_server.*": Only((None,), "give servers by `rollout.server.addresses`"),
    _AR + "rollout.multi_turn.enable": Only((True,), "each row's agent loop decides; leave the key out"),
    # critic, reward
    "critic.rollout_n": Harmless("`rollout.n` counts"),
    "critic.forward_*": Harmless("values are computed in the micro-batches of the update"),
    "critic.shuffle": Only(_OFF, "the critic sees rows in order"),
    "critic.model.tokenizer_path": Harmless("the critic reads the policy's token ids"),
    "reward_model.strategy": Only(("fsdp2", "fsdp", None), "models are sharded by FSDP2"),
    "reward_model.micro_batch_size": Only((None,), _BATCH_PER_GPU.format("micro_batch_size_per_gpu")),
    "reward_model.launch_reward_fn_async": Harmless("scores are always computed while rollouts run"),
    "reward.sandbox_fusion.url": Renamed("reward_model.sandbox_fusion.url"),
    "reward.sandbox_fusion.max_concurrent": Renamed("reward_model.sandbox_fusion.max_concurrent"),
    "reward.sandbox_fusion.memory_limit_mb": Renamed("reward_model.sandbox_fusion.memory_limit_mb"),
    "reward_model.reward_loop_source": Renamed("reward_manager.source"),
    "reward_model.reward_loop_module_path": Renamed("reward_manager.module.path"),
    "reward_model.reward_loop_class_name": Renamed("reward_manager.module.name"),
    "reward_model.num_workers": Harmless("scores are computed by the agent-loop workers (`rollout.agent.num_workers`)"),
    "reward_model.use_reward_loop": Harmless("scores are always computed while rollouts run"),
    "reward.num_workers": Renamed("reward_model.num_workers"),
    "reward.reward_kwargs.*": Renamed("reward_model.reward_kwargs.*"),
    "reward.reward_model.*": Renamed("reward_model.*"),
    "reward.reward_manager.*": Renamed("reward_manager.*"),
    "reward.custom_reward_function.path": Renamed("custom_reward_function.path"),
    "reward.custom_reward_function.name": Renamed("custom_reward_function.name"),
    "reward.custom_reward_function.reward_kwargs.*": Renamed("custom_reward_function.reward_kwargs.*"),
    # algorithm
    "generator.apply_overlong_filtering": Renamed("algorithm.mask_truncated_completions"),
    "mask_truncated_completions": Renamed("algorithm.mask_truncated_completions"),
    "algorithm.group_size": Renamed(_AR + "rollout.n"),
    "algorithm.use_pf_ppo": Only(_OFF, "preference feedback PPO is not supported"),
    "algorithm.pf_ppo.*": Harmless("preference feedback PPO is not supported; it is off"),
    "algorithm.filter_groups.enable": Renamed("algorithm.filter_zero_variance_groups"),
    "algorithm.filter_groups.metric": Renamed("algorithm.filter_metric"),
    "algorithm.filter_groups.max_num_gen_batches": Renamed("algorithm.max_gen_batches"),
    "algorithm.rollout_correction.rollout_is": Renamed("algorithm.rollout_correction.is_level"),
    "algorithm.rollout_correction.rollout_is_threshold": Renamed("algorithm.rollout_correction.is_threshold"),
    "algorithm.rollout_correction.bypass_mode": Renamed("algorithm.rollout_correction.bypass_old_log_prob"),
    "algorithm.rollout_correction.rollout_is_batch_normalize": Renamed(
        "algorithm.rollout_correction.is_batch_normalize"
    ),
    "algorithm.rollout_correction.bypass_old_logprob_for_rollout": Renamed(
        "algorithm.rollout_correction.bypass_old_log_prob"
    ),
    "algorithm.rollout_correction.use_p*": Only(_OFF, "set algorithm.rollout_correction.loss_type=reinforce"),
    "algorithm.rollout_is": Only(_OFF, _TIS),
    "algorithm.rollout_is_veto_threshold": Renamed("algorithm.rollout_correction.rollout_token_veto_threshold"),
    "algorithm.rollout_is_level": Renamed("algorithm.rollout_correction.is_level"),
    "algorithm.rollout_is_threshold": Renamed("algorithm.rollout_correction.is_threshold"),
    # trainer, Ray, Hydra
    "transfer_queue.enable": Only(_OFF, "rows travel through Ray itself"),
    "transfer_queue.*": Harmless("rows travel through Ray itself"),
    "trainer.log_generation_samples": Renamed("trainer.log_train_generations"),
    "trainer.role_pools.actor_rollout": Renamed("trainer.role_pools.actor"),
    "trainer.role_pools.ref_policy": Renamed("trainer.role_pools.ref"),
    "trainer.role_pools.rm": Renamed("trainer.role_pools.reward_model"),
    "trainer.run_name": Renamed("trainer.experiment_name"),
    "trainer.max_actor_ckpt_to_keep": Renamed("trainer.max_ckpt_to_keep"),
    "trainer.max_critic_ckpt_to_keep": Harmless("`max_actor_ckpt_to_keep` counts: actor and critic are kept together"),
    "trainer.remove_previous_ckpt_in_save": Only(_OFF, "set `trainer.max_ckpt_to_keep=1`"),
    "trainer.del_local_ckpt_after_load": Only(_OFF, "a checkpoint is never deleted after loading"),
    "trainer.default_hdfs_dir": _REMOTE,
    "trainer.ray_wait_register_center_timeout": Harmless("workers register through Ray itself"),
    "trainer.use_legacy_worker_impl": Harmless("agentrl has one worker implementation"),
    "trainer.esi_redundant_time": Harmless("checkpoints follow `trainer.save_freq`"),
    "trainer.npu_profile.*": Harmless("agentrl does not run on NPUs"),
    "trainer.*_nsight_options.*": _NSIGHT,
    "global_profiler.steps": Renamed("trainer.profile_steps"),
    "global_profiler.tool": Renamed("trainer.profile_tool"),
    "global_profiler.save_path": Renamed("trainer.profile_dir"),
    "global_profiler.profile_continuous_steps": Harmless("each profiled step has traces of its own"),
    "global_profiler.global_tool_config.nsys.*": _NSIGHT,
    "global_profiler.*": _PROFILED,
    "ray_kwargs.ray_init.num_cpus": Renamed("ray_init.num_cpus"),
    "ray_kwargs.ray_init.address": Renamed("ray_init.address"),
    "ray_kwargs.timeline_json_file": Renamed("ray_init.timeline_json_file"),
    "hydra.*": Harmless("recipes are found beside the YAML and in agentrl's configs/"),
}

SPELLINGS: dict[str, tuple[tuple[Any, Any], ...]] = {
    "*.fsdp_config.fsdp_size": ((None, -1),),
    "*.fsdp_config.ulysses_sequence_parallel_size": ((None, 1),),
    "*.fsdp_config.*_dtype": (("fp32", "float32"), ("bf16", "bfloat16")),
    _AR + "rollout.dtype": (
        *(("half", "float16"), ("fp16", "float16"), ("bf16", "bfloat16")),
        *(("float", "float32"), ("fp32", "float32")),
    ),
    "data.*_max_samples": ((None, -1),),
    "algorithm.filter_metric": (("score", None), ("seq_reward", None), ("seq_final_reward", None)),
    "algorithm.rollout_correction.is_threshold": ((None, 2.0),),
    "algorithm.rollout_correction.loss_type": ((None, "ppo_clip"),),
    "algorithm.rollout_correction.is_batch_normalize": ((None, False),),
    _AR + "rollout*.top_k": ((0, -1),),
    "trainer.profile_tool": ((None, "auto"),),
    "trainer.log_*_generations": ((True, 4), (False, 0)),
    _AR + "rollout.load_format": (
        *((f"dummy_{trainer}", "dummy") for trainer in ("dtensor", "hf", "megatron")),
        *((trainer, "auto") for trainer in ("dtensor", "hf", "megatron")),
    ),
}
"""Values of agentrl's own keys that others spell differently: theirs and ours."""

MISPLACED: dict[str, Fallback] = {"algorithm.kl_penalty": Fallback("algorithm.kl_ctrl.kl_coef")}
"""Keys that want a name, under which some users write a number: the key that takes it."""

VERL_VALUES: dict[str, dict[str, tuple[str, str]]] = {
    _AR + "actor.policy_loss": {
        "bypass_mode": ("vanilla", "algorithm.rollout_correction.loss_type names another one, where it is to be used"),
    },
    _AR + "rollout.name": {
        "trtllm": ("auto", "the engines here are SGLang, vLLM, hf and the embedded one"),
        **{f"{name}_async": (name, "agent loops are always asynchronous") for name in ("vllm", "sglang")},
    },
}
"""Values of verl that agentrl's own keys take for another one, with the reason."""

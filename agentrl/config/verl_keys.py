"""Keys of verl that agentrl does not have itself: renamed here, without effect, or allowed with one value only.

A recipe or command written for verl passes through `translate` before it is checked. A key without effect is accepted
with a note, so nothing is ignored silently; a value that asks for something that agentrl does not do is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from agentrl.config.base import Section
from agentrl.config.schema import find_field, is_free
from agentrl.config.value_tree import get_value, leaves, set_value

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
    is asked for.
    """

    allowed: tuple[Any, ...]
    reason: str
    switch: str | None = None


Answer = Renamed | Fallback | Harmless | Only


@dataclass(frozen=True, slots=True)
class Foreign:
    """A key of verl as the user gave it, to be judged when everything that they gave is known."""

    key: str
    value: Any
    answer: Fallback | Harmless | Only
    where: str = ""
    """File that it was last given in; empty: an override."""


_OFF = (False, None, 0)
_SMALL = (1, None)
_NO_COMPILE = Harmless("agentrl does not use torch.compile")
_BATCH_PER_GPU = "give `{}` instead: a size per GPU does not depend on the number of GPUs"
_REMOTE = Only((None,), "HDFS is not supported: use a mounted folder")
_NO_REWARD_MODEL = Harmless("reward models are not supported; `reward_model.enable` is off")
_NO_PROFILER = "agentrl has no profiler: run `py-spy` or `nsys` around `agentrl train`"
_WHOLE = frozenset({"model", "optimizer", "extra"})
_WHOLE_CHECKPOINT = Only(
    (None, _WHOLE, _WHOLE | {"hf_model"}),
    "a checkpoint always holds model, optimizer and extra, and the model as a Hugging Face folder",
)
_NO_LORA = Harmless("LoRA is not supported; it is off")

_EMPTY = Harmless("the section is empty")
_ONE_KIND = Harmless("every section has one kind, so it needs no class")

# The first pattern that fits a key counts.
VERL_KEYS: dict[str, Answer] = {
    "_target_": _ONE_KIND,
    "*._target_": _ONE_KIND,
    # data
    "data.return_raw_chat": Only((True,), "agent loops need the raw messages"),
    "data.return_raw_input_ids": Harmless("the agent loop makes the ids"),
    "data.return_full_prompt": Harmless("rollout dumps hold the whole prompt"),
    "data.return_multi_modal_inputs": Harmless("agentrl has no multi-modal inputs"),
    "data.truncation": Only(("error",), "a prompt is never cut: set `data.filter_overlong_prompts=true`"),
    "data.filter_overlong_prompts_workers": Harmless("filtering needs no extra processes"),
    "data.reward_fn_key": Only(("data_source",), "the score function is picked by the column `data_source`"),
    "data.tokenizer": Renamed("actor_rollout_ref.model.tokenizer_path"),
    "data.trust_remote_code": Renamed("actor_rollout_ref.model.trust_remote_code"),
    "data.dataloader_num_workers": Harmless("the loader reads in this process, so that it resumes exactly"),
    "data.gen_batch_size": Only(_OFF, "a step generates `data.train_batch_size` prompts"),
    "data.validation_shuffle": Only(_OFF, "validation rows keep their order"),
    "data.image_key": Harmless("agentrl has no multi-modal inputs"),
    "data.video_key": Harmless("agentrl has no multi-modal inputs"),
    "data.image_patch_size": Harmless("agentrl has no multi-modal inputs"),
    "data.use_shm": Only(_OFF, "files are memory-mapped where they are"),
    "data.custom_cls.*": Only((None,), "agentrl has no dataset plug-ins"),
    "data.sampler.*": Only((None,), "agentrl has no sampler plug-ins"),
    "data.datagen.*": Only((None,), "agentrl has no dataset plug-ins"),
    "data.need_tools_kwargs": Harmless("a row says itself whether it has `tools_kwargs`"),
    "data.tool_config_path": Renamed("actor_rollout_ref.rollout.multi_turn.tool_config_path"),
    # actor_rollout_ref
    _AR + "hybrid_engine": Only((True,), "trainer and engines share the machine's devices in one run"),
    _AR + "model.custom_chat_template": Renamed(_AR + "model.chat_template"),
    "reward_model.model.path": Only(
        (None, ""),
        "reward models are not supported: score with custom_reward_function.path, or set reward_model.enable=false",
        switch="reward_model.enable",
    ),
    "reward_model.model.*": _NO_REWARD_MODEL,  # before those of `*.model.*`
    "*.model.use_shm": Only(_OFF, "weights are read where they are"),
    "*.model.external_lib": Only((None,), "model code comes with the model folder (`trust_remote_code`)"),
    "*.model.override_config*": Only((None, {}), "change the model folder's config.json"),
    "*.model.enable_activation_offload*": Only(_OFF, "activations are not offloaded"),
    "*.model.lora_alpha": _NO_LORA,
    "*.model.lora_*": Only(_OFF, "LoRA is not supported"),
    "*.model.target_modules": _NO_LORA,
    "*.model.exclude_modules": _NO_LORA,
    "*.model.use_liger": Only(_OFF, "Liger kernels are not supported"),
    "*.use_fused_kernels": Only(_OFF, "agentrl has no fused kernels"),
    "*.model.fused_kernel_options.*": Harmless("agentrl has no fused kernels"),
    _AR + "ref.model*": Only((None, {}), "the reference policy is the model at the start of the run"),
    "*.ulysses_sequence_parallel_size": Only(_SMALL, "sequence parallelism is not supported"),
    "*.use_torch_compile": _NO_COMPILE,
    "*.entropy_from_logits_with_chunking": Harmless("log-probs and entropy are computed in chunks anyway"),
    "*.entropy_checkpointing": Harmless("log-probs and entropy are computed in chunks anyway"),
    "*.calculate_entropy": Harmless("the entropy is always computed"),
    "*.profiler.enable": Only(_OFF, _NO_PROFILER),
    "*.profiler.*": Harmless("agentrl has no profiler section"),
    "*.profile.enable": Only(_OFF, _NO_PROFILER),
    "*.profile.*": Harmless("agentrl has no profiler section"),
    "*.checkpoint.save_contents": _WHOLE_CHECKPOINT,
    "*.checkpoint.load_contents": _WHOLE_CHECKPOINT,
    "*.checkpoint.contents": _WHOLE_CHECKPOINT,
    "*.checkpoint.async_save": Only(_OFF, "a step waits until its checkpoint is written"),
    "*.checkpoint.*": Harmless("a checkpoint holds model, optimizer and the rest of the state"),
    "*.fsdp_config.wrap_policy.*": Harmless("every decoder layer is wrapped"),
    "*.fsdp_config.offload_policy": Only(_OFF, "use `param_offload` and `optimizer_offload`"),
    "*.fsdp_config.fsdp_size": Only((-1, None), "parameters are sharded over all ranks"),
    "*.fsdp_config.forward_prefetch": Harmless("FSDP2 prefetches by itself"),
    "*.fsdp_config.use_orig_params": Harmless("FSDP2 keeps the original parameters"),
    "*.fsdp_config.grad_offload": Only(_OFF, "gradients are not offloaded"),
    "*.fsdp_config.dtype": Renamed("*.fsdp_config.compute_dtype"),
    "critic.model.fsdp_config.*": Renamed("critic.fsdp_config.*"),
    "*.optim.lr_scheduler_type": Renamed("*.optim.warmup_style"),
    "*.optim.num_cycles": Only((0.5, None), "the cosine schedule is half a period"),
    "*.optim.optimizer": Only(("AdamW", None), "the optimizer is AdamW"),
    "*.optim.optimizer_impl": Only(("torch.optim", None), "the optimizer is torch's AdamW"),
    "*.optim.clip_grad": Fallback("*.grad_clip"),
    _AR + "actor.strategy": Only(("fsdp2", "fsdp"), "models are sharded by FSDP2"),
    "critic.strategy": Only(("fsdp2", "fsdp"), "models are sharded by FSDP2"),
    _AR + "ref.strategy": Only(("fsdp2", "fsdp"), "models are sharded by FSDP2"),
    _AR + "actor.policy_loss.loss_mode": Renamed(_AR + "actor.policy_loss"),
    _AR + "actor.policy_loss.*": Renamed(_AR + "actor.policy_loss_options.*"),
    _AR + "actor.ppo_micro_batch_size": Only((None,), _BATCH_PER_GPU.format("ppo_micro_batch_size_per_gpu")),
    "critic.ppo_micro_batch_size": Only((None,), _BATCH_PER_GPU.format("ppo_micro_batch_size_per_gpu")),
    "*.log_prob_micro_batch_size": Only((None,), _BATCH_PER_GPU.format("log_prob_micro_batch_size_per_gpu")),
    _AR + "actor.rollout_n": Harmless("`rollout.n` counts"),
    _AR + "actor.data_loader_seed": Harmless("`trainer.seed` counts"),
    # rollout
    _AR + "rollout.mode": Only(("async",), "agent loops are asynchronous"),
    _AR + "rollout.do_sample": Only((True,), "training rollouts are sampled"),
    _AR + "rollout.calculate_log_probs": Harmless("the engine's log-probs are always recorded"),
    _AR + "rollout.enforce_eager": Harmless("the engine decides; give SGLang's flags in `server.args`"),
    _AR + "rollout.free_cache_engine": Harmless("the engine keeps its cache between steps"),
    _AR + "rollout.load_format": Harmless("engines load the model folder, then get the trainer's weights"),
    _AR + "rollout.enable_chunked_prefill": Harmless("prefill is always chunked"),
    _AR + "rollout.enable_prefix_caching": Harmless("prefixes are always reused"),
    _AR + "rollout.disable_log_stats": Harmless("the engine's figures are at its `/metrics`"),
    _AR + "rollout.layered_summon": Harmless("weights are gathered one by one"),
    _AR + "rollout.cudagraph_capture_sizes": Harmless("give SGLang's flags in `server.args`"),
    _AR + "rollout.update_weights_bucket_megabytes": Harmless("weights are gathered one by one"),
    _AR + "rollout.multi_stage_wake_up": Harmless("the engine keeps its cache between steps"),
    _AR + "rollout.engine_kwargs*": Only((None, {}), "give the engine's flags in `server.args`"),
    _AR + "rollout.data_parallel_size": Only(_SMALL, "start more servers: `rollout.server.launch`"),
    _AR + "rollout.expert_parallel_size": Only(_SMALL, "expert parallelism is not supported"),
    _AR + "rollout.pipeline_model_parallel_size": Only(_SMALL, "pipeline parallelism is not supported"),
    _AR + "rollout.over_sample_rate": Only(_OFF, "over-sampling is not supported"),
    _AR + "rollout.limit_images": Harmless("agentrl has no multi-modal inputs"),
    _AR + "rollout.multi_turn.tokenization_sanity_check_mode": Harmless("the template is probed when the run starts"),
    _AR + "rollout.multi_turn.use_inference_chat_template": Harmless("sampled turns are never rendered again"),
    _AR + "rollout.multi_turn.num_repeat_rollouts": Only((None,), "`rollout.n` counts"),
    _AR + "rollout.multi_turn.completion_callback": Only((None,), "write an agent loop instead"),
    _AR + "rollout.trace.backend": Only((None,), "agentrl sends no traces: set `trainer.rollout_data_dir`"),
    _AR + "rollout.trace.*": Harmless("agentrl has no trace backend"),
    _AR + "rollout.skip_rollout": Only(_OFF, "a step always rolls out"),
    _AR + "rollout.skip_dump_dir": Harmless("a step always rolls out"),
    _AR + "rollout.agent.custom_async_server.*": Only((None,), "give servers by `rollout.server.addresses`"),
    _AR + "rollout.multi_turn.enable": Only((True,), "each row's agent loop decides; leave the key out"),
    # critic, reward
    "critic.rollout_n": Harmless("`rollout.n` counts"),
    "critic.forward_*": Harmless("values are computed in the micro-batches of the update"),
    "critic.shuffle": Only(_OFF, "the critic sees rows in order"),
    "critic.model.tokenizer_path": Harmless("the critic reads the policy's token ids"),
    "reward_model.enable": Only(_OFF, "reward models are not supported"),
    "reward_model.enable_resource_pool": Only(_OFF, "reward models are not supported"),
    "reward_model.strategy": _NO_REWARD_MODEL,
    "reward_model.micro_batch_size*": _NO_REWARD_MODEL,
    "reward_model.max_length": _NO_REWARD_MODEL,
    "reward_model.use_dynamic_bsz": _NO_REWARD_MODEL,
    "reward_model.forward_max_token_len_per_gpu": _NO_REWARD_MODEL,
    "reward_model.launch_reward_fn_async": Harmless("scores are always computed while rollouts run"),
    "reward.sandbox_fusion.url": Renamed("reward_model.sandbox_fusion.url"),
    "reward.sandbox_fusion.max_concurrent": Renamed("reward_model.sandbox_fusion.max_concurrent"),
    "reward.sandbox_fusion.memory_limit_mb": Renamed("reward_model.sandbox_fusion.memory_limit_mb"),
    "reward.reward_manager.name": Renamed("reward_model.reward_manager"),
    "reward.custom_reward_function.path": Renamed("custom_reward_function.path"),
    "reward.custom_reward_function.name": Renamed("custom_reward_function.name"),
    # algorithm
    "algorithm.use_pf_ppo": Only(_OFF, "preference feedback PPO is not supported"),
    "algorithm.pf_ppo.*": Harmless("preference feedback PPO is not supported; it is off"),
    "algorithm.filter_groups.enable": Renamed("algorithm.filter_zero_variance_groups"),
    "algorithm.filter_groups.metric": Only((None, "score", "seq_reward"), "groups are filtered by their rewards"),
    "algorithm.filter_groups.max_num_gen_batches": Renamed("algorithm.max_gen_batches"),
    "algorithm.rollout_correction.rollout_is": Renamed("algorithm.rollout_correction.is_level"),
    "algorithm.rollout_correction.rollout_is_threshold": Renamed("algorithm.rollout_correction.is_threshold"),
    "algorithm.rollout_correction.bypass_mode": Renamed("algorithm.rollout_correction.bypass_old_log_prob"),
    # trainer, Ray, Hydra
    "trainer.max_actor_ckpt_to_keep": Renamed("trainer.max_ckpt_to_keep"),
    "trainer.max_critic_ckpt_to_keep": Harmless("`max_actor_ckpt_to_keep` counts: actor and critic are kept together"),
    "trainer.remove_previous_ckpt_in_save": Only(_OFF, "set `trainer.max_ckpt_to_keep=1`"),
    "trainer.del_local_ckpt_after_load": Only(_OFF, "a checkpoint is never deleted after loading"),
    "trainer.default_hdfs_dir": _REMOTE,
    "trainer.ray_wait_register_center_timeout": Harmless("workers register through Ray itself"),
    "trainer.use_legacy_worker_impl": Harmless("agentrl has one worker implementation"),
    "trainer.esi_redundant_time": Harmless("checkpoints follow `trainer.save_freq`"),
    "trainer.profile_steps": Only((None, []), _NO_PROFILER),
    "trainer.npu_profile.*": Harmless("agentrl has no profiler section"),
    "trainer.*_nsight_options.*": Harmless("agentrl has no profiler section"),
    "global_profiler.steps": Only((None, []), _NO_PROFILER),
    "global_profiler.*": Harmless("agentrl has no profiler section"),
    "ray_kwargs.ray_init.num_cpus": Renamed("ray_init.num_cpus"),
    "ray_kwargs.ray_init.address": Renamed("ray_init.address"),
    "ray_init.timeline_json_file": Only((None,), "Ray's timeline is not written"),
    "ray_kwargs.timeline_json_file": Only((None,), "Ray's timeline is not written"),
    "hydra.*": Harmless("recipes are found beside the YAML and in agentrl's configs/"),
}


VERL_VALUES: dict[str, dict[str, tuple[str, str]]] = {
    _AR + "rollout.name": dict.fromkeys(("vllm", "hf"), ("auto", "the engines here are SGLang and the embedded one")),
}
"""Values of verl that agentrl's own keys take for another one, with the reason."""
_SECTIONS = {
    ".".join(parts[:end]) for pattern in VERL_KEYS for parts in [pattern.split(".")] for end in range(1, len(parts))
} - {"*"}
"""Patterns of the sections around verl's keys."""


def translate(
    tree: dict[str, Any], model: type[Section], where: str = ""
) -> tuple[dict[str, Any], dict[str, str], list[Foreign]]:
    """Rewrite the keys of verl in one file or override.

    Args:
        tree: plain values as they were written.
        model: what agentrl knows.
        where: the file, for errors; empty: an override.

    Returns:
        The values under agentrl's keys; new names by the user's; keys that agentrl lacks, for `settle_foreign`.
    """
    out: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    foreign: list[Foreign] = []
    for key, value in leaves(tree):
        new, answer = _answer(model, key)
        if value in (None, {}) and answer is None and find_field(model, new) is None and _is_section(key):
            answer = _EMPTY  # `global_profiler: null`
        if answer is not None:
            foreign.append(Foreign(key, value, answer, where))
            continue
        set_value(out, new, value)
        if new != key:
            renamed[key] = new
    return out, renamed, foreign


def translate_values(tree: dict[str, Any]) -> dict[str, str]:
    """Replace values of verl in a tree of agentrl's keys; returns a note by key, empty where the value stays."""
    notes: dict[str, str] = {}
    for key in VERL_VALUES.keys() & {key for key, _ in leaves(tree)}:
        value = get_value(tree, key)
        new, reason = VERL_VALUES[key].get(value, (value, "")) if isinstance(value, str) else (value, "")
        notes[key] = f"{key}: {value} is read as {new}: {reason}" if reason else ""
        set_value(tree, key, new)
    return notes


def settle_foreign(
    foreign: Mapping[str, Foreign], own: Set[str]
) -> tuple[dict[str, Foreign], dict[str, str], list[str]]:
    """What verl's keys without a place here mean, once every file and override is read.

    Args:
        foreign: by key, as each was given last.
        own: agentrl's keys that were given.

    Returns:
        By agentrl's key, the values that count there; for keys without effect their reasons; problems.
    """
    used: dict[str, Foreign] = {}
    idle: dict[str, str] = {}
    problems: list[str] = []
    for key, given in foreign.items():
        answer, value = given.answer, given.value
        if isinstance(answer, Harmless):
            idle[key] = answer.note
        elif isinstance(answer, Fallback):
            to = _renamed(key, _pattern_for(key) or key, answer.to)
            if to in own:
                idle[key] = f"{to} is given"
            else:
                used[to] = given
        elif isinstance(value, str) and value.startswith("${"):
            idle[key] = answer.reason
        elif not any(_same(value, fine) for fine in answer.allowed):
            switch = foreign.get(answer.switch or "")
            if switch is not None and switch.value is False:
                idle[key] = f"{switch.key} is false"
            else:
                problems.append(f"{given.where}{': ' if given.where else ''}{key}: got {value!r}, but {answer.reason}")
    return used, idle, problems


def _answer(model: type[Section], key: str) -> tuple[str, Fallback | Harmless | Only | None]:
    """The key's name here, and the answer for the user if agentrl has no such key."""
    table = answers_for(model)
    while not (find_field(model, key) is not None or is_free(model, key)):
        asked, pattern = key, _pattern_for(key, table)
        if pattern is None:
            asked = model.in_training(key)
            pattern = _pattern_for(asked, table)
        answer = table[pattern] if pattern is not None else None
        if answer is not None and not isinstance(answer, Renamed):
            return key, answer
        new = model.from_training(asked if pattern is None or answer is None else _renamed(asked, pattern, answer.to))
        if new == key:
            break
        key = new
    return key, None


def is_known(key: str, model: type[Section]) -> bool:
    """Whether a key, or a section with it, is agentrl's or verl's."""
    new, answer = _answer(model, key)
    return answer is not None or find_field(model, new) is not None or is_free(model, new) or _is_section(key)


def _is_section(key: str) -> bool:
    """Whether verl has a section of this name that agentrl lacks."""
    return any(fnmatchcase(key, section) for section in _SECTIONS)


def _same(value: Any, fine: Any) -> bool:
    """Whether two values are equal and both or neither are booleans: 1 equals 1.0, but not `true`."""
    if isinstance(fine, frozenset):
        return isinstance(value, list) and all(isinstance(item, str) for item in value) and frozenset(value) == fine
    return bool(value == fine) and isinstance(value, bool) == isinstance(fine, bool)


@cache
def answers_for(model: type[Section]) -> Mapping[str, Answer]:
    """The answers for a model: its own (`foreign_keys`) before those for every model."""
    return {**model.foreign_keys, **VERL_KEYS}


def _pattern_for(key: str, table: Mapping[str, Answer] = VERL_KEYS) -> str | None:
    if key in table:
        return key
    return next((pattern for pattern in table if fnmatchcase(key, pattern)), None)


def _renamed(key: str, pattern: str, to: str) -> str:
    """The new key; a `*` at the same end of both patterns stands for the same text."""
    if to.startswith("*"):
        return key.removesuffix(pattern[1:]) + to[1:]
    return to[:-1] + key.removeprefix(pattern[:-1]) if to.endswith("*") else to

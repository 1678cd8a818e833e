"""Keys of verl's SFT trainer that `agentrl sft` does not have itself; `verl_keys` says what the answers mean."""

from __future__ import annotations

from agentrl.config.verl_keys import Answer, Harmless, Only, Renamed, lora_answers

_OFF = (False, None, 0)

SFT_KEYS: dict[str, Answer] = {
    # data
    "data.multiturn.messages_key": Renamed("data.messages_key"),
    "data.multiturn.tools_key": Renamed("data.tools_key"),
    "data.multiturn.enable_thinking_key": Renamed("data.enable_thinking_key"),
    "data.micro_batch_size": Only(
        (None,), "give `data.micro_batch_size_per_gpu` instead: a size per GPU does not depend on the number of GPUs"
    ),
    "data.max_token_len_per_gpu": Renamed("data.max_token_len"),
    "data.chat_template": Renamed("model.chat_template"),
    "data.tokenizer": Renamed("model.tokenizer_path"),
    "data.trust_remote_code": Renamed("model.trust_remote_code"),
    "data.balance_dp_token": Harmless("every rank always gets about the same number of tokens"),
    "data.pad_mode": Harmless("next to nothing is padded"),
    "data.ignore_input_ids_mismatch": Harmless("turns are rendered as the agent loop builds them, whatever the mode"),
    "data.num_workers": Harmless("rows are rendered once, before the first step"),
    "data.seed": Renamed("trainer.seed"),
    # model
    "model.partial_pretrain": Renamed("model.path"),
    "model.custom_chat_template": Renamed("model.chat_template"),
    "model.hf_config_path": Only((None,), "the configuration is read from the model folder"),
    "model.use_shm": Harmless("weights are read where they are"),
    "model.external_lib": Only((None,), "model code comes with the model folder (`trust_remote_code`)"),
    "model.override_config*": Only((None, {}), "change the model folder's config.json"),
    "model.enable_activation_offload": Only(_OFF, "activations are not offloaded"),
    **lora_answers("model."),
    "lora": Renamed("model.lora_enable"),
    "lora.*": Renamed("model.lora.*"),
    "model.use_liger": Only(_OFF, "Liger kernels are not supported"),
    "model.use_fused_kernels": Harmless("log-probs are computed in chunks, without the logits of all tokens"),
    "model.strategy": Only(("fsdp2", "fsdp"), "models are sharded by FSDP2"),
    "model.fsdp_config.cpu_offload": Renamed("model.fsdp_config.offload_policy"),
    "model.fsdp_config.offload_params": Harmless("`offload_policy` (in verl `cpu_offload`) counts"),
    "use_remove_padding": Renamed("model.use_remove_padding"),
    "ulysses_sequence_parallel_size": Renamed("model.fsdp_config.ulysses_sequence_parallel_size"),
    # optim
    "optim.warmup_steps_ratio": Renamed("optim.lr_warmup_steps_ratio"),
    "optim.warmup_steps": Renamed("optim.lr_warmup_steps"),
    "optim.lr_scheduler": Renamed("optim.warmup_style"),
    "optim.lr_scheduler_type": Renamed("optim.warmup_style"),
    "optim.clip_grad": Renamed("optim.grad_clip"),
    "optim.num_cycles": Only((0.5, None), "the cosine schedule is half a period"),
    "optim.optimizer": Only(("AdamW", None), "set `optim.name` to adamw or muon"),
    "optim.optimizer_impl": Only(("torch.optim", None), "the optimizer is torch's AdamW, or agentrl's Muon"),
    # trainer
    "trainer.threads_per_rank": Renamed("trainer.threads"),
    "trainer.backend": Harmless("one rank runs in this process, several on Ray"),
    "trainer.balance_batch": Harmless("every rank always gets about the same number of tokens"),
    "profiler.*": Harmless("`agentrl sft` has no profiler"),
}

"""Loads Hugging Face folders as models, with readable errors. Missing weights are an error, never random numbers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import nn

from agentrl.chat.vision import model_sees_pictures
from agentrl.config.actor import BackboneConfig, ModelConfig
from agentrl.errors import ConfigError
from agentrl.hub import model_folder
from agentrl.workers.attention import PACKED, WITHOUT
from agentrl.workers.meta_start import CannotStartOnMeta, MetaWeights, open_on_meta

logger = logging.getLogger(__name__)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_causal_lm(model: ModelConfig, dtype: torch.dtype, attention: str) -> Any:
    """Load a whole causal language model on the CPU.

    Raises:
        ConfigError: no such folder, not a causal language model, missing weights, or logits that are not simply
            `head(hidden)`.
    """
    lm = load_pretrained(_language_class(model), model, dtype)
    require_plain_head(lm, model.path)
    return lm if sees_pictures(model) else with_attention(lm, attention)


def start_causal_lm(model: ModelConfig, dtype: torch.dtype) -> tuple[Any, MetaWeights | None]:
    """A causal language model without weights, and what fills it; see `start_pretrained`.

    `require_plain_head` is for when it has them. Errors as `load_causal_lm`, but of logits.
    """
    return start_pretrained(_language_class(model), model, dtype)


def start_backbone(model: BackboneConfig, dtype: torch.dtype) -> tuple[Any, MetaWeights | None]:
    """The model without its language-model head, for a value head. Otherwise as `start_causal_lm`."""
    from transformers import AutoModel

    return start_pretrained(AutoModel, model, dtype)


def _language_class(model: BackboneConfig) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if sees_pictures(model) else AutoModelForCausalLM


def sees_pictures(model: BackboneConfig) -> bool:
    """Whether a model sees pictures. Such a model reads rows through torch's own attention, whatever is chosen."""
    return model_sees_pictures(model_folder(model.path)) if model.path else False


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without progress bars for files that take a moment, once per rank."""
    from transformers.utils import logging as hf_logging

    enabled = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            hf_logging.enable_progress_bar()


def load_pretrained(auto_class: Any, model: BackboneConfig, dtype: torch.dtype) -> Any:
    """Load a whole model with one of transformers' auto classes on the CPU.

    Errors as `load_causal_lm`, but of logits.
    """
    path = _folder_of(model)
    with _readable_errors(path), quiet_transformers():
        net, info = auto_class.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation="sdpa",
            trust_remote_code=model.trust_remote_code,
            output_loading_info=True,
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(f"the model in '{path}' lacks {len(missing)} weights, among them {missing[:3]}")
    return _for_training(net, model)


def start_pretrained(auto_class: Any, model: BackboneConfig, dtype: torch.dtype) -> tuple[Any, MetaWeights | None]:
    """Build a model on the meta device, for `FSDPModel` to shard and fill: no rank ever holds all of it.

    Returns:
        The model, and its weights; None where the model is loaded whole, with a warning that says why: it sees
        pictures, is quantized, has code of its own, or its weights are no safetensors or need an unusual conversion.
    """
    path = _folder_of(model)
    try:
        if sees_pictures(model):
            raise CannotStartOnMeta("it sees pictures")
        with _readable_errors(path), quiet_transformers():
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(path, trust_remote_code=model.trust_remote_code)
            net, weights = open_on_meta(auto_class, path, config, dtype)
        return _for_training(net, model), weights
    except CannotStartOnMeta as reason:
        if not dist.is_initialized() or dist.get_rank() == 0:
            logger.warning("every rank loads the whole model in '%s' before it is sharded: %s", path, reason)
        return load_pretrained(auto_class, model, dtype), None


def _folder_of(model: BackboneConfig) -> str:
    if not model.path:
        raise ConfigError("actor_rollout_ref.model.path is empty: give the folder of a Hugging Face model")
    path = str(model_folder(model.path, weights=True))
    if not os.path.isfile(os.path.join(path, "config.json")):
        raise ConfigError(f"'{path}' is not a model folder: it has no config.json")
    return path


@contextmanager
def _readable_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"the model in '{path}' cannot be loaded: {error}") from error


def _for_training(net: Any, model: BackboneConfig) -> Any:
    _disable_dropout(net)
    if model.recomputes_activations(net.num_parameters()):
        # transformers renamed it within its version 5.
        enable = getattr(net, "activation_checkpointing_enable", None) or net.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    return net


def with_attention(net: Any, attention: str) -> Any:
    """Switch to the attention that training uses, after the checks: kernels for GPUs do not run on a CPU.

    Raises:
        ConfigError: the model, or one inside it, has attention of its own that cannot be switched.
    """
    from transformers import PreTrainedModel

    if attention != net.config._attn_implementation:
        net.set_attn_implementation(attention)
    parts = [module for module in net.modules() if isinstance(module, PreTrainedModel)]
    deaf = [part for part in parts if part.config._attn_implementation != attention]
    if deaf and attention in PACKED:
        raise ConfigError(
            f"{type(deaf[-1]).__name__} (a model of type '{deaf[-1].config.model_type}') computes attention in code of "
            f"its own, which {WITHOUT[attention]}"
        )
    return net


def _disable_dropout(net: nn.Module) -> None:
    """Log-probs must be those of the policy that sampled, which knows no dropout."""
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 - not a declared attribute of nn.Module


@torch.no_grad()
def require_plain_head(lm: Any, path: str) -> None:
    """Compare the model's own logits with those of its head on two tokens: soft caps and scales would differ.

    Raises:
        ConfigError: they differ.
    """
    ids = torch.tensor([[0, 1]], device=lm.device)
    hidden = lm.base_model(input_ids=ids, use_cache=False).last_hidden_state
    own, plain = lm(input_ids=ids, use_cache=False).logits, lm.get_output_embeddings()(hidden)
    if not torch.allclose(own.float(), plain.float(), rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"the model in '{path}' ({type(lm).__name__}) changes its logits after the output embedding (a soft cap or "
            "a scale); agentrl trains models whose logits are the output embedding of the last hidden state"
        )

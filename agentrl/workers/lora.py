"""LoRA: adapters of a model whose weights stay as they are (Hu et al., arXiv:2106.09685), built and run by peft.

peft replaces each chosen layer in place::

    q_proj (Linear)      q_proj.weight
    q_proj (lora.Linear) q_proj.base_layer.weight, frozen
                         q_proj.lora_A.default.weight (r, in), q_proj.lora_B.default.weight (out, r), float32

and `y = W x + s B A x` with `s = alpha / r`. B starts at 0, so that training starts at the model itself.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from agentrl.config.lora import LoraKeys
from agentrl.errors import ConfigError, suggest

logger = logging.getLogger(__name__)
PEFT_NAME = "default"
_BASE = ".base_layer."
_OF_EXPERTS = {"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}
_OWN = re.compile(r"\.lora_[AB]\.")


@dataclass(frozen=True, slots=True)
class Added:
    """What an adapter adds to a weight: `scale * B @ A`."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    transposed: bool
    """The layer keeps its weight as (in, out): transformers' `Conv1D`."""

    def to(self, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The merged weight in float32, of whole tensors (`self.a` and `self.b` may be shards)."""
        delta = self.scale * (b.float() @ a.float())
        return weight.float() + (delta.T if self.transposed else delta)


@dataclass(frozen=True, slots=True)
class LoraCounts:
    """Numbers of parameters, and the names of the layers that have adapters."""

    trainable: int
    frozen: int
    layers: tuple[str, ...]

    def __str__(self) -> str:
        share = 100 * self.trainable / max(1, self.trainable + self.frozen)
        return (
            f"{self.trainable:,} parameters learn and {self.frozen:,} are frozen ({share:.2f} %), adapters on "
            f"{', '.join(self.layers)}"
        )


def add_adapter(model: nn.Module, keys: LoraKeys, section: str) -> None:
    """Give the chosen layers of a whole, unsharded model adapters in float32, and freeze everything else of it.

    Every rank must have the same seed: the A matrices are random.

    Args:
        model: a transformers model.
        keys: the layers, the rank, and the adapter to start from.
        section: where the keys stand, for errors: `actor_rollout_ref.model`.

    Raises:
        ConfigError: peft is missing, a named layer does not exist or cannot have an adapter, or the adapter to start
            from does not fit.
    """
    from agentrl.workers.lora_files import load_adapter, peft_config_of

    config = peft_config_of(keys, section)
    _inject(model, config, section)
    _give_values(model, config.init_lora_weights)
    for name, parameter in model.named_parameters():
        if _OWN.search(name):
            parameter.data = parameter.data.float()
    if keys.lora_adapter_path is not None:
        load_adapter(model, keys.lora_adapter_path, section)


def start_adapter(model: nn.Module, keys: LoraKeys, section: str) -> LoraCounts:
    """`add_adapter`, and rank 0 tells what learns."""
    add_adapter(model, keys, section)
    counts = count(model)
    if dist.get_rank() == 0:
        logger.info("%s: %s", section, counts)
    return counts


def preview(
    path: str, keys: LoraKeys, section: str, *, head: bool = True, trust_remote_code: bool = False
) -> LoraCounts:
    """What `add_adapter` will do to the model in a folder, without loading its weights.

    Errors as `add_adapter`; a model that sees pictures is refused, and an adapter that was trained on other weights.

    Args:
        path: a model folder, or a name of the hub.
        keys: the layers and the rank.
        section: where the keys stand.
        head: with the language-model head; False: the backbone, as the critic has it, whose own head learns too.
        trust_remote_code: run model code of the folder.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    from agentrl.chat.vision import model_sees_pictures
    from agentrl.hub import model_folder
    from agentrl.workers.lora_files import check_given_base, peft_config_of

    if model_sees_pictures(model_folder(path)):
        raise ConfigError(f"{section}.lora_rank: adapters are not tried on models that see pictures: set 0")
    check_given_base(keys, path, section)
    config = AutoConfig.from_pretrained(str(model_folder(path)), trust_remote_code=trust_remote_code)
    kind: Any = AutoModelForCausalLM if head else AutoModel
    try:
        with torch.device("meta"):
            model = kind.from_config(config, trust_remote_code=trust_remote_code)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"the model in '{path}' cannot be built: {error}") from error
    _inject(model, peft_config_of(keys, section), section)
    return count(model)


def count(model: nn.Module) -> LoraCounts:
    """The counts of a model with adapters, not yet sharded."""
    sizes = {True: 0, False: 0}
    for parameter in model.parameters():
        sizes[parameter.requires_grad] += parameter.numel()
    layers = sorted({name.rpartition(".")[2] for name, _ in adapted_layers(model)})
    return LoraCounts(sizes[True], sizes[False], tuple(layers))


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers with adapters, by name. Empty for a model without LoRA, and then peft is not imported."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The model as it was before training: its weights without their adapters."""
    layers = [layer for _, layer in adapted_layers(model)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def own_state(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of a module's state: what its adapters hold, and what stands beside the model and learns (a value head)."""
    return {name: tensor for name, tensor in state.items() if getattr(tensor, "requires_grad", False)}


def plain_state(module: nn.Module, state: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor, Added | None]]:
    """A module's state under the names that it has without LoRA, with what must be added to each tensor.

    ::

        q_proj.base_layer.weight, q_proj.lora_A.default.weight, q_proj.lora_B.default.weight  ->  q_proj.weight, added
        norm.weight                                                                           ->  norm.weight, None
    """
    for name, tensor in state.items():
        if _OWN.search(name):
            continue
        path, _, leaf = name.rpartition(_BASE)
        if leaf != "weight" or not path:
            yield name.replace(_BASE, "."), tensor, None
            continue
        layer: Any = module.get_submodule(path)
        a, b = (state[f"{path}.lora_{side}.{PEFT_NAME}.weight"] for side in "AB")
        yield f"{path}.weight", tensor, Added(a, b, layer.scaling[PEFT_NAME], bool(layer.fan_in_fan_out))


@torch.no_grad()
def merged_parts(model: nn.Module, dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    """The merged weights of an unsharded model, one numbered layer after the other, in `dtype`."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kept = model.state_dict().keys() & state.keys()  # each tied weight once, no buffer that is made anew
    for names in layer_names([name for name in state if name in kept]):
        part = {}
        for name, tensor, added in plain_state(model, {name: state[name] for name in names}):
            whole = tensor if added is None else added.to(tensor, added.a, added.b)
            part[name] = whole.detach().to(dtype if whole.is_floating_point() else None).contiguous()
        yield part


def layer_names(names: list[str]) -> list[list[str]]:
    """The names of a state by the numbered layer that they belong to: `model.layers.3.mlp…` -> `model.layers.3`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        found = re.match(r".*?\.\d+(?=\.)", name)
        groups.setdefault(found[0] if found else "", []).append(name)
    return list(groups.values())


def _inject(model: nn.Module, config: Any, section: str) -> None:
    """Let peft replace the layers, after looking at their names: peft accepts a list of which one name fits."""
    from peft import inject_adapter_in_model
    from peft.tuners.lora import Linear

    for key, given in (("target_modules", config.target_modules), ("exclude_modules", config.exclude_modules)):
        _check_names(model, given, f"{section}.{key}")
    if config.target_modules == "all-linear":
        config.target_modules = sorted(_all_linear(model))
    meta = next(model.parameters()).device.type == "meta"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Model has `tie_word_embeddings", UserWarning)  # it is refused below
            inject_adapter_in_model(config, model, adapter_name=PEFT_NAME, low_cpu_mem_usage=meta)
    except (ValueError, TypeError, re.error) as error:
        raise ConfigError(f"{section}.target_modules: {error}") from error
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    embedding: Any = getattr(model, "get_input_embeddings", lambda: None)()
    for name, layer in adapted_layers(model):
        problem = None
        if not isinstance(layer, Linear):
            problem = f"is of the kind {type(layer.base_layer).__name__}, and only linear layers get adapters"
        elif layer is head and embedding.weight is layer.base_layer.weight:
            problem = "shares its weight with the input embedding, so that an adapter would change both"
        if problem is not None:
            raise ConfigError(f"{section}.target_modules: '{name}' {problem}.{_ways(model)}")


def _give_values(model: nn.Module, how: Any) -> None:
    """Give adapters that peft has left on the meta device, as its model is, the values that it would have drawn."""
    for _, layer in adapted_layers(model):
        a, b = layer.lora_A[PEFT_NAME], layer.lora_B[PEFT_NAME]
        if a.weight.device.type != "meta":
            continue
        for side, (width, height) in (
            (a, (layer.in_features, a.out_features)),
            (b, (a.out_features, layer.out_features)),
        ):
            side.weight = nn.Linear(width, height, bias=False).weight  # draws as many random numbers as peft's own
        layer.reset_lora_parameters(PEFT_NAME, how if how in (False, "gaussian") else True)
        for side in (a, b):
            side.weight.data = side.weight.data.to(layer.base_layer.weight.dtype)


def _check_names(model: nn.Module, given: Any, key: str) -> None:
    """Every name of a list is the end of some module's path; a regular expression fits some path.

    Raises:
        ConfigError: with the nearest names of the model's linear layers.
    """
    if given is None or given == "all-linear":
        return
    paths = [name for name, _ in model.named_modules() if name]
    if isinstance(given, str):
        try:
            fits = any(re.fullmatch(given, path) for path in paths)
        except re.error as error:
            raise ConfigError(f"{key}: got '{given}', which is no regular expression: {error}") from error
        if not fits:
            raise ConfigError(f"{key}: got '{given}', which fits no path of a module.{_ways(model)}")
        return
    for name in given:
        if not any(path == name or path.endswith(f".{name}") for path in paths):
            raise ConfigError(f"{key}: got '{name}', but the model has no such module.{suggest(name, _linear(model))}")


def _all_linear(model: nn.Module) -> set[str]:
    """Names of all linear layers but the output head.

    Of a mixture of experts without those of its experts, which are stacked in one parameter: peft takes a name such as
    `gate_proj`, which a shared expert has too, for the experts' part of that.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    heads = {name.rpartition(".")[2] for name, module in model.named_modules() if module is head}
    stacked = any(parameter.ndim == 3 for parameter in model.parameters())
    return _linear(model) - heads - (_OF_EXPERTS if stacked else set())


def _linear(model: nn.Module) -> set[str]:
    """Names of linear layers, without their paths and without adapters' own."""
    from transformers.pytorch_utils import Conv1D

    kinds = (nn.Linear, Conv1D)
    return {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, kinds) and not re.search(r"\.(lora_[AB]\.\w+|base_layer)$", name)
    } | {name.rpartition(".")[2] for name, _ in adapted_layers(model)}


def _ways(model: nn.Module) -> str:
    return f" Its linear layers: {', '.join(sorted(_linear(model)))}"

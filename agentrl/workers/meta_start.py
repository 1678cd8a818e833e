"""Models that begin without weights: built on the meta device, sharded there, then filled by each rank with its part.

::

    net, weights = start_on_meta(AutoModelForCausalLM, model, torch.float32)     no weight is in memory
    FSDPModel(PolicyNet(net, 1.0), …, weights=weights)                           tp and FSDP cut; `weights.fill` reads

What a checkpoint does not hold is real from the start and travels as usual: rotary frequencies, a value head, adapters.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from agentrl.errors import ConfigError
from agentrl.workers.tensor_files import Joined, Region, Stacked, Stored, TensorFiles, TensorSource

logger = logging.getLogger(__name__)


class CannotStartOnMeta(Exception):
    """The model must be loaded whole. The message says why."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A parameter or buffer, by the module that has it: peft and FSDP change names, but keep the modules."""

    module: nn.Module
    leaf: str
    source: TensorSource


class MetaWeights:
    """The weights that a net on the meta device gets once it is sharded.

    Args:
        path: of the model, for errors.
        files: the open files.
        net: the transformers model, whole and on the meta device, in the data types that it shall have.

    Raises:
        ConfigError: weights are missing or have another shape.
        CannotStartOnMeta: the checkpoint needs a conversion that is not known here.
    """

    def __init__(self, path: str, files: TensorFiles, net: Any) -> None:
        self._files, self._path = files, path
        self._slots: list[_Slot] = []
        sources, unexpected = _sources(net, files)
        state = net.state_dict(keep_vars=True)
        self._check(net, state, sources)
        seen: dict[int, str] = {}
        for name, source in sources.items():
            first = seen.setdefault(id(state[name]), name)
            if first != name and not _same(files, sources[first], source):
                raise CannotStartOnMeta(f"'{first}' and '{name}' are one weight, but the files hold two")
            if first == name:
                module, _, leaf = name.rpartition(".")
                self._slots.append(_Slot(net.get_submodule(module), leaf, source))
        if unexpected:
            logger.info("'%s': %d tensors are not used, among them %s", path, len(unexpected), unexpected[:3])

    @torch.no_grad()
    def fill(self, net: nn.Module, parameter_device: torch.device, device: torch.device) -> None:
        """Give a sharded net memory, and read this rank's part of every weight. Not a collective call.

        Args:
            net: holds the model that was given to this object.
            parameter_device: of parameters, which may be offloaded.
            device: of buffers.

        Raises:
            ConfigError: a file cannot be read.
        """
        shared = list(_shared_parameters(net))

        def with_memory(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type != "meta":
                return tensor
            return torch.empty_like(tensor, device=parameter_device if isinstance(tensor, DTensor) else device)

        net._apply(with_memory)  # type: ignore[no-untyped-call]
        for (first, leaf), *others in shared:  # each has got memory of its own
            for module, name in others:
                module.register_parameter(name, getattr(first, leaf))
        try:
            for slot in self._slots:
                tensor = getattr(slot.module, slot.leaf)
                region, local = _own_region(tensor)
                if local.numel():
                    slot.source.read(region, local)
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(f"the model in '{self._path}' cannot be loaded: {error}") from error
        finally:
            self._files.close()
            self._slots.clear()

    def _check(self, net: Any, state: dict[str, torch.Tensor], sources: dict[str, TensorSource]) -> None:
        there = {id(state[name]) for name in sources}
        ignored = [re.compile(pattern) for pattern in net._keys_to_ignore_on_load_missing or ()]
        missing = sorted(
            name
            for name, tensor in state.items()
            if id(tensor) not in there and not any(pattern.search(name) for pattern in ignored)
        )
        if missing:
            raise ConfigError(f"the model in '{self._path}' lacks {len(missing)} weights, among them {missing[:3]}")
        for name, source in sources.items():
            got, wanted = list(source.shape), list(state[name].shape)
            if got != wanted:
                raise ConfigError(
                    f"the model in '{self._path}' cannot be loaded: '{name}' has the shape {got}, wanted {wanted} "
                    "by its config.json"
                )


def open_on_meta(
    auto_class: Any, path: str, config: Any, dtype: torch.dtype, *, trust_remote_code: bool = False
) -> tuple[Any, MetaWeights]:
    """Build the model of a folder without its weights.

    Raises:
        ConfigError: as `MetaWeights`.
        CannotStartOnMeta: the model must be loaded whole.
        OSError, ValueError, KeyError, RuntimeError, SafetensorError: the folder cannot be used.
    """
    reason = _why_whole(config)
    if reason is not None:
        raise CannotStartOnMeta(reason)
    files = TensorFiles(Path(path))
    if not files.shapes:
        raise CannotStartOnMeta("it has no safetensors files")
    with torch.device("meta"):
        net = auto_class.from_config(
            config, dtype=dtype, attn_implementation="sdpa", trust_remote_code=trust_remote_code
        )
    net.eval()
    net.config.name_or_path = net.name_or_path = path
    if net.can_generate() and (Path(path) / "generation_config.json").is_file():
        from transformers import GenerationConfig

        net.generation_config = GenerationConfig.from_pretrained(path)
    _keep_in_float32(net, dtype)
    _make_buffers(net)
    return net, MetaWeights(path, files, net)


def _why_whole(config: Any) -> str | None:
    if getattr(config, "quantization_config", None) is not None:
        return "it is quantized"
    if getattr(config, "auto_map", None):
        return "its folder has code of its own"
    if getattr(config, "transformers_weights", None) is not None:
        return "its configuration names a file of weights"
    return None


def _sources(net: Any, files: TensorFiles) -> tuple[dict[str, TensorSource], list[str]]:
    """Where each entry of a model's state is, and the names of tensors that the model does not have."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping = get_model_conversion_mapping(net)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    state, prefix = net.state_dict(), net.base_model_prefix
    found: dict[str, TensorSource] = {}
    parts: dict[str, dict[str, list[TensorSource]]] = defaultdict(lambda: defaultdict(list))
    unexpected = []
    for name in sorted(files.shapes, key=_by_number):
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if target not in state and name in state:
            target, pattern = name, None
        if target not in state:
            unexpected.append(name)
        elif pattern is None:
            found[target] = Stored(files, name)
        else:
            parts[target][pattern].append(Stored(files, name))
    for target, by in parts.items():
        found[target] = _converted(by_pattern[next(iter(by))], by)
    # What `save_pretrained` and the exports reverse, as after `from_pretrained`.
    net._weight_conversions = [entry for entry in mapping if getattr(entry, "was_used", lambda: True)()]
    return found, unexpected


def _converted(converter: Any, parts: dict[str, list[TensorSource]]) -> TensorSource:
    """What a conversion of transformers makes of tensors, if it only stacks and joins them.

    Raises:
        CannotStartOnMeta: it does something else.
    """
    kinds = [type(operation).__name__ for operation in converter.operations]
    columns = [parts[pattern] for pattern in converter.source_patterns if pattern in parts]
    if len(converter.target_patterns) == 1 and kinds == ["MergeModulelist"] and len(columns) == 1:
        return Stacked(columns[0], converter.operations[0].dim)
    if len(converter.target_patterns) == 1 and kinds == ["MergeModulelist", "Concatenate"]:
        merge, concatenate = converter.operations
        return Joined([Stacked(column, merge.dim) for column in columns], concatenate.dim)
    if len(converter.target_patterns) == 1 and kinds == ["Concatenate"]:
        return Joined([part for column in columns for part in column], converter.operations[0].dim)
    raise CannotStartOnMeta(f"its weights are converted by {', '.join(kinds)}")


def _same(files: TensorFiles, one: TensorSource, other: TensorSource) -> bool:
    return isinstance(one, Stored) and isinstance(other, Stored) and files.same(one.name, other.name)


def _by_number(name: str) -> list[tuple[int, int, str]]:
    """Sorts `experts.2` before `experts.10`, which is the order in which they are stacked."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]


def _keep_in_float32(net: Any, dtype: torch.dtype) -> None:
    """Give the weights that a model never has in half precision their float32, as `from_pretrained` does."""
    kept = set(net._keep_in_fp32_modules_strict or ()) if dtype in (torch.bfloat16, torch.float16) else set()
    kept |= set(net._keep_in_fp32_modules or ()) if dtype == torch.float16 else set()
    patterns = [re.compile(part.replace("*", r".*")) for part in kept]
    for module_name, module in net.named_modules() if patterns else ():
        for tensors in (module._parameters, module._buffers):
            for leaf, tensor in tensors.items():
                if tensor is not None and any(pattern.search(f"{module_name}.{leaf}") for pattern in patterns):
                    tensor.data = tensor.data.float()


def _make_buffers(net: Any) -> None:
    """Compute the buffers that no checkpoint holds, such as rotary frequencies, on the CPU."""
    saved = net.state_dict().keys()
    for prefix, module, owner in _with_owner(net, "", net):
        fresh = {
            leaf: torch.empty_like(buffer, device="cpu")
            for leaf, buffer in module._buffers.items()
            if buffer is not None and buffer.device.type == "meta" and f"{prefix}{leaf}" not in saved
        }
        module._buffers.update(fresh)
        if fresh:
            with torch.no_grad():
                owner._init_weights(module)  # parameters on the meta device do not mind


def _with_owner(module: nn.Module, prefix: str, owner: Any) -> Iterator[tuple[str, nn.Module, Any]]:
    """All modules with their prefixes, and the transformers model that initialises each."""
    yield prefix, module, owner
    for name, child in module.named_children():
        yield from _with_owner(child, f"{prefix}{name}.", child if hasattr(child, "base_model_prefix") else owner)


def _shared_parameters(net: nn.Module) -> Iterator[list[tuple[nn.Module, str]]]:
    """Where each parameter that several modules have is; an embedding that is the head too, for example."""
    places: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in net.modules():
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                places[id(parameter)].append((module, leaf))
    yield from (found for found in places.values() if len(found) > 1)


def _own_region(tensor: torch.Tensor) -> tuple[Region, torch.Tensor]:
    """Which part of a whole tensor this rank holds, and its memory."""
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, size) for size in tensor.shape), tensor.detach()
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    region = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    return region, tensor.to_local()

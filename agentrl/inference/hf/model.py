"""Any causal language model of transformers, its facts, and new weights for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import UserInputError
from agentrl.inference.embedded.model_spec import read_json_object, stop_ids
from agentrl.inference.embedded.options import EngineOptions
from agentrl.inference.hf.pieces import Pieces

logger = logging.getLogger(__name__)

DEFAULT_POSITIONS = 2048
"""Longest context of a model whose config names none."""


@dataclass(frozen=True, slots=True)
class HFSpec:
    """What the server says and checks about a model."""

    family: str
    vocab_size: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    multiplied_weights: int
    raw: dict[str, Any]
    """The whole config.json."""


class HFModel:
    """A model that generates, in evaluation mode.

    Args:
        options: model folder, device and type.

    Raises:
        UserInputError: no such folder, no causal language model, one that cannot generate, or weights are missing.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.folder, self.device, self.dtype = Path(options.model), options.torch_device(), options.torch_dtype()
        self._trust = options.trust_remote_code
        if not (self.folder / "config.json").is_file():
            raise UserInputError(f"{self.folder}: no config.json; wanted a Hugging Face model folder")
        self.lm = self._load(self.folder, self.folder).to(self.device)
        self.lm.generation_config = self._plain_generation()
        self.spec = self._spec()
        self._pieces = Pieces(self.lm)
        self.reads_padding = self._reads_padding()
        """Rows are right only in batches in which none is padded: those of one length."""
        if self.reads_padding:
            logger.warning(
                "'%s': %s reads padding, so only rows of one length share a batch", self.folder, self.spec.family
            )

    def load_folder(self, folder: str | Path) -> None:
        """Replace all weights by those in a folder.

        They are read as transformers reads a checkpoint of this model, beside the old ones: with 1 GB of weights this
        takes another GB until the copy is made. An error leaves the old ones in place.

        Raises:
            UserInputError: no weights there, or those of another model.
        """
        if not any(Path(folder).glob("model*.safetensors")):
            raise UserInputError(f"{folder}: no model*.safetensors")
        fresh = self._load(folder, self.folder)
        with torch.no_grad():
            self.lm.load_state_dict(fresh.state_dict())

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the given weights; others keep their values.

        Args:
            tensors: by the names and in the shapes of the model's checkpoint.

        Raises:
            UserInputError: as `Pieces.load`. The old weights are kept.
        """
        self._pieces.load(tensors)

    def tensors(self) -> list[Tensor]:
        """All weights."""
        return list(self.lm.state_dict().values())

    @torch.no_grad()
    def prompt_log_probs(self, ids: list[int]) -> list[float]:
        """Log-probs of all ids but the first, at temperature 1."""
        prompt = torch.tensor([ids], device=self.device)
        log_probs = self.lm(input_ids=prompt).logits[0, :-1].float().log_softmax(dim=-1)
        values: list[float] = log_probs.gather(1, prompt[0, 1:, None]).squeeze(1).tolist()
        return values

    def cache_bytes(self) -> int:
        """Bytes of keys and values of one token, if every layer keeps them all.

        A layer without attention heads (Mamba, RWKV) counts as if it had keys and values of the model's width.

        Raises:
            UserInputError: the config names no layers or no width.
        """
        text = self.lm.config.get_text_config()
        try:
            widths = [_kv_width(layer) for layer in _layers(text)]
        except AttributeError as error:
            raise UserInputError(
                f"{self.folder}: the config of '{self.spec.family}' does not tell the bytes of a token ({error})"
            ) from error
        return 2 * sum(widths) * self.dtype.itemsize

    @torch.no_grad()
    def _reads_padding(self) -> bool:
        """Whether masked ids before a row change its next token, as in models without a mask for them (RWKV)."""
        logits = []
        for ids, mask in (([1, 2, 3], [1, 1, 1]), ([0, 0, 0, 1, 2, 3], [0, 0, 0, 1, 1, 1])):
            try:
                made = self.lm.generate(
                    input_ids=torch.tensor([ids], device=self.device),
                    attention_mask=torch.tensor([mask], device=self.device),
                    max_new_tokens=1,
                    output_logits=True,
                    return_dict_in_generate=True,
                )
            except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
                raise UserInputError(
                    f"{self.folder}: transformers cannot generate with this model ({error})"
                ) from error
            logits.append(made.logits[0].float().log_softmax(dim=-1).nan_to_num(neginf=0.0))
        alone, behind = logits
        noise = 1e-3 if self.dtype == torch.float32 else 0.2  # in 16 bits, experts may change with the batch
        return bool((alone - behind).std() > noise * alone.std())

    def _load(self, folder: str | Path, config: Path) -> Any:
        from safetensors import SafetensorError
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging as hf_logging

        hf_logging.disable_progress_bar()
        hf_logging.set_verbosity_error()  # it reports missing weights as a warning; here they are an error
        try:
            shape = AutoConfig.from_pretrained(str(config), trust_remote_code=self._trust)
            lm, told = AutoModelForCausalLM.from_pretrained(
                str(folder), config=shape, dtype=self.dtype, trust_remote_code=self._trust, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise UserInputError(f"{folder}: the model cannot be loaded ({error})") from error
        for key, what in (("missing_keys", "weights are missing"), ("unexpected_keys", "weights are not of the model")):
            if names := sorted(told[key]):
                raise UserInputError(f"{folder}: {len(names)} {what}, the first is '{names[0]}'")
        return lm.eval()

    def _plain_generation(self) -> Any:
        """In place of the model's own: it may hold penalties or a temperature, which requests alone decide."""
        from transformers import GenerationConfig

        return GenerationConfig(do_sample=False, pad_token_id=0, use_cache=True)

    def _spec(self) -> HFSpec:
        raw = read_json_object(self.folder / "config.json")
        text = self.lm.config.get_text_config()
        return HFSpec(
            family=str(raw.get("model_type")),
            vocab_size=int(self.lm.get_output_embeddings().weight.shape[0]),
            max_positions=int(getattr(text, "max_position_embeddings", None) or DEFAULT_POSITIONS),
            eos_token_ids=stop_ids(self.folder, raw),
            multiplied_weights=int(self.lm.num_parameters()),
            raw=raw,
        )


def _layers(text: Any) -> list[Any]:
    """The configuration of each layer; most models have one for all."""
    each = getattr(text, "per_layer_config", None)
    return [text if each is None else each[number] for number in range(text.num_hidden_layers)]


def _kv_width(layer: Any) -> int:
    """Elements of the keys of one token in a layer with this configuration."""
    heads = getattr(layer, "num_attention_heads", None)
    if not heads:
        return int(layer.hidden_size)
    width = getattr(layer, "head_dim", None) or layer.hidden_size // heads
    return int((getattr(layer, "num_key_value_heads", None) or heads) * width)

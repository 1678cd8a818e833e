"""Tiny random models that see pictures, as Hugging Face folders with an image processor, made offline in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from agentrl.chat.vision import FAMILIES
from agentrl.errors import ConfigError
from agentrl.testing.models import byte_tokenizer

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PATCH, MERGE = 4, 2
"""Pixels of a patch's side, and patches of a token's side: a picture of 16 x 24 pixels takes 2 * 3 = 6 tokens."""
_MIN_PIXELS, _MAX_PIXELS = 64, 1024


def build_tiny_vision_model(folder: Path | str, family: str = "qwen2_5_vl", *, seed: int = 0, **text: Any) -> Path:
    """Write a random model that sees pictures, with a tokenizer of one id per byte, to `folder`.

    Args:
        folder: where to write; created if missing.
        family: `qwen2_vl`, `qwen2_5_vl` or `qwen3_vl`.
        seed: seed of the weights.
        **text: fields of the configuration of the language model.

    Returns:
        The folder.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    folder = Path(folder)
    tokenizer = byte_tokenizer(more=VISION_TOKENS)
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
    config = AutoConfig.for_model(
        family,
        text_config={**_text_fields(family, tokenizer), **text},
        vision_config=_vision_fields(family),
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        # The usual initialisation is so small that every picture would look the same to the language model.
        for name, parameter in model.named_parameters():
            if ".visual." in name and parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        size={"shortest_edge": _MIN_PIXELS, "longest_edge": _MAX_PIXELS},
    )
    processor.save_pretrained(folder)
    return folder


def _text_fields(family: str, tokenizer: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
        # Of the 4 rotations of a head, 1 turns with time, 1 with the row and 2 with the column.
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
    }
    if family == "qwen3_vl":
        fields |= {"head_dim": 8, "rope_parameters": {**fields["rope_parameters"], "mrope_section": [2, 1, 1]}}
    return fields


def _vision_fields(family: str) -> dict[str, Any]:
    shared = {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
    }
    own: dict[str, dict[str, Any]] = {
        "qwen2_vl": {"embed_dim": 32, "mlp_ratio": 2},
        "qwen2_5_vl": {"intermediate_size": 64, "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]},
        "qwen3_vl": {
            "intermediate_size": 64,
            "out_hidden_size": 32,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
    }
    if family not in own:
        raise ConfigError(f"got the family '{family}', wanted one of {', '.join(FAMILIES)}")
    return {**shared, **own[family]}

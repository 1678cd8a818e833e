"""The demo's model: a Qwen2 with about 660,000 random parameters, as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.cli.demo.tokenizer import build_tokenizer

CONTEXT_LENGTH = 256


def build_model(folder: Path, seed: int, pieces: Sequence[str] = ()) -> Path:
    """Write the untrained model and its tokenizer.

    Args:
        folder: where to write; created if missing.
        seed: seed of the weights.
        pieces: see `build_tokenizer`.

    Returns:
        The folder.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = build_tokenizer(pieces)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

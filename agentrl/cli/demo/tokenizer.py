"""A byte-level BPE tokenizer of 512 ids for arithmetic with a tool, in the class that transformers uses for Qwen2.

Two choices enable a tiny model to copy an expression into a call and a result out of it. Every digit and operator is
its own token, so an expression has the same ids everywhere. And each fixed piece of a conversation or a tool call is
one token, so a whole episode has about fifty tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

VOCAB_SIZE = 512
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CALL_HEAD, CALL_MIDDLE, CALL_VALUE, CALL_TAIL = (
    '<tool_call>\n{"name": "',
    '", "arguments": {"',
    '": "',
    '"}}\n</tool_call>',
)
ANSWER_HEAD = "The answer is "
ROLES = ("system\n", "user\n", "assistant\n", "tool\n")
WHOLE_PIECES = (CALL_HEAD, CALL_MIDDLE, CALL_VALUE, CALL_TAIL, ANSWER_HEAD, *ROLES)
TEMPLATE = "templates/demo.jinja"

_WORDS = ("calculator", "expression")
_PROSE = (
    "Evaluate an arithmetic expression and return its value as a number. The result of the call could not be read, "
    "because the JSON is not valid. Unknown tool, the known tools are calculator. The argument expression is missing "
    "or has a wrong type: it must be a string. Division by zero. Unexpected character at position, expected a number, "
    "an operator or a parenthesis. The expression is too long. Error: invalid syntax. Only numbers, parentheses and "
    "the four operators are allowed. This call was not run, at most one call per turn is possible. Please try again "
    "with another tool name, arguments and value. There was no answer in time, the answer was cut here. "
)


def build_tokenizer(pieces: Sequence[str] = ()) -> Qwen2Tokenizer:
    """Train the tokenizer; every call with the same pieces gives the same ids.

    `AutoTokenizer` loads every Qwen2 folder with this class, which splits text in its own way whatever `tokenizer.json`
    says. Training with the same split keeps the ids the same for everybody who loads the folder. It isolates digits;
    operators stay single tokens because the training text never has two of them in a row.

    Args:
        pieces: texts of a demo that are one token each, besides `WHOLE_PIECES`.

    Returns:
        A tokenizer of `VOCAB_SIZE` ids with the demo's chat template.
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    whole = (*WHOLE_PIECES, *pieces)
    rules = Qwen2Tokenizer().backend_tokenizer
    raw = Tokenizer(models.BPE())
    raw.normalizer, raw.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(whole),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator([_PROSE, *(word for word in _WORDS for _ in range(20))], trainer)
    trained = json.loads(raw.to_str())["model"]
    merges = [tuple(pair) for pair in trained["merges"]]
    tokenizer = Qwen2Tokenizer(vocab=trained["vocab"], merges=merges, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS], True)
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in whole])
    tokenizer.chat_template = resources.files("agentrl.configs").joinpath(TEMPLATE).read_text(encoding="utf-8")
    return tokenizer

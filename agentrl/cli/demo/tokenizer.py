"""A byte-level BPE tokenizer of 512 ids for arithmetic with a tool.

Two choices make a tiny model able to copy an expression into a call and a result out of it: every digit and operator is
a token of its own, so an expression is the same ids wherever it stands; and the fixed pieces of a tool call are one
token each, so a whole episode is about fifty tokens.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 512
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CALL_HEAD, CALL_MIDDLE, CALL_VALUE, CALL_TAIL = (
    '<tool_call>\n{"name": "',
    '", "arguments": {"',
    '": "',
    '"}}\n</tool_call>',
)
ANSWER_HEAD = "The answer is "
WHOLE_PIECES = (CALL_HEAD, CALL_MIDDLE, CALL_VALUE, CALL_TAIL, ANSWER_HEAD)
TEMPLATE = "templates/demo.jinja"

_ISOLATED = r"[\d+\-*/().=,?]|[A-Za-z_]+\n| ?[A-Za-z_]+|\s|[^\sA-Za-z_\d+\-*/().=,?]+"
_FREQUENT = ("system\n", "user\n", "assistant\n", "tool\n", "calculator", "expression")
_PROSE = (
    "Evaluate an arithmetic expression and return its value as a number. The result of the call could not be read, "
    "because the JSON is not valid. Unknown tool, the known tools are calculator. The argument expression is missing "
    "or has a wrong type: it must be a string. Division by zero. Unexpected character at position, expected a number, "
    "an operator or a parenthesis. The expression is too long. Error: invalid syntax. Only numbers, parentheses and "
    "the four operators are allowed. This call was not run, at most one call per turn is possible. Please try again "
    "with another tool name, arguments and value. There was no answer in time, the answer was cut here. "
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer; the same ids on every call.

    Returns:
        A tokenizer of `VOCAB_SIZE` ids that carries the demo's chat template.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_ISOLATED), behavior="isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(WHOLE_PIECES),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([_PROSE, *(piece for piece in _FREQUENT for _ in range(20))], trainer)
    backend.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in WHOLE_PIECES])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = resources.files("agentrl.configs").joinpath(TEMPLATE).read_text(encoding="utf-8")
    return tokenizer

"""The pictures of a request to an engine: `image_data` of SGLang's `/generate`.

An engine expands placeholders itself, so it gets one placeholder for each picture beside the pictures. It then reports
how many tokens it read: as many as the trainer will read, or the answer is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.errors import EngineError
from agentrl.types import JsonDict

if TYPE_CHECKING:
    from agentrl.chat.vision import SentPictures

KEEPS_IDS = {"SGLANG_MM_AVOID_RETOKENIZE": "1"}
"""Environment of a started SGLang server: it expands the placeholders of a request among its ids, instead of decoding
the ids to text and encoding that again, which may give other ones. Servers from before this variable do the latter."""


def picture_fields(prompt_ids: Sequence[int], sent: SentPictures) -> JsonDict:
    """`input_ids` with one placeholder for each picture, and the pictures as data URIs in `image_data`."""
    return {
        "input_ids": sent.tokens.collapse(prompt_ids),
        "image_data": [picture.data_uri() for picture in sent.pictures],
    }


def check_prompt_tokens(address: str, read: int, wanted: int) -> None:
    """Compare the tokens that an engine read with those of the trajectory.

    Raises:
        EngineError: they differ, so that what it sampled continues another prompt.
    """
    if read != wanted:
        raise EngineError(
            f"{address} read {read} prompt tokens, wanted {wanted}: it makes other tokens of the pictures. Does it "
            "serve the run's model folder with its image processor? SGLang keeps the ids of a request only with "
            "SGLANG_MM_AVOID_RETOKENIZE=1"
        )

"""Each token has its text, and together they are the response; without the tokenizer, the dump's segments serve."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from made_dumps import record

from agentrl.observability.run_folder import RunFolder
from agentrl.observability.viewer.tokens import find_tokenizer, pieces_of, token_texts
from agentrl.testing.models import byte_tokenizer

TOKENIZER = byte_tokenizer()


def decode(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=False))


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_pieces_are_the_text(text: str) -> None:
    ids = encode(text)
    pieces = pieces_of(ids, decode)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == decode(ids) == text


@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=30))
def test_pieces_of_any_ids_are_as_many_as_the_ids(ids: list[int]) -> None:
    assert len(pieces_of(ids, decode)) == len(ids)


def test_a_character_of_several_tokens_is_the_text_of_its_last_one() -> None:
    assert pieces_of(encode("aé😀b"), decode) == ["a", "", "é", "", "", "", "😀", "b"]


def test_text_that_is_cut_inside_a_character_keeps_what_there_is() -> None:
    ids = encode("aé")[:-1]
    assert "".join(pieces_of(ids, decode)) == decode(ids) == "a\ufffd"


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str | None], RunFolder]:
    """A run whose configuration names a model; its folder may not exist."""
    TOKENIZER.save_pretrained(tmp_path / "model")

    def made(model: str | None) -> RunFolder:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        tree: dict[str, Any] = {"actor_rollout_ref": {"model": {"path": model}}}
        (folder / "config.yaml").write_text(yaml.safe_dump(tree))
        return RunFolder(folder)

    return made


def conversation(**changes: Any) -> dict[str, Any]:
    said, seen, answer = encode("call<|im_end|>"), encode("é\n"), encode("It is 😀<|im_end|>")
    ids = [*said, *seen, *answer]
    segments = [[len(part), decode(part)] for part in (said, seen, answer)]
    whole = {"response_ids": ids, "prompt_ids": encode("Q?<|im_end|>"), "segments": segments}
    return record(0, input="Q?", output=decode(ids)[:-10], **{**whole, **changes})


def test_with_the_runs_tokenizer(make: Callable[[str | None], RunFolder], tmp_path: Path) -> None:
    item = conversation()
    texts = token_texts(item, make(str(tmp_path / "model")))
    assert (texts.source, texts.note) == ("tokenizer", None)
    assert len(texts.texts) == len(item["response_ids"])
    assert "".join(texts.texts) == texts.response == "call<|im_end|>é\nIt is 😀<|im_end|>"
    assert texts.prompt == "Q?<|im_end|>", "the prompt as it was rendered, its last token too"


def test_a_dump_without_segments(make: Callable[[str | None], RunFolder], tmp_path: Path) -> None:
    texts = token_texts(conversation(segments=None), make(str(tmp_path / "model")))
    assert (texts.source, texts.response[-10:]) == ("tokenizer", "<|im_end|>")


def test_where_the_model_is_gone(make: Callable[[str | None], RunFolder], tmp_path: Path) -> None:
    texts = token_texts(conversation(), make(str(tmp_path / "gone")))
    assert (texts.source, texts.response) == ("segments", "call<|im_end|>é\nIt is 😀<|im_end|>")
    assert [text for text in texts.texts if text] == ["call<|im_end|>", "é\n", "It is 😀<|im_end|>"]
    assert "the run's tokenizer is not found" in str(texts.note)


def test_where_another_model_is_in_its_place(make: Callable[[str | None], RunFolder], tmp_path: Path) -> None:
    item = conversation()
    item["segments"][1][1] = "other"
    texts = token_texts(item, make(str(tmp_path / "model")))
    assert (texts.source, texts.response) == ("segments", "call<|im_end|>otherIt is 😀<|im_end|>")
    assert "gives other text than the dump has" in str(texts.note)


@pytest.mark.parametrize("bad", [[-1], ["x"], [2**40], None, "12", [True, 1.5]])
def test_ids_that_are_none(make: Callable[[str | None], RunFolder], tmp_path: Path, bad: Any) -> None:
    texts = token_texts(conversation(response_ids=bad), make(str(tmp_path / "model")))
    assert texts.source in ("none", "segments")


def test_the_newest_checkpoint_has_a_tokenizer_too(make: Callable[[str | None], RunFolder], tmp_path: Path) -> None:
    run = make(str(tmp_path / "gone"))
    assert find_tokenizer(run) is None
    for step in (2, 10):
        shutil.copytree(tmp_path / "model", run.path / f"global_step_{step}" / "actor" / "huggingface")
    assert find_tokenizer(run) == run.path / "global_step_10" / "actor" / "huggingface" / "tokenizer.json"
    assert token_texts(conversation(), run).source == "tokenizer"


@pytest.mark.parametrize("name", [None, "owner/unknown", "a/b/c", "", "x" * 300])
def test_a_model_without_a_folder_is_looked_up_in_the_cache_alone(
    make: Callable[[str | None], RunFolder], name: str | None
) -> None:
    assert find_tokenizer(make(name)) is None

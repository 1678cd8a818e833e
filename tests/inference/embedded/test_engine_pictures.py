"""Pictures in the embedded engine: the numbers of transformers, prefixes by picture, and errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engine_harness import Harness

from agentrl.chat.loading import load_renderer
from agentrl.chat.renderer import ChatRenderer
from agentrl.errors import UserInputError
from agentrl.inference.embedded import chat_api
from agentrl.pictures import Picture, read_picture
from agentrl.testing.vision_models import build_tiny_vision_model

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
Making = Callable[..., Harness]


@pytest.fixture(scope="session")
def seeing_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("seeing")
    return {name: build_tiny_vision_model(root / name, name, seed=3) for name in FAMILIES}


@cache
def renderer_of(folder: Path) -> ChatRenderer:
    return load_renderer(str(folder))


@cache
def model_of(folder: Path) -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def picture(width: int, height: int, seed: int = 0) -> Picture:
    return read_picture(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


def prompt_of(folder: Path, *parts: str | Picture) -> list[int]:
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts
    ]
    return renderer_of(folder).render_prompt([{"role": "user", "content": content}])


@torch.no_grad()
def plain_logits(folder: Path, ids: list[int], pictures: list[Picture]) -> torch.Tensor:
    """Logits of a plain forward pass of transformers, `(len(ids), vocab)`."""
    vision = renderer_of(folder).vision
    assert vision is not None
    if not pictures:
        return model_of(folder)(input_ids=torch.tensor([ids])).logits[0]
    inputs = {name: torch.from_numpy(value) for name, value in vision.inputs(pictures).items()}
    kinds = (torch.tensor([ids]) == vision.tokens.image).int()
    return model_of(folder)(input_ids=torch.tensor([ids]), mm_token_type_ids=kinds, **inputs).logits[0]


def check(folder: Path, prompt: list[int], pictures: list[Picture], result: dict[str, Any]) -> None:
    """Greedy ids and their log-probs as a plain forward pass has them, without placeholders."""
    ids = result["output_ids"]
    logits = plain_logits(folder, prompt + ids, pictures)[len(prompt) - 1 : -1]
    logits[:, list(renderer_of(folder).vision.tokens.placeholders)] -= 100  # type: ignore[union-attr]
    log_probs = torch.log_softmax(logits, dim=-1)
    assert log_probs.argmax(-1).tolist() == ids
    got = torch.tensor([entry[0] for entry in result["meta_info"]["output_token_logprobs"]])
    torch.testing.assert_close(got, log_probs.gather(1, torch.tensor(ids)[:, None]).squeeze(1), atol=1e-4, rtol=0)


def ask(harness: Harness, folder: Path, prompt: list[int], pictures: list[Picture], **more: Any) -> Any:
    vision = renderer_of(folder).vision
    assert vision is not None
    # A sampled placeholder has no picture: in a run it is a stop id.
    banned = {str(token): -100.0 for token in vision.tokens.placeholders}
    shown = [each.data_uri() for each in pictures]
    ids = vision.tokens.collapse(prompt)
    return harness.submit(ids, image_data=shown or None, logit_bias=banned, **more)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_those_of_transformers(seeing_dirs: dict[str, Path], make_harness: Making, family: str) -> None:
    folder = seeing_dirs[family]
    shown = [picture(24, 16), picture(9, 50, seed=1)]
    prompts = [
        (prompt_of(folder, "a", shown[0], "and", shown[1], "?"), shown),
        (prompt_of(folder, shown[1]), [shown[1]]),
        (prompt_of(folder, "no picture at all"), []),
    ]
    harness = make_harness(folder, prefill_chunk=16)  # a picture's tokens come in several steps
    requests = [ask(harness, folder, prompt, pictures) for prompt, pictures in prompts]
    harness.run()
    for request, (prompt, pictures) in zip(requests, prompts, strict=True):
        assert harness.result(request)["meta_info"]["prompt_tokens"] == len(prompt)
        check(folder, prompt, pictures, harness.result(request))


def test_the_next_turn_reuses_the_prefix_and_another_picture_does_not(
    seeing_dirs: dict[str, Path], make_harness: Making
) -> None:
    folder = seeing_dirs["qwen2_5_vl"]
    harness = make_harness(folder)
    one, other = picture(32, 32), picture(32, 32, seed=5)
    prompt = prompt_of(folder, one, "what?")
    assert prompt == prompt_of(folder, other, "what?")
    first = ask(harness, folder, prompt, [one])
    harness.run()
    sampled = harness.result(first)["output_ids"]

    longer = [*prompt, *sampled, *renderer_of(folder).encode_text("go on")]
    second = ask(harness, folder, longer, [one])
    harness.run()
    assert second.cached_tokens >= len(prompt)
    third = ask(harness, folder, prompt, [other])
    harness.run()
    assert third.cached_tokens < prompt.index(renderer_of(folder).vision.tokens.image) + 1  # type: ignore[union-attr]
    for request, ids, shown in ((first, prompt, one), (second, longer, one), (third, prompt, other)):
        check(folder, ids, [shown], harness.result(request))


def test_new_weights_make_new_features(seeing_dirs: dict[str, Path], make_harness: Making, tmp_path: Path) -> None:
    folder = seeing_dirs["qwen3_vl"]
    other = build_tiny_vision_model(tmp_path, "qwen3_vl", seed=9)
    harness = make_harness(folder)
    prompt = prompt_of(folder, picture(24, 16))
    ask(harness, folder, prompt, [picture(24, 16)])
    harness.run()
    harness.do(harness.engine.update_weights(lambda model: model.load_folder(other), version="1", flush=True))
    again = ask(harness, folder, prompt, [picture(24, 16)])
    harness.run()
    check(other, prompt, [picture(24, 16)], harness.result(again))


def test_a_retracted_request_goes_on_where_it_was(seeing_dirs: dict[str, Path], make_harness: Making) -> None:
    folder = seeing_dirs["qwen2_vl"]
    harness = make_harness(folder)
    prompt = prompt_of(folder, "x", picture(24, 16))
    request = ask(harness, folder, prompt, [picture(24, 16)])
    harness.step(4)
    harness.do(harness.engine.pause("retract"))
    harness.do(harness.engine.resume())
    harness.run()
    check(folder, prompt, [picture(24, 16)], harness.result(request))


@pytest.mark.parametrize(
    ("images", "what"),
    [
        ([], "the tokens show 1 pictures, but there are 0"),
        (["!!"], "wanted a data URI or base64"),
        (["https://a/b.png"], "pictures are not downloaded"),
    ],
)
def test_requests_that_cannot_be_shown_are_refused(
    seeing_dirs: dict[str, Path], make_harness: Making, images: list[str], what: str
) -> None:
    folder = seeing_dirs["qwen2_5_vl"]
    with pytest.raises(UserInputError, match=what):
        make_harness(folder).submit(prompt_of(folder, picture(24, 16)), image_data=images)


def test_a_text_model_refuses_pictures(make_harness: Making) -> None:
    with pytest.raises(UserInputError, match="image_data: the model reads text only"):
        make_harness().submit([1, 2, 3], image_data=[picture(8, 8).data_uri()])


def test_chat_messages_show_pictures(seeing_dirs: dict[str, Path], make_harness: Making, tiny_model_dir: Path) -> None:
    folder, shown = seeing_dirs["qwen2_5_vl"], picture(24, 16)
    url = {"type": "image_url", "image_url": {"url": shown.data_uri()}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {**url, "type": "image"}]}]

    def parsed(engine: Any, parts: list[dict[str, Any]]) -> Any:
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 2}
        return chat_api._parse(body, SimpleNamespace(engine=engine))  # type: ignore[arg-type]

    engine = make_harness(folder).engine
    (request,) = parsed(engine, messages[0]["content"]).requests  # type: ignore[arg-type]
    assert request.prompt == prompt_of(folder, "a", shown)
    assert request.pictures.digests == (shown.digest,)
    with pytest.raises(UserInputError, match="got a part of type 'video_url', wanted text or image_url"):
        parsed(engine, [{"type": "video_url"}])
    with pytest.raises(UserInputError, match="image_data: the model reads text only"):
        parsed(make_harness(tiny_model_dir).engine, [url])

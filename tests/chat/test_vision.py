"""Pictures in the renderer: placeholders, positions and pixel values as the model's own processor makes them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from agentrl.chat.loading import load_renderer
from agentrl.chat.picture_tokens import PictureTokens
from agentrl.chat.renderer import ChatRenderer
from agentrl.errors import PictureError, TemplateError
from agentrl.pictures import Picture, content_of, read_picture
from agentrl.testing.models import build_tiny_model
from agentrl.testing.vision_models import build_tiny_vision_model

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
P = 9
TOKENS = PictureTokens(image=P, others=(8,), merge=2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: build_tiny_vision_model(tmp_path_factory.mktemp(name), name) for name in FAMILIES}


@pytest.fixture(scope="module")
def renderer(folders: dict[str, Path]) -> ChatRenderer:
    return load_renderer(str(folders["qwen2_5_vl"]))


def picture(width: int, height: int, seed: int = 0) -> Picture:
    return read_picture(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


def own_processor(folder: Path, renderer: ChatRenderer) -> Any:
    """The model's processor. Without torchvision it has no part for videos, which its constructor would insist on."""
    from transformers import AutoImageProcessor, Qwen2_5_VLProcessor

    class WithoutVideos(Qwen2_5_VLProcessor):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return type(argument)

    images = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return WithoutVideos(image_processor=images, tokenizer=renderer.tokenizer, video_processor=None)


def user(*parts: str | Picture) -> dict[str, Any]:
    return {"role": "user", "content": [_part(part) for part in parts]}


def _part(part: str | Picture) -> dict[str, Any]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}


def test_placeholders_and_pixels_are_those_of_the_models_own_processor(
    folders: dict[str, Path], renderer: ChatRenderer
) -> None:
    first, second = picture(24, 16), picture(50, 9, seed=1)
    messages = [user("look: ", first, " and ", second, "?"), {"role": "assistant", "content": "yes"}, user("so")]
    own = own_processor(folders["qwen2_5_vl"], renderer)
    plain = [
        {**m, "content": [{k: v for k, v in p.items() if k != "image"} for p in m["content"]]} for m in messages[::2]
    ]
    text = renderer.tokenizer.apply_chat_template(
        [plain[0], messages[1], plain[1]], tokenize=False, add_generation_prompt=True
    )
    expected = own(text=[text], images=[first.open(), second.open()], return_tensors="pt")

    assert renderer.vision is not None
    assert renderer.render_prompt(messages) == expected["input_ids"][0].tolist()
    inputs = renderer.vision.inputs([first, second])
    assert torch.equal(torch.from_numpy(inputs["pixel_values"]), expected["pixel_values"])
    assert torch.equal(torch.from_numpy(inputs["image_grid_thw"]), expected["image_grid_thw"])


def test_a_delta_with_a_picture_continues_the_canonical_rendering(renderer: ChatRenderer) -> None:
    shown = picture(24, 16)
    prompt = [{"role": "user", "content": "call the tool"}]
    answer = {"role": "tool", "content": content_of("done", [shown])}
    sampled = [*renderer.encode_text("calling"), *renderer.turn_end_ids]
    stream = [*renderer.render_prompt(prompt), *sampled, *renderer.delta([answer], sampled_ids=sampled)]
    assert stream == renderer.render_prompt([*prompt, {"role": "assistant", "content": "calling"}, answer])
    assert renderer.vision is not None
    assert renderer.vision.tokens.runs(stream)[0][1] == 2 * 3  # 24 x 16 pixels: 6 x 4 patches


def test_pictures_of_equal_size_are_told_apart_by_the_cache_of_prompts(renderer: ChatRenderer) -> None:
    wide, tall = picture(24, 16), picture(32, 32)
    assert renderer.render_prompt([user(wide)]) != renderer.render_prompt([user(tall)])
    assert renderer.render_prompt([user(wide)]) == renderer.render_prompt([user(picture(24, 16))])


def test_text_that_looks_like_a_placeholder_stays_text(renderer: ChatRenderer) -> None:
    assert renderer.vision is not None
    ids = renderer.render_prompt([user("<|image_pad|><|vision_start|>", picture(24, 16), "<|image_pad|>")])
    assert len(renderer.vision.tokens.runs(ids)) == 1
    assert "<|image_pad|><|vision_start|>" in renderer.encoder.decode(ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_are_those_of_the_model(folders: dict[str, Path], family: str) -> None:
    from transformers import AutoModelForImageTextToText

    renderer = load_renderer(str(folders[family]))
    model = AutoModelForImageTextToText.from_pretrained(folders[family]).model
    assert renderer.vision is not None
    shown = [picture(24, 16), picture(9, 50), picture(40, 40)]
    ids = renderer.render_prompt([user(shown[0], "a", shown[1]), {"role": "assistant", "content": "b"}, user(shown[2])])
    grids = renderer.vision.inputs(shown)["image_grid_thw"]
    kinds = (torch.tensor([ids]) == renderer.vision.tokens.image).int()
    expected, delta = model.get_rope_index(torch.tensor([ids]), kinds, image_grid_thw=torch.from_numpy(grids))
    positions = renderer.vision.tokens.positions(ids, grids.tolist())
    assert positions.tolist() == expected[:, 0].tolist()
    assert int(positions.max()) + 1 - len(ids) == int(delta)


def test_runs_expand_and_collapse() -> None:
    assert TOKENS.expand([1, P, 2, P], [3, 1]) == [1, P, P, P, 2, P]
    assert TOKENS.expand([1, P, P, P, 2], [3]) == [1, P, P, P, 2]
    assert TOKENS.collapse([P, P, 1, P, 2, P, P]) == [P, 1, P, 2, P]
    assert TOKENS.runs([P, P, 1, P]) == [(0, 2), (3, 1)]
    with pytest.raises(PictureError, match="the tokens show 1 pictures, but there are 2"):
        TOKENS.expand([1, P], [1, 1])
    with pytest.raises(PictureError, match="picture 0 has 2 placeholder tokens, wanted 1 or its 3"):
        TOKENS.expand([1, P, P], [3])


def test_the_positions_of_the_worked_example() -> None:
    positions = TOKENS.positions([1, 2, *[P] * 6, 3, 4], [(1, 4, 6)])
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    with pytest.raises(PictureError, match=r"pictures of \[5\] tokens, but they have \[6\]"):
        TOKENS.positions([1, *[P] * 5], [(1, 4, 6)])


def test_large_pictures_are_made_smaller(folders: dict[str, Path]) -> None:
    vision = load_renderer(str(folders["qwen2_5_vl"]), max_pixels=200).vision
    assert vision is not None
    assert vision.shown(picture(40, 20)).size == (20, 10)
    assert vision.count(picture(40, 20)) == vision.tokens.count(vision.inputs([picture(40, 20)])["image_grid_thw"][0])


def test_a_picture_that_several_threads_read_is_kept_once(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    vision = load_renderer(str(folders["qwen2_5_vl"])).vision
    assert vision is not None
    shown = [picture(16, 16, seed) for seed in range(3)]
    monkeypatch.setattr("agentrl.chat.vision._KEPT_BYTES", 3 * vision.inputs(shown[:1])["pixel_values"].nbytes)
    vision = load_renderer(str(folders["qwen2_5_vl"])).vision
    assert vision is not None
    both, make = Barrier(2), vision._processor

    def made_at_the_same_time(**arguments: Any) -> Any:
        both.wait(30)
        return make(**arguments)

    monkeypatch.setattr(vision, "_processor", made_at_the_same_time)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(vision.inputs, [shown[:1]] * 2)
    monkeypatch.setattr(vision, "_processor", make)
    assert first is second
    assert vision.inputs([shown[1]]) is not vision.inputs([shown[2]])
    assert vision.inputs(shown[:1]) is first  # three pictures have room


def test_smaller_pictures_that_another_thread_forgets(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    vision = load_renderer(str(folders["qwen2_5_vl"]), max_pixels=200).vision
    assert vision is not None

    class Forgotten(dict[str, Picture]):
        def __setitem__(self, digest: str, smaller: Picture) -> None:
            """Another thread makes room before this one goes on."""

    monkeypatch.setattr(vision, "_smaller", Forgotten())
    assert vision.shown(picture(40, 20)).size == (20, 10)


def test_a_text_model_refuses_pictures(tmp_path: Path) -> None:
    renderer = load_renderer(str(build_tiny_model(tmp_path)))
    assert renderer.vision is None
    with pytest.raises(PictureError, match="reads text only, but the messages show 1 pictures"):
        renderer.render_prompt([user("a", picture(24, 16))])


def test_a_template_that_drops_pictures_is_refused(folders: dict[str, Path]) -> None:
    blind = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% endif %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer = load_renderer(str(folders["qwen2_5_vl"]), chat_template=blind)
    with pytest.raises(TemplateError, match="shows 0 of 1 pictures"):
        renderer.render_prompt([user(picture(24, 16))])


def test_a_folder_without_an_image_processor_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    for file in folders["qwen2_5_vl"].iterdir():
        if file.name != "preprocessor_config.json":
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(TemplateError, match="its image processor cannot be loaded"):
        load_renderer(str(tmp_path))


def test_decoded_prompts_show_one_placeholder(renderer: ChatRenderer) -> None:
    text = renderer.decode(renderer.render_prompt([user(picture(32, 32))]))
    assert text.count("<|image_pad|>") == 1


def test_a_picture_of_an_impossible_shape_is_refused(renderer: ChatRenderer) -> None:
    strip = read_picture(Image.new("RGB", (900, 2)))
    with pytest.raises(PictureError, match="the model takes no picture of 900 x 2 pixels"):
        renderer.render_prompt([user(strip)])

"""Model folders that cannot give exact tokens are refused with one readable message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from agentrl.chat import loading
from agentrl.chat.loading import load_renderer, load_tokenizer
from agentrl.errors import TemplateError
from agentrl.testing.models import byte_tokenizer


@pytest.fixture
def model(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy without weights, to damage."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_whole_folder(model: Path) -> None:
    edit_json(model / "generation_config.json", eos_token_id=[3, 5])
    renderer = load_renderer(str(model))
    tokenizer = byte_tokenizer()
    assert renderer.stop_token_ids == {3, 5, tokenizer.eos_token_id}
    assert load_renderer(str(model), stop_token_ids=[7]).stop_token_ids == {3, 5, 7, tokenizer.eos_token_id}
    assert renderer.vocab_size == len(tokenizer)
    assert renderer.decode(renderer.render_prompt([{"role": "user", "content": "é"}])).endswith("assistant\n")


def test_no_chat_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    with pytest.raises(TemplateError, match="has no chat template"):
        load_renderer(str(model))


def test_a_template_of_the_users_own(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").unlink()
    assert load_renderer(str(model), chat_template="templates/chatml_tools.jinja").turn_end_ids
    own = tmp_path / "own.jinja"
    own.write_text("{% for m in messages %}{{ m.role + m.content + '<|im_end|>' }}{% endfor %}")
    renderer = load_renderer(str(model), chat_template=str(own))
    assert renderer.encoder.decode(renderer.render_prompt([{"role": "user", "content": "x"}])) == "userx<|im_end|>"
    with pytest.raises(TemplateError, match=r"chat template missing\.jinja does not exist"):
        load_renderer(str(model), chat_template="missing.jinja")


def test_a_template_with_a_mistake(model: Path) -> None:
    with pytest.raises(TemplateError, match="refuses a conversation"):
        load_renderer(str(model), chat_template="{% for m in messages %}{{ m.content }}{% endif %}")


def test_vocabulary_mismatch(model: Path) -> None:
    edit_json(model / "config.json", vocab_size=100)
    with pytest.raises(TemplateError, match=r"makes ids up to \d+ .* knows 100 ids"):
        load_renderer(str(model))


def test_a_folder_that_is_missing_or_empty(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"cannot load a tokenizer from .*nowhere"):
        load_renderer(str(tmp_path / "nowhere"))
    with pytest.raises(TemplateError, match="cannot load a tokenizer from"):
        load_renderer(str(tmp_path))
    with pytest.raises(TemplateError, match="no model given"):
        load_renderer("")


def test_a_broken_configuration(model: Path) -> None:
    (model / "generation_config.json").write_text("{")
    with pytest.raises(TemplateError, match=r"generation_config\.json is not JSON"):
        load_renderer(str(model))


def test_ids_are_those_of_tokenizer_json(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """transformers gives every Qwen2 model its own rules for digits, whatever its tokenizer.json says."""
    trained = Tokenizer.from_file(str(model / "tokenizer.json"))
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = trainers.BpeTrainer(vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = trained.pre_tokenizer, trained.decoder
    backend.train_from_iterator(["1234567890"] * 5, digits)
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    backend.save(str(model / "tokenizer.json"))
    edit_json(model / "config.json", vocab_size=300)
    text = "1234567890"
    assert AutoTokenizer.from_pretrained(model)(text).input_ids != backend.encode(text).ids
    with caplog.at_level("INFO", "agentrl"):
        renderer = load_renderer(str(model))
    assert renderer.encode_text(text) == backend.encode(text).ids
    assert "the class Qwen2Tokenizer would split text (such as" in caplog.text
    assert renderer.tokenizer.eos_token == "<|im_end|>"
    assert renderer.encoder.decode(renderer.render_prompt([{"role": "user", "content": "x"}])).endswith("assistant\n")


@pytest.mark.parametrize("folder", ["qwen_folder", "smollm2_folder"])
def test_ids_of_real_folders(folder: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> None:
    path = request.getfixturevalue(folder)
    with caplog.at_level("INFO", "agentrl"):
        tokenizer = load_tokenizer(str(path))
    text = "It's 12345  spaces\n\n你好"
    assert tokenizer(text).input_ids == Tokenizer.from_file(str(path / "tokenizer.json")).encode(text).ids
    assert caplog.text == ""


def test_ids_that_no_class_gives_are_reported(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither class reads the file as it is: the settings beside it say otherwise."""
    monkeypatch.setattr(loading, "_first_other", lambda tokenizer, original: "x")
    assert load_renderer(str(model)).encode_text("x")
    assert "gives different ids from its tokenizer.json, for example for 'x'" in caplog.text

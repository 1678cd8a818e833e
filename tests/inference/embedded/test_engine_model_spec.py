"""Model folders that cannot be used, and the two ways of writing rope settings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import Harness
from transformers import AutoModelForCausalLM

from agentrl.errors import UserInputError
from agentrl.inference.embedded.__main__ import main, parse_options
from agentrl.inference.embedded.engine import fitting_threads
from agentrl.inference.embedded.model_spec import load_spec
from agentrl.inference.embedded.options import EngineOptions


@pytest.fixture
def edited(tiny_model_dir: Path, tmp_path: Path) -> Any:
    """`edited(**fields)`: the tiny model with other fields in its config.json."""

    def make(**fields: Any) -> Path:
        folder = tmp_path / "edited"
        shutil.copytree(tiny_model_dir, folder, dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gemma3"}, "does not support model_type 'gemma3'. Known: llama, qwen2, qwen2_5_vl,"),
        ({"model_type": "qwen"}, "Did you mean 'qwen"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope type 'dynamic'"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial rotary",
        ),
        ({"num_hidden_layers": 3}, "missing"),
        ({"vocab_size": 99}, "wanted"),
    ],
)
def test_models_that_cannot_run_are_refused(fields: dict[str, Any], message: str, edited: Any) -> None:
    with pytest.raises(UserInputError, match="(?s).*".join(map(str, [message.split("(")[0]]))) as caught:
        Harness(edited(**fields))
    assert message in str(caught.value)


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=r"no config\.json"):
        load_spec(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserInputError, match="not JSON"):
        load_spec(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserInputError, match="is missing"):
        load_spec(tmp_path)


def test_a_mistyped_folder_on_the_command_line(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", f"{tiny_model_dir}x"]) == 2
    assert (
        capsys.readouterr().err == f"--model: no model folder '{tiny_model_dir}x'. Did you mean '{tiny_model_dir}'?\n"
    )
    assert main(["--model", str(tiny_model_dir), "--tokenizer-path", f"{tiny_model_dir}x"]) == 2
    assert capsys.readouterr().err.startswith(f"--tokenizer-path: no model folder '{tiny_model_dir}x'. Did you mean")


def test_old_and_new_rope_settings_read_alike(edited: Any) -> None:
    new = load_spec(edited(rope_parameters={"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}))
    old = load_spec(edited(rope_parameters=None, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0}))
    assert new.rope == old.rope


def test_stop_ids_of_both_files_count(edited: Any) -> None:
    folder = edited(eos_token_id=5)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    assert load_spec(folder).eos_token_ids == (7, 5)


def test_bfloat16_is_near_float32(tiny_model_dir: Path) -> None:
    exact, rough = Harness(tiny_model_dir), Harness(tiny_model_dir, dtype="bfloat16")
    prompt = list(range(60))
    wanted = exact.generate(prompt, max_new_tokens=1, logprob_start_len=0)["meta_info"]["input_token_logprobs"]
    got = rough.generate(prompt, max_new_tokens=1, logprob_start_len=0)["meta_info"]["input_token_logprobs"]
    assert rough.table.cache.data.dtype == torch.bfloat16
    difference = [abs(a[0] - b[0]) for a, b in zip(wanted[1:], got[1:], strict=True)]
    assert sum(difference) / len(difference) < 0.1


def test_the_command_line() -> None:
    options = parse_options(
        ["--model", "m", "--port", "1", "--threads", "2", "--deterministic", "--weight-version", "5"]
    )
    assert (options.model, options.port, options.threads, options.deterministic) == ("m", 1, 2, True)
    assert options.weight_version == "5"
    for bad in (
        ["--threads", "0"],
        ["--engines-here", "0"],
        ["--prefill-chunk", "-1"],
        ["--dtype", "int8"],
        ["--port", "70000"],
        [],
    ):
        with pytest.raises(SystemExit):
            parse_options(["--model", "m", *bad] if bad else [])


@pytest.mark.parametrize("family", ["qwen2", "llama", "qwen3"])
def test_weights_that_are_multiplied_are_all_matrices(family_dirs: dict[str, Path], family: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(family_dirs[family])
    weights = model.state_dict()  # a tied head is listed beside the embedding
    matrices = sum(w.numel() for name, w in weights.items() if w.dim() == 2 and name != "model.embed_tokens.weight")
    assert load_spec(family_dirs[family]).multiplied_weights == matrices


def test_threads_fit_the_size_of_the_model(tiny_model_dir: Path, edited: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    small, large = load_spec(tiny_model_dir), load_spec(edited(hidden_size=2048, intermediate_size=8192))
    options = EngineOptions(model=str(tiny_model_dir))
    assert fitting_threads(options, small) == 1
    assert fitting_threads(options, large) == 8
    assert fitting_threads(replace(options, deterministic=True), large) == 1
    assert [fitting_threads(replace(options, engines_here=n), large) for n in (2, 3, 16)] == [4, 2, 1]

"""Pause, abort, weight updates, broken numbers: what steers a running engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import Harness
from safetensors.torch import load_file, save_file

from agentrl.errors import UserInputError
from agentrl.testing.models import build_tiny_model


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with other weights."""
    return build_tiny_model(tmp_path_factory.mktemp("other"), seed=99)


def update(harness: Harness, folder: Path, version: str | None = "1", **options: Any) -> int:
    future = harness.engine.update_weights(
        lambda decoder: decoder.load_folder(folder), version=version, **{"flush": True, **options}
    )
    return int(harness.do(future))


def test_a_weight_update_in_flight_is_recorded_per_token(
    harness: Harness, other_weights: Path, reference: Callable[..., torch.Tensor], tiny_model_dir: Path
) -> None:
    request = harness.submit([1, 2, 3, 4], max_new_tokens=10)
    harness.step(4)
    update(harness, other_weights)
    harness.run()
    meta = harness.result(request)["meta_info"]
    assert meta["weight_versions"] == [
        {"version": "0", "start": 0, "end": 4},
        {"version": "1", "start": 4, "end": 10},
    ]
    assert meta["weight_version"] == "1"
    old = reference(tiny_model_dir, [1, 2, 3, 4, *request.ids])[3:7].argmax(-1).tolist()
    assert request.ids[:4] == old


@pytest.mark.parametrize("source", ["disk", "tensor"])
def test_new_weights_are_used(
    source: str, harness: Harness, other_weights: Path, check_greedy: Callable[..., None], prompts: Callable[..., Any]
) -> None:
    [prompt] = prompts(1, 30, 30)
    harness.generate(prompt)
    if source == "disk":
        update(harness, other_weights)
    else:
        tensors = load_file(other_weights / "model.safetensors")
        harness.do(harness.engine.update_weights(lambda d: d.load_tensors(tensors), version="1", flush=True))
    result = harness.generate(prompt)
    assert result["meta_info"]["cached_tokens"] == 0
    check_greedy(other_weights, prompt, result)


def test_requests_in_flight_leave_no_prefix_of_old_weights(
    harness: Harness, other_weights: Path, check_greedy: Callable[..., None], prompts: Callable[..., Any]
) -> None:
    [prompt] = prompts(1, 30, 30)
    harness.submit(prompt, max_new_tokens=10)
    harness.step(3)
    update(harness, other_weights)
    harness.run()
    result = harness.generate([*prompt, 5])
    assert result["meta_info"]["cached_tokens"] == 0
    check_greedy(other_weights, [*prompt, 5], result)


def test_without_flush_the_prefix_cache_stays(
    harness: Harness, other_weights: Path, prompts: Callable[..., Any]
) -> None:
    [prompt] = prompts(1, 30, 30)
    harness.generate(prompt)
    update(harness, other_weights, version=None, flush=False)
    assert harness.engine.weight_version == "0"
    assert harness.generate([*prompt, 5])["meta_info"]["cached_tokens"] == 30


@pytest.mark.parametrize("damage", ["shape", "missing", "name", "truncated", "no file"])
def test_bad_weights_leave_the_old_ones(
    damage: str,
    harness: Harness,
    tiny_model_dir: Path,
    other_weights: Path,
    tmp_path: Path,
    check_greedy: Callable[..., None],
    prompts: Callable[..., Any],
) -> None:
    tensors = load_file(other_weights / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    if damage == "shape":
        tensors[name] = tensors[name][:, :-1].contiguous()
    elif damage == "missing":
        del tensors[name]
    elif damage == "name":
        tensors["model.layers.7.mlp.up_proj.weight"] = tensors[name].clone()
    if damage != "no file":
        save_file(tensors, tmp_path / "model.safetensors")
    if damage == "truncated":
        whole = (tmp_path / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserInputError) as caught:
        update(harness, tmp_path)
    assert "\n" not in str(caught.value)
    assert harness.engine.weight_version == "0"
    [prompt] = prompts(1, 30, 30)
    check_greedy(tiny_model_dir, prompt, harness.generate(prompt))


def test_sharded_weights_and_a_head_beside_a_tied_embedding(
    harness: Harness, other_weights: Path, tmp_path: Path, check_greedy: Callable[..., None]
) -> None:
    tensors = load_file(other_weights / "model.safetensors")
    names = sorted(tensors)
    half = {name: tensors[name] for name in names[: len(names) // 2]}
    rest = {name: tensors[name] for name in names[len(names) // 2 :]}
    rest["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(half, tmp_path / "model-00001-of-00002.safetensors")
    save_file(rest, tmp_path / "model-00002-of-00002.safetensors")
    update(harness, tmp_path)
    check_greedy(other_weights, [1, 2, 3], harness.generate([1, 2, 3]))


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_pause_and_continue(
    mode: str, harness: Harness, tiny_model_dir: Path, check_greedy: Callable[..., None], prompts: Callable[..., Any]
) -> None:
    first, second = prompts(2, 30, 30)
    one = harness.submit(first, max_new_tokens=20)
    harness.step(5)
    harness.do(harness.engine.pause(mode))
    two = harness.submit(second, max_new_tokens=20)
    harness.step(10)
    assert (len(one.ids), len(two.ids)) == (5, 0)
    assert update(harness, tiny_model_dir, version="0") == 2, "both are held by the pause"
    harness.do(harness.engine.resume())
    harness.run()
    check_greedy(tiny_model_dir, first, harness.result(one))
    check_greedy(tiny_model_dir, second, harness.result(two))


def test_retract_computes_again_with_the_new_weights(
    harness: Harness, other_weights: Path, reference: Callable[..., torch.Tensor], prompts: Callable[..., Any]
) -> None:
    [prompt] = prompts(1, 30, 30)
    request = harness.submit(prompt, max_new_tokens=12)
    harness.step(5)
    harness.do(harness.engine.pause("retract"))
    update(harness, other_weights)
    harness.do(harness.engine.resume())
    harness.run()
    ids = harness.result(request)["output_ids"]
    wanted = reference(other_weights, prompt + ids)[len(prompt) + 4 : -1].argmax(-1).tolist()
    assert ids[5:] == wanted, "keys of the old weights were used"


def test_pause_in_abort_mode_ends_what_runs_and_keeps_its_tokens(
    harness: Harness, tiny_model_dir: Path, check_greedy: Callable[..., None]
) -> None:
    request = harness.submit([1, 2, 3], max_new_tokens=20)
    harness.step(5)
    harness.do(harness.engine.pause("abort"))
    result = harness.result(request)
    assert result["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(result["output_ids"]) == 5
    check_greedy(tiny_model_dir, [1, 2, 3], result)
    later = harness.submit([1, 2, 3], max_new_tokens=2)
    harness.step(3)
    assert later.finish is None
    harness.do(harness.engine.resume())
    harness.run()
    assert later.finish is not None


def test_abort_by_id_by_prefix_and_of_all(harness: Harness) -> None:
    requests = {rid: harness.submit([1, 2, 3], rid=rid, max_new_tokens=50) for rid in ("a-1", "a-2", "b", "c")}
    harness.step(2)
    assert harness.do(harness.engine.abort("a-")) == 2
    assert harness.do(harness.engine.abort("nobody")) == 0
    assert {rid for rid, request in requests.items() if request.finish is not None} == {"a-1", "a-2"}
    harness.step()
    assert harness.do(harness.engine.abort(None)) == 2
    assert not harness.scheduler.busy
    assert len(harness.ended) == 4


def test_an_aborted_prefill_leaves_a_usable_prefix(
    make_harness: Callable[..., Harness],
    tiny_model_dir: Path,
    prompts: Callable[..., Any],
    check_greedy: Callable[..., None],
) -> None:
    harness = make_harness(prefill_chunk=16)
    [prompt] = prompts(1, 60, 60)
    harness.submit(prompt, rid="gone")
    harness.step(2)
    waiting = harness.submit(prompt)
    harness.step()
    harness.do(harness.engine.abort("gone"))
    harness.run()
    assert waiting.cached_tokens == 48
    check_greedy(tiny_model_dir, prompt, harness.result(waiting))


def test_requests_with_one_id_do_not_disturb_each_other(harness: Harness) -> None:
    requests = [harness.submit([1, 2, number], rid="same") for number in range(3)]
    harness.run()
    assert all(request.finish is not None for request in requests)
    assert not harness.scheduler.running


def test_numbers_that_are_not_finite_end_a_request_and_do_not_spread(
    harness: Harness, tiny_model_dir: Path, tmp_path: Path, check_greedy: Callable[..., None]
) -> None:
    tensors = load_file(tiny_model_dir / "model.safetensors")
    tensors["model.layers.0.self_attn.v_proj.weight"][0, 0] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    shutil.copy(tiny_model_dir / "config.json", tmp_path)
    update(harness, tmp_path)
    result = harness.generate([1, 2, 3, 4, 5, 6])
    assert result["output_ids"] == []
    assert "not finite" in result["meta_info"]["finish_reason"]["message"]
    update(harness, tiny_model_dir)
    check_greedy(tiny_model_dir, [1, 2, 3], harness.generate([1, 2, 3], max_new_tokens=30))


def test_a_stopped_engine_answers_at_once(tiny_model_dir: Path) -> None:
    harness = Harness(tiny_model_dir)
    harness.engine.start()
    harness.engine.stop()
    request = harness.submit([1, 2, 3])
    assert harness.ended[id(request)].finish.type == "abort"


def test_a_failure_of_the_model_ends_every_request_and_is_told(tiny_model_dir: Path) -> None:
    harness = Harness(tiny_model_dir)
    request = harness.submit([1, 2, 3], max_new_tokens=1000)

    def explode() -> None:
        raise ValueError("boom")

    harness.engine.start()
    future = harness.engine.call(explode)
    with pytest.raises(ValueError, match="boom"):
        future.result(10)
    harness.engine.stop()
    assert harness.engine.failed == "ValueError: boom"
    assert harness.ended[id(request)].finish.message == "ValueError: boom"
    late = harness.submit([1])
    assert harness.ended[id(late)].finish.message == "ValueError: boom"


def test_many_waiting_requests_cost_nothing_while_all_slots_run(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness(max_running_requests=2)
    requests = [harness.submit([1, 2, i], max_new_tokens=4) for i in range(60)]
    harness.step()
    placed = []
    original = harness.table.place
    harness.table.place = lambda request: placed.append(request) or original(request)  # type: ignore[method-assign]
    harness.step(2)
    assert placed == []
    harness.run()
    assert all(request.finish is not None for request in requests)

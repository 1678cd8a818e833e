"""The C operations against the torch ones, and what happens where they cannot be compiled."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_harness import Harness
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs

from agentrl.inference.embedded import native_ops
from agentrl.inference.embedded.native_ops import NativeOps, best_ops, load_library
from agentrl.inference.embedded.ops import DirectRows, TorchOps

TORCH = TorchOps()


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeOps]:
    if shutil.which("cc") is None:
        needs("gcc")
    with pytest.MonkeyPatch.context() as patch:  # the user's own cache folder may not be writable
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        load_library.cache_clear()
        library = load_library()
        assert library is not None
        yield NativeOps(library)
    load_library.cache_clear()


def close(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (64, 128), (200, 576)])
def test_norm_and_swiglu(rows: int, width: int, threads: int, native: NativeOps) -> None:
    torch.set_num_threads(threads)
    x, weight = torch.randn(rows, width) * 3, torch.randn(width)
    close(native.rms_norm(x, weight, 1e-6), TORCH.rms_norm(x, weight, 1e-6))
    gate_up = torch.randn(rows, 2 * width) * 10
    gate_up[0, 0], gate_up[-1, -1] = -200.0, 200.0
    close(native.swiglu(gate_up), TORCH.swiglu(gate_up))


@settings(deadline=None, max_examples=60)
@given(
    kv=st.integers(1, 4), group=st.integers(1, 16), dim=st.sampled_from([2, 6, 8, 32, 64, 80, 128, 256]),
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=6), scale=st.sampled_from([0.1, 1.0, 20.0]),
    threads=st.sampled_from([1, 2]),
)  # fmt: skip
def test_attention_and_rotation(
    kv: int, group: int, dim: int, lengths: list[int], scale: float, threads: int, native: NativeOps
) -> None:
    heads, count = kv * group, len(lengths)
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(sum(lengths))
    keys, values = torch.randn(2, count + 2, kv, 400, dim, generator=generator)
    keys /= dim**0.5
    slots = torch.randperm(count + 2, generator=generator)[:count].sort().values
    positions = torch.tensor(lengths) - 1
    qkv = torch.randn(count, heads + 2 * kv, dim, generator=generator) * scale
    angles = torch.outer(torch.arange(400.0), torch.rand(dim // 2, generator=generator))
    rotations = torch.polar(torch.ones_like(angles), angles)
    mine = (qkv.clone(), keys.clone(), values.clone())
    theirs = (qkv.clone(), keys.clone(), values.clone())
    native.rotate_and_store(mine[0], rotations, slots, positions, mine[1], mine[2])
    TORCH.rotate_and_store(theirs[0], rotations, slots, positions, theirs[1], theirs[2])
    for got, wanted in zip(mine, theirs, strict=True):
        close(got, wanted)
    span, longest = int(slots.max()) + 1, max(lengths)
    last = torch.zeros(span, dtype=torch.long)
    last[slots] = positions
    mask = torch.arange(longest) > last.repeat_interleave(kv)[:, None]
    bias = torch.zeros(span * kv, longest).masked_fill(mask, -torch.inf).unsqueeze(1)
    got = native.attention(*mine, slots, positions, DirectRows(count, span, None, None))
    wanted = TORCH.attention(*theirs, slots, positions, DirectRows(count, span, slots, bias))
    # Rounding of a score shows in its exponential: scores grow with scale squared, values with scale.
    close(got, wanted, 2e-5 * max(1.0, scale) ** 3)


@settings(deadline=None, max_examples=100)
@given(
    rows=st.integers(1, 5), vocab=st.integers(1, 700), scale=st.sampled_from([0.01, 1.0, 30.0]),
    seed=st.integers(0, 2**31), temperature=st.floats(0.05, 5),
)  # fmt: skip
def test_sampling(rows: int, vocab: int, scale: float, seed: int, temperature: float, native: NativeOps) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator) * scale
    logits[:, : vocab // 2][torch.rand(rows, vocab // 2, generator=generator) < 0.5] = -torch.inf
    u = torch.rand(rows, generator=generator)
    u[0] = 0.0 if seed % 3 == 0 else 1 - 2.0**-24 if seed % 3 == 1 else u[0]
    t, greedy = torch.full((rows,), temperature), torch.rand(rows, generator=generator) < 0.3
    mine, wanted = native.sample(logits, t, greedy, u), TORCH.sample(logits, t, greedy, u)
    log_probs = torch.log_softmax(logits.double() / t[:, None], -1)  # in float, a logit of 2000 is off by 1e-4
    close(mine[1], log_probs.gather(1, mine[0][:, None]).squeeze(1).float())
    assert torch.equal(mine[0][greedy], wanted[0][greedy])
    sums = log_probs.exp().cumsum(-1)
    for row in range(rows):
        token = int(mine[0][row])
        assert logits[row, token] > -torch.inf
        if not greedy[row]:
            # The same token as in torch, or a neighbour where rounding decides.
            assert sums[row, token] >= u[row] - 1e-4
            assert token == 0 or sums[row, token - 1] <= u[row] + 1e-4


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_broken_logits_are_not_hidden(what: float, native: NativeOps) -> None:
    logits = torch.randn(2, 100)
    logits[1, 40] = what
    one, zero = torch.ones(2), torch.zeros(2)
    for greedy in (torch.tensor([False, False]), torch.tensor([True, True])):
        assert torch.isfinite(native.sample(logits, one, greedy, zero)[1]).tolist() == [True, False]


@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_broken_numbers_are_not_hidden(where: str, what: float, native: NativeOps) -> None:
    qkv, keys, values = torch.rand(1, 4, 8), torch.rand(1, 1, 20, 8), torch.rand(1, 1, 20, 8)
    {"query": qkv[0, :2], "key": keys[0, 0], "value": values[0, 0]}[where][1, 3] = what
    at = torch.tensor([19])
    out = native.attention(qkv, keys, values, torch.tensor([0]), at, DirectRows(1, 1, None, None))
    assert not torch.isfinite(out).all()


def test_leftovers_behind_the_end_do_not_matter(native: NativeOps) -> None:
    qkv, keys, values = torch.randn(1, 4, 8), torch.randn(1, 1, 20, 8), torch.randn(1, 1, 20, 8)
    keys[0, 0, 11:] = values[0, 0, 11:] = torch.nan
    rows, at = DirectRows(1, 1, None, None), torch.tensor([10])
    assert torch.isfinite(native.attention(qkv, keys, values, torch.tensor([0]), at, rows)).all()


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, and nothing loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_library.cache_clear()
    yield tmp_path / "agentrl"
    load_library.cache_clear()


def test_it_is_compiled_once(native: NativeOps, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_library() is not None
    [built] = fresh_cache.iterdir()
    load_library.cache_clear()
    monkeypatch.setattr(native_ops, "_compile", None)
    assert load_library() is not None
    assert list(fresh_cache.iterdir()) == [built]


def test_processes_that_start_together_compile_without_harm(native: NativeOps, fresh_cache: Path) -> None:
    compiler = native_ops.shutil.which("gcc") or "cc"
    threads = [threading.Thread(target=native_ops._compile, args=(compiler, fresh_cache / "k.so")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in fresh_cache.iterdir()] == ["k.so"]


@pytest.mark.parametrize("trouble", ["no compiler", "broken compiler", "no folder"])
def test_without_a_compiler_torch_does_it(
    trouble: str, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path, tmp_path: Path
) -> None:
    if trouble == "no folder":
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    answers = {"no compiler": None, "broken compiler": "/bin/false", "no folder": "/bin/true"}
    monkeypatch.setattr(native_ops.shutil, "which", lambda _: answers[trouble])
    assert load_library() is None
    harness = Harness(tiny_model_dir)
    assert type(harness.scheduler.model.ops) is TorchOps
    assert len(harness.generate([1, 2, 3])["output_ids"]) == 12


def test_other_types_and_devices_run_in_torch(native: NativeOps, tiny_model_dir: Path) -> None:
    spec = Harness(tiny_model_dir).engine.spec
    assert isinstance(best_ops(spec, torch.float32, torch.device("cpu")), NativeOps)
    assert type(best_ops(spec, torch.bfloat16, torch.device("cpu"))) is TorchOps
    assert type(best_ops(spec, torch.float32, torch.device("cuda"))) is TorchOps

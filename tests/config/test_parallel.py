"""Sizes of the mesh: what they are, and what is refused before anything loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from recipes import overrides
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from agentrl.config import load, load_config, parallel_checks
from agentrl.config.actor import FSDPConfig
from agentrl.config.idle_sft_keys import IDLE_SFT_KEYS
from agentrl.config.parallel import MeshSizes, mesh_sizes
from agentrl.config.parallel_checks import model_problems
from agentrl.config.sft import SFT_CHECKS, SFTConfig
from agentrl.errors import ConfigError
from agentrl.testing.models import build_tiny_model

ACTOR = "actor_rollout_ref.actor"
SP, TP = f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size", f"{ACTOR}.fsdp_config.tensor_parallel_size"
FSDP = f"{ACTOR}.fsdp_config.fsdp_size"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four heads and two of keys and values each; `odd` has six and three."""
    folder = tmp_path_factory.mktemp("models")
    build_tiny_model(folder / "qwen2")
    build_tiny_model(folder / "odd", num_attention_heads=6, num_key_value_heads=3, hidden_size=48)
    build_tiny_model(folder / "narrow", intermediate_size=63)
    build_tiny_model(folder / "gpt2", "gpt2", n_head=4, n_embd=32, n_layer=1)
    build_tiny_model(folder / "gemma2", "gemma2", head_dim=8)
    AutoConfig.for_model("gpt_oss").save_pretrained(folder / "gpt_oss")
    AutoConfig.for_model("falcon").save_pretrained(folder / "falcon")
    AutoConfig.for_model("qwen2_5_vl").save_pretrained(folder / "seeing")
    return folder


@pytest.mark.parametrize(
    ("world", "given", "sizes"),
    [
        (8, {}, (1, 8, 1, 1)),
        (8, {"fsdp_size": 0}, (1, 8, 1, 1)),
        (8, {"fsdp_size": 2}, (4, 2, 1, 1)),
        (8, {"fsdp_size": 1}, (8, 1, 1, 1)),
        (8, {"sp": 2}, (1, 4, 2, 1)),
        (8, {"sp": 2, "fsdp_size": 4}, (2, 2, 2, 1)),
        (8, {"tp": 2}, (1, 4, 1, 2)),
        (8, {"sp": 2, "tp": 2}, (1, 2, 2, 2)),
        (8, {"sp": 2, "tp": 2, "fsdp_size": 2}, (2, 1, 2, 2)),
        (3, {"sp": 3}, (1, 1, 3, 1)),
    ],
)
def test_sizes_of_the_mesh(world: int, given: dict[str, int], sizes: tuple[int, ...]) -> None:
    names = {"sp": "ulysses_sequence_parallel_size", "tp": "tensor_parallel_size"}
    config = FSDPConfig(**{names.get(name, name): size for name, size in given.items()})  # type: ignore[arg-type]
    assert mesh_sizes(config, world) == (MeshSizes(*sizes), [])


def run(models: Path, model: str, *more: str, ranks: int = 4) -> Any:
    base = (f"actor_rollout_ref.model.path={models / model}", f"trainer.n_gpus_per_node={ranks}", "trainer.device=cpu")
    return load_config(None, overrides(*base, *more))


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("qwen2", [f"{TP}=3"], "tensor_parallel_size (3), but the run has 4 ranks, which it does"),
        ("qwen2", [f"{SP}=2", f"{TP}=4"], "ulysses_sequence_parallel_size (2) * tensor_parallel_size (4) = 8, but"),
        ("qwen2", [f"{FSDP}=3"], f"{FSDP}: got 3, wanted a divisor of the 4 ranks that hold a parameter: 1, 2, 4"),
        ("qwen2", [f"{FSDP}=1", f"{SP}=2"], "a multiple of ulysses_sequence_parallel_size (2): 2, 4, or -1 for all"),
        ("qwen2", [f"{TP}=4"], f"{TP}: got 4, but the model has 2 heads of keys and values (2 / 4 = 0.50): wanted"),
        ("odd", [f"{TP}=2"], "3 heads of keys and values (3 / 2 = 1.50): wanted 1"),
        ("odd", [f"{SP}=4"], f"{SP}: got 4, but the model has 6 attention heads (6 / 4 = 1.50): wanted 1, 2, 3"),
        ("narrow", [f"{TP}=2"], "63 columns in its MLPs (intermediate_size) (63 / 2 = 31.50): wanted 1"),
        ("gpt2", [f"{TP}=2"], f"{TP}: got 2, but transformers has no tensor-parallel plan for models of type 'gpt2'"),
        ("gemma2", [f"{SP}=2"], f"{SP}: got 2, but 'gemma2' caps its scores"),
        ("gpt_oss", [f"{SP}=2"], f"{SP}: got 2, but 'gpt_oss' has attention sinks, which attention over"),
        ("falcon", [f"{SP}=2"], f"{SP}: got 2, but models of type 'falcon' compute attention in code of their own"),
        ("seeing", [f"{SP}=2"], f"{SP}: got 2, but 'qwen2_5_vl' reads images, and those models are not spread"),
        ("seeing", [f"{TP}=2"], f"{TP}: got 2, but 'qwen2_5_vl' reads images, and those models are not spread"),
        ("qwen2", [f"{TP}=2", "actor_rollout_ref.model.lora_rank=8"], f"{TP}: got 2, but actor_rollout_ref.model.lo"),
        ("qwen2", [f"{SP}=2", "actor_rollout_ref.model.use_remove_padding=false"],
         f"{SP}: got 2, but actor_rollout_ref.model.use_remove_padding is false, and ranks share only packed rows"),
        ("qwen2", [f"{SP}=2", "trainer.backend=local", "trainer.n_gpus_per_node=1"],
         "ulysses_sequence_parallel_size (2), but the run has 1 rank, which it does not divide"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(models: Path, model: str, given: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(models, model, *given)
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


def test_heads_are_shared_twice(models: Path) -> None:
    """Four heads on two tensor-parallel ranks leave two each, for two ranks of a row but not for four."""
    assert run(models, "qwen2", f"{SP}=2", f"{TP}=2").actor_rollout_ref.actor.fsdp_config.copies == 4
    with pytest.raises(ConfigError, match=r"2 attention heads on each of 2 tensor-parallel ranks \(2 / 4 = 0.50\)"):
        run(models, "qwen2", f"{SP}=4", f"{TP}=2", ranks=8)


def test_every_model_is_checked(models: Path) -> None:
    critic = ["algorithm.adv_estimator=gae", "critic.fsdp_config.tensor_parallel_size=2"]
    with pytest.raises(ConfigError, match=r"critic\.fsdp_config\.tensor_parallel_size: got 2"):
        run(models, "qwen2", *critic, f"critic.model.path={models / 'odd'}")
    run(models, "qwen2", *critic)
    reference = [f"{ACTOR}.use_kl_loss=true", "actor_rollout_ref.ref.fsdp_config.tensor_parallel_size=4"]
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.ref\.fsdp_config\.tensor_parallel_size: got 4"):
        run(models, "qwen2", *reference)
    judge = ["reward_model.enable=true", f"reward_model.model.path={models / 'odd'}"]
    with pytest.raises(ConfigError, match=r"reward_model\.fsdp_config\.tensor_parallel_size: got 2"):
        run(models, "qwen2", *judge, "reward_model.fsdp_config.tensor_parallel_size=2")
    alone = ["trainer.resource_pools.one.n_gpus=1", "trainer.role_pools.reward_model=one"]
    with pytest.raises(ConfigError, match=r"reward_model\.fsdp_config: got .*, but the run has 1 rank"):
        run(models, "qwen2", *judge, *alone, "reward_model.fsdp_config.ulysses_sequence_parallel_size=2")
    alone[1] = "trainer.role_pools.ref=one"
    with pytest.raises(ConfigError, match=r"ref\.fsdp_config: got .*1 rank.* are not given, they are the actor's"):
        run(models, "qwen2", *alone, f"{ACTOR}.use_kl_loss=true", f"{SP}=2")
    with pytest.raises(ConfigError, match=r"model\.fsdp_config\.tensor_parallel_size: got 4"):
        sft(models, {"model.fsdp_config.tensor_parallel_size": 4})
    with pytest.raises(ConfigError, match=r"model\.use_remove_padding is false"):
        sft(models, {"ulysses_sequence_parallel_size": 2, "use_remove_padding": False})


def sft(models: Path, changes: dict[str, Any]) -> SFTConfig:
    base = {"model.path": str(models / "qwen2"), "data.train_files": "rows.parquet", "trainer.n_gpus_per_node": 4}
    return load({**base, **changes}, [], SFTConfig, SFT_CHECKS, IDLE_SFT_KEYS)


def test_keys_of_verl_act(models: Path) -> None:
    """Its names for the sequence, null sizes, and a reference that is spread as the policy is."""
    config = run(
        models, "qwen2", f"{ACTOR}.ulysses_sequence_parallel_size=2", "critic.model.fsdp_config.fsdp_size=null"
    )
    policy = config.actor_rollout_ref
    assert policy.actor.fsdp_config.ulysses_sequence_parallel_size == 2
    assert policy.ref.fsdp_config.ulysses_sequence_parallel_size == 2
    assert config.critic.fsdp_config.fsdp_size == -1
    own = run(models, "qwen2", f"{SP}=2", "actor_rollout_ref.ref.ulysses_sequence_parallel_size=1")
    assert own.actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size == 1
    assert sft(models, {"ulysses_sequence_parallel_size": 2}).model.fsdp_config.ulysses_sequence_parallel_size == 2


@pytest.mark.parametrize("spread", [{"ulysses_sequence_parallel_size": 2}, {"tensor_parallel_size": 2}])
def test_every_kind_of_model_fits_or_is_refused_in_words(
    spread: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a configuration of transformers lacks: no heads, widths per layer, several models in one."""
    monkeypatch.setattr(parallel_checks, "_attention_can_be_set", lambda _: True)  # it imports the code of each
    refused = {}
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = AutoConfig.for_model(name)
        except (TypeError, ValueError, KeyError, ImportError, StrictDataclassError):  # no default of its own
            continue
        refused[name] = list(model_problems("x", FSDPConfig(**spread), config))  # type: ignore[arg-type]
    assert len(refused) > 100
    assert not refused["llama"]
    for name in ("mamba", "rwkv", "musicgen"):
        assert len(refused[name]) == 1
        assert refused[name][0].endswith(f"got 2, but '{name}' has no one number of attention heads: wanted 1")
    if "tensor_parallel_size" in spread:
        assert not refused["qwen3_5_moe_text"]


def test_columns_of_every_layer_are_counted() -> None:
    tp = FSDPConfig(tensor_parallel_size=2)
    config = AutoConfig.for_model("gemma3n_text", intermediate_size=[16, 15, 16], num_hidden_layers=3)
    assert any("15 columns in its MLPs (intermediate_size) (15 / 2" in told for told in model_problems("x", tp, config))
    config = AutoConfig.for_model("qwen3_5_moe_text", shared_expert_intermediate_size=17)
    (told,) = model_problems("x", tp, config)
    assert "17 columns in its shared experts (shared_expert_intermediate_size)" in told

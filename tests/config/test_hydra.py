"""Recipes and overrides as Hydra's users write them: `defaults` lists, search folders, references, deletions."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipes import overrides, write

from agentrl.config import RunConfig, load_config
from agentrl.config.recipe_files import named_recipe
from agentrl.errors import ConfigError

AR = "actor_rollout_ref."


def load(folder: Path, text: str, *more: str) -> RunConfig:
    return load_config(write(folder, "run.yaml", text), overrides(*more))


def refused(folder: Path, text: str, *more: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *more)
    (problem,) = caught.value.problems
    return problem


def test_files_of_a_group_fill_their_section_in_order(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "data: {seed: 1}\ncritic: {ppo_epochs: 5}\n")
    write(tmp_path, "actor/dp_actor.yaml", "defaults: [../optim@optim: adam, common, _self_]\nppo_epochs: 2\n")
    write(tmp_path, "actor/common.yaml", "ppo_epochs: 9\nentropy_coeff: 0.5\n")
    write(tmp_path, "optim/adam.yaml", "lr: 3e-4\n")
    write(tmp_path, "trainer.yaml", "seed: 8\n")
    write(tmp_path, "critic/small.yaml", "ppo_epochs: 7\n")
    text = (
        "defaults:\n  - base\n  - actor@actor_rollout_ref.actor: dp_actor\n  - critic: small\n  - trainer@trainer\n"
        "  - _self_\n  - optional data: mine\n  - rollout: null\ndata: {seed: 4}\n"
    )
    config = load(tmp_path, text)
    actor = config.actor_rollout_ref.actor
    assert (config.data.seed, config.critic.ppo_epochs, config.trainer.seed) == (4, 7, 8)
    assert (actor.ppo_epochs, actor.entropy_coeff, actor.optim.lr) == (2, 0.5, 3e-4)
    write(tmp_path, "data/mine.yaml", "seed: 6\n")
    assert load(tmp_path, text).data.seed == 6


def test_a_file_may_say_itself_where_it_belongs(tmp_path: Path) -> None:
    write(tmp_path, "experiment/long.yaml", "# @package _global_\ndata: {seed: 5}\n")
    write(tmp_path, "more/x.yaml", "seed: 3\n")
    config = load(tmp_path, "defaults: [experiment: long, more@_global_.trainer: x]\n")
    assert (config.data.seed, config.trainer.seed) == (5, 3)


def test_several_files_of_a_group_and_an_override_of_what_is_included(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "defaults: [critic: small, _self_]\n")
    for number, name in enumerate(("small", "large", "wide")):
        write(tmp_path, f"critic/{name}.yaml", f"ppo_epochs: {number + 1}\nmodel: {{path: /{name}}}\n")
    more = ["algorithm.adv_estimator=gae"]
    assert load(tmp_path, "defaults: [critic: [wide, small]]\n", *more).critic.ppo_epochs == 1
    assert load(tmp_path, "defaults: [base, override critic: large]\n", *more).critic.ppo_epochs == 2
    assert load(tmp_path, "defaults: [base]\n", *more, "critic@critic=wide").critic.ppo_epochs == 3
    assert load(tmp_path, "data: {seed: 1}\n", *more, "+critic@critic=wide").critic.model.path == "/wide"
    assert refused(tmp_path, "data: {seed: 1}\n", "critic@critic=wide").startswith(
        "critic=wide: no `defaults` list has"
    )
    assert refused(tmp_path, "", "hydra.searchpath=[a").startswith("override 'hydra.searchpath=[a': ")
    assert load(tmp_path, "", f"{AR}actor@x=dp_actor", "hydra/job_logging=disabled").data.train_batch_size == 16
    assert "an entry for 'crtic'" in refused(tmp_path, "defaults: [base, override crtic: large]\n")


@pytest.mark.parametrize("given", ["file://{}", "{}"])
def test_files_are_looked_up_in_the_search_path(tmp_path: Path, given: str, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "there/ppo_trainer.yaml", "defaults: [actor@actor_rollout_ref.actor: dp_actor]\ndata: {seed: 7}\n")
    place = given.format(tmp_path / "there")
    config = load(tmp_path, f"hydra: {{searchpath: ['{place}']}}\ndefaults: [ppo_trainer, _self_]\n")
    assert config.data.seed == 7
    assert caplog.messages[:1] == ["agentrl's own defaults replace verl's 'dp_actor'"]
    config = load(tmp_path, "defaults: [ppo_trainer]\n", f"hydra.searchpath=[{place}]")
    assert config.data.seed == 7


def test_verl_s_own_files_mean_agentrl_s_defaults(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (
        "hydra:\n  searchpath:\n    - file://verl/trainer/config\n  run: {dir: outputs}\n"
        "defaults:\n  - ppo_trainer\n  - actor@actor_rollout_ref.actor: dp_actor\n"
        "  - /ref@actor_rollout_ref.ref: dp_ref\n"
        "  - override /hydra/job_logging: disabled\n  - _self_\ndata: {seed: 4}\n"
    )
    assert load(tmp_path, text).data.seed == 4
    assert "agentrl's own defaults replace verl's 'ppo_trainer', 'dp_actor', 'dp_ref'" in caplog.messages
    assert sum("verl's" in message for message in caplog.messages) == 1
    assert "hydra.defaults and hydra.run.dir have no effect here" in caplog.text


def test_files_of_a_checkout_of_verl_are_replaced_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tmp_path / "verl" / "trainer" / "config"
    write(config, "ppo_trainer.yaml", "data: {seed: 9, no_such_key: 1}\n")
    write(tmp_path, "verl/__init__.py", "")
    text = f"hydra: {{searchpath: ['file://{config}']}}\ndefaults: [ppo_trainer, _self_]\n"
    assert load(tmp_path, text).data.seed == 1
    load_config(config / "ppo_trainer.yaml", overrides())
    assert set(caplog.messages) == {"agentrl's own defaults replace verl's 'ppo_trainer'"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("defaults: [ppo_traner]", "Did you mean 'ppo_trainer'?"),
        ("defaults: [actor@actor_rollout_ref.actor: dp_actr]", "Did you mean 'dp_actor'?"),
        ("defaults: [critic: smal]", "Did you mean 'critic/small'?"),
        ("defaults: [nothing_like_it]", "nothing_like_it does not exist"),
        ("defaults: [3]", "defaults: got 3, wanted a list of recipe names, each `NAME` or `FOLDER@section: NAME`"),
        ("defaults: [{a: b, c: d}]", "wanted a list of recipe names"),
        ("defaults: [maybe critic: small]", "wanted a list of recipe names"),
        ("defaults: [critic: [3]]", "wanted a list of recipe names"),
    ],
)
def test_an_entry_that_is_not_found_or_none(tmp_path: Path, text: str, problem: str) -> None:
    write(tmp_path, "critic/small.yaml", "ppo_epochs: 1\n")
    found = refused(tmp_path, text)
    assert found.startswith(f"{tmp_path / 'run.yaml'}: defaults: ")
    assert problem in found


def test_the_file_in_the_working_folder_comes_before_one_beside_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "here/base.yaml", "data: {seed: 1}\n")
    write(tmp_path, "there/base.yaml", "data: {seed: 2}\n")
    monkeypatch.chdir(tmp_path / "here")
    assert load(tmp_path / "there", "defaults: [base]\n").data.seed == 1


def test_a_key_is_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "data: {seed: 4}\ncritic: {optim: {lr: 3.0, eps: 1.0}}\nactor_rollout_ref: {model: {lora_rank: 8}}\n"
    config = load(
        tmp_path, text, "~data.seed", "~critic.optim", f"~{AR}model.lora_rank=8", "algorithm.adv_estimator=gae"
    )
    assert (config.data.seed, config.critic) == (1, RunConfig().critic)
    assert caplog.messages == []
    load(tmp_path, "data: {seed: 4}\n", "~trainer.seed")
    assert caplog.messages == [
        "override '~trainer.seed' changes nothing: trainer.seed was not given, so its default counts anyway"
    ]
    assert refused(tmp_path, text, f"~{AR}model.lora_rank", "~data.seed=5") == (
        "override '~data.seed=5': deletes 5 only, but data.seed is 4"
    )
    assert "override '~data.sed': unknown key. Did you mean 'data.seed'?" in refused(tmp_path, "", "~data.sed")


def test_references_of_omegaconf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_SEED", "11")
    text = (
        "data:\n"
        "  seed: ${oc.select:trainer.seed, 3}\n"
        "  max_prompt_length: ${oc.select:data.no_such_key,77}\n"
        "  max_response_length: ${.max_prompt_length}\n"
        "  val_batch_size: ${oc.select:data.nothing,null}\n"
        "  train_batch_size: ${oc.select:no.such, ${oc.env:NOT_SET_ANYWHERE, 16}}\n"
        "actor_rollout_ref:\n"
        "  model: {path: /m, lora_rank: 0, enable_gradient_checkpointing: '${oc.decode:true}'}\n"
        "  actor: {shuffle: '${oc.select:no.such,true}', ppo_epochs: '${..rollout.n}'}\n"
        "  rollout: {n: 4, stop: '${oc.select:no.such,[a,b]}', ignore_eos: '${oc.select:no.such,False}'}\n"
        "algorithm: {adv_estimator: '${oc.env:NOT_SET_ANYWHERE,grpo}'}\n"
        "trainer:\n"
        "  seed: ${oc.env:RUN_SEED}\n"
        "  experiment_name: x-${actor_rollout_ref.model.lora_rank}-${oc.select:trainer.nowhere,'a b'}\n"
        "  total_epochs: ${oc.select:actor_rollout_ref.model.lora_rank,5}\n"
    )
    config = load_config(write(tmp_path, "run.yaml", text), ["data.train_files=/x.parquet", "trainer.total_epochs=2"])
    data, policy = config.data, config.actor_rollout_ref
    assert (data.seed, data.max_prompt_length, data.max_response_length) == (11, 77, 77)
    assert (data.val_batch_size, data.train_batch_size) == (None, 16)
    assert (policy.actor.shuffle, policy.actor.ppo_epochs, policy.rollout.stop) == (True, 4, ["a", "b"])
    assert (policy.rollout.ignore_eos, policy.model.enable_gradient_checkpointing) == (False, True)
    assert config.trainer.experiment_name == "x-0-a b"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("${oc.selct:a,b}", "is no reference that agentrl knows. Did you mean 'oc.select'?"),
        ("${oc.select:trainer.seed}", "trainer.seed: ${...} refers to itself: trainer.seed -> trainer.seed"),
        ("${.sed}", "'${trainer.sed}' does not name a key. Did you mean 'trainer.seed'?"),
        ("${oc.env:NOT_SET_ANYWHERE}", "the environment variable NOT_SET_ANYWHERE is not set"),
    ],
)
def test_references_that_lead_nowhere(tmp_path: Path, value: str, problem: str) -> None:
    assert problem in refused(tmp_path, f"trainer: {{seed: '{value}'}}\n")


def test_empty_sections_ask_for_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (
        "ray_init: {num_cpus: null, timeline_json_file: null}\nglobal_profiler: null\nray_kwargs: null\ncritic: null\n"
        "actor_rollout_ref: {actor: {profiler: null, checkpoint: {}}, rollout: {engine_kwargs: {}, trace: null}}\n"
    )
    load(tmp_path, text)
    assert all(" no effect here: " in message for message in caplog.messages)
    assert "global_profiler" in caplog.text
    assert "unknown key. Did you mean" not in caplog.text
    assert "globl_profiler: unknown key" in refused(tmp_path, "globl_profiler: null\n")


def test_keys_with_dots_in_a_file(tmp_path: Path) -> None:
    text = (
        "actor_rollout_ref.actor.optim.lr: 1e-3\nactor_rollout_ref.actor: {ppo_epochs: 2}\ncritic.optim: {lr: 2e-3}\n"
    )
    config = load(tmp_path, text)
    assert (config.actor_rollout_ref.actor.optim.lr, config.actor_rollout_ref.actor.ppo_epochs) == (1e-3, 2)
    assert config.critic.optim.lr == 2e-3
    assert refused(tmp_path, "data.seed: 1\ndata: {seed: 2}\n").endswith("run.yaml: key 'data.seed' is given twice")


def test_classes_of_another_package_are_not_needed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(tmp_path, "_target_: verl.x.Y\ndata: {_target_: verl.x.Data, seed: 3}\n")
    assert caplog.messages == [
        "_target_ and data._target_ have no effect here: every section has one kind, so it needs no class"
    ]


OTHERS = {
    "axolotl": "base_model: m\ndatasets: [{path: x}]\nsequence_len: 4096\nmicro_batch_size: 2\nnum_epochs: 1\n",
    "TRL": "model_name_or_path: m\ndataset_name: d\nlearning_rate: 1e-6\nnum_generations: 8\noutput_dir: o\n",
    "OpenRLHF": "pretrain: m\nprompt_data: d\nrollout_batch_size: 8\nadvantage_estimator: gae\nzero_stage: 3\n",
    "LLaMA-Factory": "stage: sft\nfinetuning_type: lora\ntemplate: qwen\ncutoff_len: 9\nlearning_rate: 1e-4\n",
    "NeMo RL": "policy: {model_name: m}\ngrpo: {num_prompts_per_step: 3}\nloss_fn: {a: 1}\ncluster: {num_nodes: 1}\n",
    "slime": "hf_checkpoint: m\nprompt_data: d\nrollout_batch_size: 3\nn_samples_per_prompt: 8\nnum_rollout: 9\n",
    "SkyRL": "data: {train_data: d}\ntrainer: {policy: {a: 1}}\ngenerator: {backend: vllm}\nenvironment: {a: 1}\n",
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_recipe_of_another_trainer_is_one_message(tmp_path: Path, name: str) -> None:
    problem = refused(tmp_path, OTHERS[name])
    assert f"is the recipe of another trainer ({name})" in problem
    assert "A recipe has the sections data, actor_rollout_ref, critic" in problem
    if name in ("axolotl", "TRL", "OpenRLHF"):
        assert "is actor_rollout_ref.model.path" in problem


def test_what_is_no_recipe_at_all_is_one_message(tmp_path: Path) -> None:
    assert "is no recipe of agentrl: 4 of its 4 keys (a, b, c, d) are" in refused(tmp_path, "{a: 1, b: 1, c: 1, d: 1}")
    with pytest.raises(ConfigError) as caught:  # typos in a recipe are told one by one
        load(tmp_path, "data: {seed: 1, shuffel: true, val_file: x, train_batch_size: 16}\n")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "vllm",
            "vLLM is not installed here (pip install vllm, or name a Python that has it in rollout.server.python)",
        ),
        ("trtllm", "the engines here are SGLang, vLLM, hf and the embedded one"),
    ],
)
def test_an_engine_of_verl_that_is_absent(
    tmp_path: Path, name: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(tmp_path, "", f"{AR}rollout.name={name}").actor_rollout_ref.rollout.name == "auto"
    assert caplog.messages == [f"{AR}rollout.name: {name} is read as auto: {reason}"]
    caplog.clear()
    recipe = f"actor_rollout_ref: {{rollout: {{name: {name}}}}}\n"
    assert load(tmp_path, recipe, f"{AR}rollout.name=embedded").actor_rollout_ref.rollout.name == "embedded"
    assert caplog.messages == []


def test_an_engine_of_verl_that_is_present(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(tmp_path, "", f"{AR}rollout.name=hf").actor_rollout_ref.rollout.name == "hf"
    monkeypatch.setattr("agentrl.config.engine_choice.vllm_installed", lambda: True)
    assert load(tmp_path, "", f"{AR}rollout.name=vllm").actor_rollout_ref.rollout.name == "vllm"
    assert caplog.messages == []


def test_the_recipe_that_config_path_and_name_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    assert named_recipe("conf", None) == Path("conf/ppo_trainer")  # holds none: agentrl's defaults
    one = write(tmp_path, "conf/gsm8k.yaml", "data: {seed: 3}\n")
    assert named_recipe("conf", None) == one.relative_to(tmp_path)
    assert named_recipe("conf", "other") == Path("conf/other")
    write(tmp_path, "conf/search.yaml", "")
    with pytest.raises(
        ConfigError, match=r"conf has no ppo_trainer.yaml: choose one by --config-name \(gsm8k, search\)"
    ):
        named_recipe("conf", None)
    write(tmp_path, "conf/ppo_trainer.yaml", "")
    assert named_recipe("conf", None) == Path("conf/ppo_trainer")
    assert named_recipe(None, "grpo") == Path("grpo")
    with pytest.raises(ConfigError, match="--config-path: got 'cnf', which is no folder"):
        named_recipe("cnf", None)


def test_megatron_is_one_sentence(tmp_path: Path) -> None:
    section = "megatron: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 4, use_mbridge: false}"
    text = f"defaults: [ppo_megatron_trainer, _self_]\nactor_rollout_ref: {{actor: {{{section}}}}}\n"
    told = refused(tmp_path, text)
    assert "megatron.pipeline_model_parallel_size: got 2 and 4, but Megatron is not supported" in told
    actor = "actor_rollout_ref.actor"
    assert f"Set {actor}.strategy=fsdp2 {actor}.fsdp_config.tensor_parallel_size=2, and leave out pipeline" in told


MEGATRON = [
    ("critic.strategy=megatron critic.megatron.context_parallel_size=4 critic.megatron.param_offload=True", [
        "critic.strategy and critic.megatron.context_parallel_size and critic.megatron.param_offload: got 'megatron' ",
        "Set critic.strategy=fsdp2 critic.fsdp_config.ulysses_sequence_parallel_size=4 critic.fsdp_config.param_",
    ]),
    ("actor_rollout_ref.ref.megatron.optimizer_offload=true actor_rollout_ref.ref.megatron.sequence_parallel=true", [
        "Set actor_rollout_ref.ref.strategy=fsdp2 actor_rollout_ref.ref.fsdp_config.optimizer_offload=true, and leave ",
        "leave out sequence_parallel (ulysses_sequence_parallel_size shares rows)",
    ]),
    ("actor_rollout_ref.actor.strategy=megatron", [
        "actor_rollout_ref.actor.strategy: got 'megatron', but Megatron is not supported",
        "actor_rollout_ref.actor.fsdp_config.tensor_parallel_size and",
    ]),
    ("actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full", [
        "Set actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.model.enable_gradient_checkpointing=true",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "parts"), MEGATRON)
def test_megatron_s_values_are_translated(command: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides(*command.split()))
    (problem,) = caught.value.problems
    assert all(part in problem for part in parts), problem

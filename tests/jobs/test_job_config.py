"""The YAML of the field, and every key of a job: it acts in the run behind the job, or its user is told why not."""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config import load_config
from agentrl.config.job_run import load_evaluation, load_generation, run_of, scoring_of
from agentrl.config.jobs import EvalConfig, GenerationConfig, GenerationRolloutConfig
from agentrl.config.loader import load as load_any
from agentrl.config.rollout import RolloutConfig
from agentrl.config.schema import section_of, walk
from agentrl.config.sft import SFTConfig
from agentrl.errors import ConfigError

GENERATION = """
trainer: {nnodes: 1, n_gpus_per_node: 8, device: cpu}
data:
  path: ~/data/rlhf/math/test.parquet
  prompt_key: prompt
  n_samples: 5
  output_path: /tmp/out/responses.parquet
  batch_size: 128
model: {path: ~/models/Qwen2-7B-Instruct, external_lib: null}
rollout:
  name: vllm
  mode: sync
  temperature: 1.0
  top_k: 50
  top_p: 0.7
  prompt_length: 1536
  response_length: 512
  dtype: bfloat16
  gpu_memory_utilization: 0.5
  ignore_eos: False
  enforce_eager: True
  free_cache_engine: True
  load_format: dummy_dtensor
  tensor_model_parallel_size: 1
  max_num_batched_tokens: 8192
  max_num_seqs: 1024
  log_prob_micro_batch_size_per_gpu: 8
  do_sample: True
  disable_log_stats: True
  enable_chunked_prefill: True
  n: 1
  calculate_log_probs: False
actor:
  strategy: fsdp
  ulysses_sequence_parallel_size: 1
  entropy_from_logits_with_chunking: False
  entropy_checkpointing: False
  fsdp_config: {fsdp_size: -1, forward_prefetch: False}
ray_init: {num_cpus: null, timeline_json_file: null}
"""
EVALUATION = """
data:
  path: responses.parquet
  prompt_key: prompt
  response_key: responses
  data_source_key: data_source
  reward_model_key: reward_model
custom_reward_function: {path: null, name: compute_score}
ray_init: {num_cpus: null, timeline_json_file: null}
"""
BASE = {
    "model.path": "model",
    "data.path": "rows.parquet",
    "data.output_path": "out.parquet",
    "trainer.device": "cpu",
    "rollout.name": "embedded",
}
LOOP = {"rollout.agent.default_agent_loop": "tool_agent"}
OWN: dict[str, Any] = {
    "data.path": ["other.parquet"],
    "data.apply_chat_template_kwargs": {"enable_thinking": False},
    "model.chat_template": "{{ messages }}",
    "rollout.name": "auto",
    "rollout.prompt_length": 700,
    "rollout.response_length": 700,
    "rollout.dtype": "bfloat16",
    "rollout.server.addresses": ["http://127.0.0.1:1"],
    "rollout.multi_turn.format": "auto",
    "rollout.multi_turn.tool_config_path": "tools/calculator.yaml",
    "rollout.multi_turn.interaction_config_path": "interactions/gsm8k.yaml",
    "rollout.agent.default_agent_loop": "react_agent",
    "trainer.device": "auto",
    "trainer.nnodes": 2,
    "plugins": ["math"],
}
IN_THE_JOB = {
    *(f"data.{name}" for name in ("prompt_key", "output_path", "response_key", "batch_size", "max_samples")),
    *("data.n_samples", "data.filter_overlong_prompts"),
}
"""Read by the job itself; test_generate.py and test_evaluate.py see their effects."""
KEYS = [key for key, field in walk(GenerationConfig) if section_of(field) is None]


def told(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def test_the_generation_yaml_of_the_field_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "generation.yaml"
    file.write_text(GENERATION)
    job = load_generation(file)
    run = run_of(job)
    rollout = run.actor_rollout_ref.rollout
    assert job.data.n_samples == 5
    assert (rollout.val_kwargs.temperature, rollout.val_kwargs.top_k, rollout.val_kwargs.top_p) == (1.0, 50, 0.7)
    assert (rollout.prompt_length, rollout.response_length, rollout.name, rollout.max_num_seqs) == (
        1536,
        512,
        "auto",
        1024,
    )
    for text in (
        "rollout.mode has no effect here: generation is always asynchronous",
        "rollout.log_prob_micro_batch_size_per_gpu have no effect here: nothing is trained",
        "rollout.name has no effect here: agentrl does not run vllm",
        "trainer.n_gpus_per_node has no effect here: the engines run on the CPU",
    ):
        assert text in told(caplog)


def test_the_evaluation_yaml_of_the_field_is_read(tmp_path: Path) -> None:
    file = tmp_path / "evaluation.yaml"
    file.write_text(EVALUATION)
    job = load_evaluation(file)
    assert job.data.path == "responses.parquet"
    assert (job.data.response_key, job.data.reward_model_key) == ("responses", "reward_model")
    assert scoring_of(job).custom_reward_function.path is None


def test_keys_may_be_written_as_in_training() -> None:
    job = load_generation(
        {**BASE, "actor_rollout_ref.rollout.top_k": 7, "actor_rollout_ref.model.trust_remote_code": True}
    )
    assert job.rollout.top_k == 7
    assert job.model.trust_remote_code


def changed(key: str, model: type[Any]) -> Any:
    """Another value than the key has."""
    if key in OWN:
        return OWN[key]
    field = dict(walk(model))[key]
    default = field.get_default(call_default_factory=True)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1 if default >= 0 else 5
    if isinstance(default, float):
        return default / 2 if default else 0.25
    if isinstance(default, list):
        return [5] if "ids" in key else ["x"]
    if isinstance(default, dict):
        return {"x": "tools/calculator.yaml"}
    choices = re.findall(r"'(\w+)'", str(field.annotation))
    if choices:
        return next(choice for choice in choices if choice != default)
    return 5 if "int" in str(field.annotation) else 0.5 if "float" in str(field.annotation) else "x"


@cache
def run_behind(has_loop: bool) -> dict[str, Any]:
    return run_of(load_generation({**BASE, **(LOOP if has_loop else {})})).model_dump()


def effect(key: str, has_loop: bool, caplog: pytest.LogCaptureFixture) -> str:
    """What a user of another value meets: `told`, `refused`, `acts`, or nothing."""
    caplog.clear()
    value = changed(key, GenerationConfig)
    try:
        job = load_generation({**BASE, **(LOOP if has_loop else {}), key: value})
    except ConfigError as error:
        return "refused" if key.rpartition(".")[2] in str(error) else str(error)
    if key in told(caplog):
        return "told"
    return "acts" if key in IN_THE_JOB or run_of(job).model_dump() != run_behind(has_loop) else ""


@pytest.mark.parametrize("key", KEYS)
def test_a_key_acts_or_is_told(key: str, caplog: pytest.LogCaptureFixture) -> None:
    wanted = {"told", "refused", "acts"}
    plain, with_loop = effect(key, False, caplog), effect(key, True, caplog)
    if key not in ("data.text_prompts", "data.facts_key"):
        assert {plain, with_loop} <= wanted, f"{key} is accepted in silence and changes nothing"


@pytest.mark.parametrize("key", ["data.text_prompts", "data.facts_key"])
def test_a_key_that_one_kind_of_job_reads_is_told_in_the_other(key: str, caplog: pytest.LogCaptureFixture) -> None:
    load_generation({**BASE, **({} if key == "data.facts_key" else LOOP), key: changed(key, GenerationConfig)})
    assert f"{key} has no effect here" in told(caplog)


def test_without_a_model_an_evaluation_tells_what_generates_nothing(caplog: pytest.LogCaptureFixture) -> None:
    load_evaluation({"data.path": "x.parquet", "data.n_samples": 3, "rollout.top_p": 0.5, "trainer.seed": 4})
    assert "no model is given (--model), so that nothing is generated" in told(caplog)


def test_greedy_responses_are_told_to_be_equal(caplog: pytest.LogCaptureFixture) -> None:
    job = load_generation({**BASE, "rollout.do_sample": False, "data.n_samples": 3})
    assert "the responses of a prompt are all equal" in told(caplog)
    assert not run_of(job).actor_rollout_ref.rollout.val_kwargs.do_sample
    assert load_generation({**BASE, "rollout.temperature": 0}).is_greedy


def test_a_gpu_machine_starts_as_many_engines_as_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.config.job_run.uses_cuda", lambda run: True)
    job = GenerationConfig.model_validate(
        {"rollout": {"tensor_model_parallel_size": 2}, "trainer": {"n_gpus_per_node": 8, "device": "cpu"}}
    )
    assert run_of(job).actor_rollout_ref.rollout.server.launch == 4
    job = GenerationConfig.model_validate({"rollout": {"server": {"launch": 3}}, "trainer": {"n_gpus_per_node": 8}})
    assert run_of(job).actor_rollout_ref.rollout.server.launch == 3


@pytest.mark.parametrize(
    ("load", "changes", "message"),
    [
        (load_generation, {"data.n_sample": 3}, "data.n_sample: unknown key (given 3). Did you mean 'data.n_samples'?"),
        (load_generation, {"data.output_path": "x.json"}, "wanted a file that ends with .parquet"),
        (
            load_generation,
            {"rollout.server.addresses": ["h:1"]},
            "rollout.server.addresses: got 'h:1', wanted http://host",
        ),
        (load_generation, {"trainer.nnodes": 2}, "name all in rollout.server.addresses"),
        (load_generation, {"data.path": None}, "data.path: not given, wanted a parquet file"),
        (load_evaluation, {"data.output_path": "x.png"}, "wanted a file that ends with .json"),
        (load_evaluation, {"reward_model.enable": True}, "reward_model.enable: got true, but a job scores with score"),
        (load_evaluation, {"eval.k": [0]}, "eval.k: got [0], wanted whole numbers of at least 1"),
    ],
)
def test_what_cannot_work_is_one_message(load: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({**BASE, **({"data.output_path": None} if load is load_evaluation else {}), **changes})
    assert message in str(caught.value)
    assert "actor_rollout_ref" not in str(caught.value)


RECIPES = {
    "train": "data: {train_files: a}\nalgorithm: {adv_estimator: grpo}\nactor_rollout_ref: {rollout: {n: 8}}",
    "sft": "data: {train_files: a}\nmodel: {path: m}\noptim: {lr: 1.0e-5}",
    "generate": "data: {path: a, output_path: b.parquet}\nmodel: {path: m}\nrollout: {temperature: 1.0}",
    "eval": EVALUATION,
}
LOAD = {
    "train": load_config,
    "sft": partial(load_any, overrides=(), model=SFTConfig),
    "generate": load_generation,
    "eval": load_evaluation,
}


@pytest.mark.parametrize("command", RECIPES)
@pytest.mark.parametrize("reader", LOAD)
def test_a_recipe_of_another_command_is_one_sentence(command: str, reader: str, tmp_path: Path) -> None:
    if command == reader or (command, reader) == ("generate", "eval"):  # an evaluation may generate first
        return
    file = tmp_path / "job.yaml"
    file.write_text(RECIPES[command])
    with pytest.raises(ConfigError) as caught:
        LOAD[reader](file)
    assert len(caught.value.problems) == 1
    assert f"job.yaml: is a recipe of `agentrl {command}` (it has " in str(caught.value)
    assert f"wanted the sections of `agentrl {reader}`: data, " in str(caught.value)


@pytest.mark.parametrize("reader", LOAD)
def test_rows_and_run_folders_are_no_recipe(reader: str, tmp_path: Path) -> None:
    rows, run = tmp_path / "rows.parquet", tmp_path / "run"
    pq.write_table(pa.table({"prompt": ["a"]}), rows)
    run.mkdir()
    (run / "config.yaml").touch()
    with pytest.raises(ConfigError, match=r"is a parquet file, wanted YAML or JSON; a key names rows"):
        LOAD[reader](rows)
    with pytest.raises(ConfigError, match=rf"is a folder, wanted a file\. Did you mean {run / 'config.yaml'}\?"):
        LOAD[reader](run)


def test_a_job_has_every_key_of_rollouts() -> None:
    assert set(RolloutConfig.model_fields) <= set(GenerationRolloutConfig.model_fields)
    assert set(GenerationConfig.model_fields) <= set(EvalConfig.model_fields)

"""A job as the run that its engines and agent loops know, the checks of jobs, and their keys that do nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from agentrl.config import checks, machine_checks
from agentrl.config.engine_choice import INSTALL_VLLM, vllm_installed, vllm_is_named
from agentrl.config.idle import Idle
from agentrl.config.idle_keys import IDLE_KEYS
from agentrl.config.jobs import EvalConfig, GenerationConfig
from agentrl.config.loader import load
from agentrl.config.machine import OWN_ENGINES, engine_name, uses_cuda
from agentrl.config.reward_checks import IDLE_JUDGE_KEYS, check_judge
from agentrl.config.reward_model_checks import OF_REWARD_MODELS
from agentrl.config.rollout import RolloutConfig, ToolAgentLimits
from agentrl.config.root import RunConfig
from agentrl.errors import AgentRLError, ConfigError

RAW_TEXT_LOOP = "raw_text"
"""Name of the agent loop that continues a text."""
RAW_TEXT_MODULE = "agentrl.rollout.raw_text"
_ROLLOUT = "actor_rollout_ref.rollout."
_TRAINING_NAMES = {
    "data.max_prompt_length": "rollout.prompt_length",
    "data.max_response_length": "rollout.response_length",
    "actor_rollout_ref.": "",
}
"""How messages about a run name the keys of a job."""


def load_generation(source: str | Path | Mapping[str, Any] | None, overrides: Sequence[str] = ()) -> GenerationConfig:
    """Read a job of `agentrl generate`.

    Raises:
        ConfigError: lists every problem; or the file is a recipe of another command.
    """
    return load(source, overrides, GenerationConfig, (check_generation,), IDLE_JOB_KEYS)


def load_evaluation(source: str | Path | Mapping[str, Any] | None, overrides: Sequence[str] = ()) -> EvalConfig:
    """Read a job of `agentrl eval`.

    Raises:
        ConfigError: lists every problem; or the file is a recipe of another command.
    """
    return load(source, overrides, EvalConfig, (check_evaluation,), IDLE_EVAL_KEYS)


def run_of(job: GenerationConfig, *, raw_text: bool = False) -> RunConfig:
    """The run whose validation generates what the job asks for; it scores nothing.

    Args:
        job: the job.
        raw_text: prompts are texts that the model continues.
    """
    rollout = job.rollout
    common = rollout.model_dump(include=set(RolloutConfig.model_fields))
    sampling = {name: common[name] for name in ("temperature", "top_p", "top_k", "min_p")}
    common |= {
        "name": "auto" if _lacks_vllm(job) else rollout.name,
        "n": 1,
        "temperature": rollout.temperature or 1.0,
        "val_kwargs": {**sampling, "n": 1, "do_sample": not job.is_greedy},
    }
    model = job.model.model_dump()
    plugins = list(job.plugins)
    if raw_text:
        common["agent"]["default_agent_loop"] = RAW_TEXT_LOOP
        model["chat_template"] = model["chat_template"] or _NO_TEMPLATE
        plugins.append(RAW_TEXT_MODULE)
    if not job.has_loop:
        common["multi_turn"] = ToolAgentLimits().model_dump()
    run = RunConfig.model_validate(
        {
            "data": {"val_files": job.data.path, "apply_chat_template_kwargs": job.data.apply_chat_template_kwargs},
            "actor_rollout_ref": {"model": model, "rollout": common},
            "reward_model": {"combine": {"outcome": 0.0}},
            "trainer": {
                **{name: getattr(job.trainer, name) for name in ("backend", "device", "seed", "deterministic")},
                "val_only": True,
            },
            "ray_init": job.ray_init.model_dump(),
            "plugins": plugins,
        }
    )
    if "launch" not in rollout.server.model_fields_set and not rollout.server.addresses and uses_cuda(run):
        gpus = job.trainer.n_gpus_per_node // rollout.tensor_model_parallel_size
        run.actor_rollout_ref.rollout.server.launch = max(1, gpus)
    return run


def _lacks_vllm(job: GenerationConfig) -> bool:
    """Whether the job names vLLM on a machine that has none."""
    server = job.rollout.server
    return job.rollout.name == "vllm" and not vllm_is_named(server.addresses, server.python) and not vllm_installed()


def scoring_of(job: EvalConfig) -> RunConfig:
    """The run whose score function scores the job's responses."""
    return RunConfig.model_validate(
        {
            "custom_reward_function": job.custom_reward_function.model_dump(),
            "reward_model": job.reward_model.model_dump(),
            "plugins": job.plugins,
        }
    )


@contextmanager
def own_names() -> Iterator[None]:
    """Errors about a run name the keys of the job: `rollout.top_k`, not `actor_rollout_ref.rollout.top_k`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError([_own(line) for line in error.problems]) from error
    except AgentRLError as error:
        if type(error).__reduce__ is AgentRLError.__reduce__ and _own(str(error)) != str(error):
            raise type(error)(_own(str(error))) from error
        raise


def check_generation(job: GenerationConfig) -> Iterator[str]:
    """A model, prompts and an output are given, and the run behind the job can work."""
    needed = {"model.path": job.model.path, "data.path": job.data.path, "data.output_path": job.data.output_path}
    wanted = {"model.path": "a model folder", "data.path": "a parquet file", "data.output_path": "a file to write"}
    yield from (f"{key}: not given, wanted {wanted[key]}" for key, value in needed.items() if not value)
    output = job.data.output_path
    if output is not None and not output.endswith(".parquet"):
        yield f"data.output_path: got '{output}', wanted a file that ends with .parquet"
    yield from _check_run(job)


def check_evaluation(job: EvalConfig) -> Iterator[str]:
    """Responses are given, and with a model the run that generates them can work."""
    if not job.data.path:
        yield "data.path: not given, wanted a parquet file with responses (or with prompts, for --model)"
    output = job.data.output_path
    if output is not None and not output.endswith(".json"):
        yield f"data.output_path: got '{output}', wanted a file that ends with .json"
    if job.eval.k is not None and (not job.eval.k or min(job.eval.k) < 1):
        yield f"eval.k: got {job.eval.k}, wanted whole numbers of at least 1"
    if job.reward_model.enable:
        yield (
            "reward_model.enable: got true, but a job scores with score functions only: the reward model scores "
            "validation in `agentrl train` with trainer.val_only=true"
        )
    yield from check_judge(scoring_of(job))
    if job.model.path:
        yield from _check_run(job)


def _check_run(job: GenerationConfig) -> Iterator[str]:
    if job.trainer.nnodes > 1:
        yield (
            f"trainer.nnodes: got {job.trainer.nnodes}, but a job starts engines on this machine only: start them on "
            "the others (`agentrl serve engine`, or SGLang) and name all in rollout.server.addresses"
        )
    run = run_of(job)
    for check in _RUN_CHECKS:
        yield from map(_own, check(run))


_RUN_CHECKS: tuple[Callable[[RunConfig], Iterator[str]], ...] = (
    checks.check_files,
    checks.check_plugins,
    checks.check_tool_cache,
    machine_checks.check_backend,
    machine_checks.check_ray,
    machine_checks.check_device,
    machine_checks.check_servers,
    machine_checks.check_context,
)


def _own(text: str) -> str:
    for theirs, own in _TRAINING_NAMES.items():
        text = text.replace(theirs, own)
    return text


def _of_engines() -> Iterator[Idle[GenerationConfig]]:
    """The rows of training's table about engines and conversations."""
    for idle in IDLE_KEYS:
        keys = tuple(key.removeprefix("actor_rollout_ref.") for key in idle.keys if key.startswith(_ROLLOUT))
        if keys and "val_only" not in idle.reason:
            but = tuple(key.removeprefix("actor_rollout_ref.") for key in idle.but)
            reason = re.sub(r"\{actor_rollout_ref\.", "{", idle.reason)
            yield Idle(keys, lambda job, when=idle.when: when(run_of(job)), reason, but)  # type: ignore[misc]


IDLE_JOB_KEYS: tuple[Idle[GenerationConfig], ...] = (
    Idle(("rollout.n",), lambda job: True, "data.n_samples says how many responses a prompt gets"),
    Idle(
        (
            *("rollout.log_prob_*", "rollout.weight_sync*", "rollout.update_weights_*", "rollout.val_kwargs.*"),
            *("rollout.multi_turn.trainable_turns", "rollout.multi_turn.mask_tool_call_args"),
        ),
        lambda job: True,
        "nothing is trained",
    ),
    Idle(
        ("rollout.name",),
        lambda job: _lacks_vllm(job),
        f"agentrl does not run vllm here: it is not installed ({INSTALL_VLLM}); it takes sglang where CUDA and sglang "
        "are present, else its own engine",
    ),
    Idle(("data.text_prompts",), lambda job: job.has_loop, "an agent loop gets messages: a text is that of a user"),
    Idle(
        ("rollout.multi_turn.*", "rollout.agent.agent_loop_config_path", "data.facts_key"),
        lambda job: not job.has_loop,
        "no agent loop is named (--agent-loop), so that each prompt gets one answer without tools",
    ),
    Idle(
        ("rollout.temperature", "rollout.top_*", "rollout.min_p"),
        lambda job: job.is_greedy,
        "generation is greedy (rollout.do_sample is false, or rollout.temperature 0)",
    ),
    Idle(
        ("data.n_samples",),
        lambda job: job.is_greedy and job.data.n_samples > 1,
        "generation is greedy, so that the responses of a prompt are all equal",
    ),
    Idle(
        ("trainer.n_gpus_per_node",),
        lambda job: not uses_cuda(run_of(job)),
        "the engines run on the CPU: rollout.server.launch says how many",
    ),
    Idle(
        ("trainer.n_gpus_per_node", "trainer.device"),
        lambda job: bool(job.rollout.server.addresses),
        "rollout.server.addresses names running servers",
    ),
    Idle(
        ("trainer.n_gpus_per_node",),
        lambda job: "launch" in job.rollout.server.model_fields_set or engine_name(run_of(job)) in OWN_ENGINES,
        "rollout.server.launch says how many engines are started",
    ),
    Idle(
        ("rollout.agent.num_workers", "ray_init.*"),
        lambda job: job.trainer.backend == "local",
        "trainer.backend is local: agent loops run in this process",
    ),
    *_of_engines(),
)
_JOB_ONLY = ("model.*", "rollout.*", "trainer.*", "ray_init.*")
_PROMPTS_ONLY = tuple(
    f"data.{name}"
    for name in ("text_prompts", "n_samples", "max_samples", "filter_overlong_prompts", "apply_chat_template_kwargs")
)
IDLE_EVAL_KEYS: tuple[Idle[EvalConfig], ...] = (
    Idle(
        (*_JOB_ONLY, *_PROMPTS_ONLY),
        lambda job: not job.model.path,
        "no model is given (--model), so that nothing is generated",
        but=("model.path",),
    ),
    Idle(
        ("reward_model.sandbox_fusion.*",),
        lambda job: job.custom_reward_function.path is not None,
        "custom_reward_function.path names your own score function, which runs no tests in this sandbox",
    ),
    Idle(
        ("reward_model.overlong_buffer.*",),
        lambda job: True,
        "responses are read as text, so nobody knows how many tokens they had",
    ),
    Idle(
        ("reward_model.num_processes",),
        lambda job: job.reward_model.reward_manager != "prime" or job.custom_reward_function.path is None,
        "only the reward manager prime has processes, for a score function of your own (custom_reward_function.path)",
    ),
    Idle(
        OF_REWARD_MODELS,
        lambda job: not job.reward_model.enable,
        "reward_model.enable is false",
        but=("reward_model.enable", "reward_model.combine.model"),
    ),
    *IDLE_JUDGE_KEYS,
    Idle(
        ("reward_model.combine.*",),
        lambda job: job.reward_model.has_judge,
        "an answer is evaluated without the rewards of its turns and calls",
        but=("reward_model.combine.outcome", "reward_model.combine.judge"),
    ),
    Idle(
        ("reward_model.combine.*",),
        lambda job: not job.reward_model.has_judge,
        "the score function's score is evaluated, without other rewards",
        but=("reward_model.combine.judge",),
    ),
    Idle(
        ("custom_reward_function.name",),
        lambda job: job.custom_reward_function.path is None,
        "custom_reward_function.path is not given",
    ),
    *cast("tuple[Idle[EvalConfig], ...]", IDLE_JOB_KEYS),
)

_NO_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""In place of a chat template that a base model may lack; a text that is continued never meets it."""

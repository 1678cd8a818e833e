"""The field's command lines as they are typed: dry, and one step whose effect is seen. Only sizes are added."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from sandbox_server import Sandbox
from stage import CALL, PROGRAM, Seen, Stage, commands

SMALL = ("data.train_batch_size=4", "data.max_prompt_length=256", "data.max_response_length=48")
ACTOR, CRITIC = "FSDPPolicyNet", "FSDPValueNet"


@dataclass(frozen=True)
class Command:
    """A line of commands.txt."""

    name: str
    check: Callable[[Seen], None]
    sizes: tuple[str, ...] = SMALL
    answers: tuple[str, ...] = ("#### 4", "I do not know")

    @property
    def line(self) -> str:
        return commands()[[command.name for command in COMMANDS].index(self.name)]


def ppo(seen: Seen) -> None:
    assert seen.rows("passes", ACTOR) == [4, 4], "ppo_micro_batch_size_per_gpu=4"
    assert seen.rows("infers", ACTOR) == [], "the batch is one update, whose log-probs are the old ones"
    assert seen.rows("passes", CRITIC) == [4, 4], "critic.ppo_micro_batch_size_per_gpu=4"
    assert len(seen.rollouts) == 8, "one rollout of each prompt"
    assert len(seen.requests) == 2 * 8, "test_freq=10: validation after the last step"
    assert seen.metrics["actor/lr"] == 1e-6
    assert seen.metrics["critic/lr"] == 1e-5


def groups_of(n: int) -> Callable[[Seen], None]:
    def check(seen: Seen) -> None:
        assert len(seen.rollouts) == 4 * n
        assert seen.rows("passes", CRITIC) == []
        assert sum(seen.rows("passes", ACTOR)) == 4 * n

    return check


def grpo(seen: Seen) -> None:
    groups_of(8)(seen)
    assert "actor_rollout_ref.rollout.n is 8: it is not given, and algorithm.adv_estimator grpo compares" in seen.err


def with_critic(seen: Seen) -> None:
    assert sum(seen.rows("passes", CRITIC)) == 4
    assert len(seen.rollouts) == 4


def multi_turn(seen: Seen) -> None:
    assert seen.metrics["tool_call_counts/mean"] > 0
    assert {0.0, 1.0} <= {value for row in seen.masks for value in row}, "what the tool said is not trained on"


def scored_by_own_function(seen: Seen) -> None:
    grpo(seen)
    assert seen.metrics["critic/score/min"] > 0


def run_in_the_sandbox(seen: Seen) -> None:
    grpo(seen)
    assert seen.metrics["critic/score/mean"] == 0.5, "every second program prints 4"
    assert seen.config["reward_model"]["sandbox_fusion"]["max_concurrent"] == 128


def in_words_of_vllm(check: Callable[[Seen], None]) -> Callable[[Seen], None]:
    """The engine was asked as a vLLM server is."""

    def checked(seen: Seen) -> None:
        check(seen)
        assert seen.config["actor_rollout_ref"]["rollout"]["name"] == "vllm"
        assert all("return_logprob" not in request for request in seen.requests)

    return checked


COMMANDS = (
    Command("ppo", ppo, (*SMALL[1:], "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8")),
    Command("grpo", in_words_of_vllm(grpo)),
    Command("group", in_words_of_vllm(groups_of(4))),
    Command("gae", with_critic),
    Command("multi_turn", multi_turn, SMALL[:1], (CALL, "#### 4")),
    Command("stage2", with_critic),
    Command("naive", grpo),
    Command("code", run_in_the_sandbox, answers=(PROGRAM, "```python\nprint(5)\n```")),
    Command("own_reward", scored_by_own_function),
)


def test_every_command_is_here() -> None:
    assert len(COMMANDS) == len(commands())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_dry(command: Command, stage: Stage) -> None:
    seen = stage.dry(*stage.shell(command.line), *command.sizes)
    assert seen.code == 0, seen.err
    assert "# What will run where" in seen.out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_for_a_step(command: Command, stage: Stage, sandbox: Sandbox) -> None:
    stage.answers = list(command.answers)
    line = command.line.replace("http://127.0.0.1:8080/run_code", f"{sandbox.url}/run_code")
    seen = stage.step(*stage.shell(line), *command.sizes)
    assert seen.code == 0, seen.err
    command.check(seen)


def test_vllm_where_it_is_not_installed(stage: Stage) -> None:
    command = COMMANDS[1]
    seen = stage.dry(*stage.shell(command.line), *command.sizes)
    assert "rollout.name: vllm is read as auto: vLLM is not installed here (pip install vllm" in seen.err
    assert "1 embedded server started" in seen.out


def test_the_module_and_the_command_are_the_same(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    """And its errors, in a process of its own."""
    arguments = stage.shell(commands()[0])
    arguments += COMMANDS[0].sizes
    wanted = stage.dry(*arguments)
    code = stage.module("main_ppo", *arguments, "--dry-run")
    assert (code, wanted.code, capfd.readouterr().out) == (0, 0, wanted.out)
    command = [sys.executable, "-m", "agentrl.trainer.main_ppo", "trainer.sed=1"]
    failed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (failed.returncode, "Did you mean 'trainer.seed'?" in failed.stderr) == (2, True)

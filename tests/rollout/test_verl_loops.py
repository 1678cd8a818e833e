"""Agent loops written for verl: they run unchanged, and what they return is proved token by token."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.errors import FailureBudgetError, PluginError
from agentrl.plugins import load_agent_loops, resolve
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.setup import RolloutSetup

HEAD = """
from uuid import uuid4
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.utils.profiler import simple_timer
"""
SINGLE = (
    HEAD
    + """
from verl.utils.rollout_trace import rollout_trace_op


@register("of_verl_single")
class Single(AgentLoopBase):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.response_length = self.config.actor_rollout_ref.rollout.response_length
        self.options = self.config.data.get("apply_chat_template_kwargs", {})

    @rollout_trace_op
    async def run(self, sampling_params, **kwargs):
        messages = list(kwargs["raw_prompt"])
        metrics = {}
        prompt_ids = await self.loop.run_in_executor(
            None,
            lambda: self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, **self.options
            ),
        )
        with simple_timer("generate_sequences", metrics):
            output = await self.server_manager.generate(
                request_id=uuid4().hex, prompt_ids=prompt_ids, sampling_params=sampling_params, image_data=None
            )
        mask = [1] * len(output.token_ids)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=output.token_ids[: self.response_length],
            response_mask=mask[: self.response_length],
            response_logprobs=output.log_probs[: self.response_length] if output.log_probs else None,
            multi_modal_data={},
            num_turns=2,
            metrics=metrics,
        )
"""
)
OLDER = """
from agentrl.interfaces import AgentLoopBase
from agentrl.plugins import register
from agentrl.types import AgentLoopOutput


@register("of_verl_older")
class Older(AgentLoopBase):
    def __init__(self, trainer_config, server_manager, tokenizer, processor, **kwargs):
        super().__init__(trainer_config, server_manager, tokenizer, processor, **kwargs)
        self.turns = trainer_config.config.actor_rollout_ref.rollout.multi_turn.max_assistant_turns

    async def run(self, sampling_params, **kwargs):
        ids = self.tokenizer.apply_chat_template(kwargs["raw_prompt"], add_generation_prompt=True)
        prompt, mask = list(ids), []
        for turn in range(2):
            answer = await self.server_manager.generate(
                request_id="one", prompt_ids=ids, sampling_params={**sampling_params, "max_tokens": 99}
            )
            ids += answer
            mask += [1] * len(answer)
            read = self.tokenizer.encode("go on", add_special_tokens=False)
            ids += read
            mask += [0] * len(read)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=ids[len(prompt):],
            response_mask=mask,
            num_turns=4,
            metrics={"mine": self.turns},
            extra_fields={"turn_scores": [0.5, 1.0]},
        )
"""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "verl"]:
        del sys.modules[name]


Roll = Callable[..., Any]


@pytest.fixture
def roll(
    config: RunConfig, tmp_path: Path, make_engine: MakeEngine, make_manager: Callable[..., AgentLoopManager]
) -> Roll:
    """One trajectory of the class `cls` of a source; the engine answers [7]*3, [8]*3 and so on."""

    def roll(source: str, cls: str, options: str = "", **fields: Any) -> Any:
        (tmp_path / "mine.py").write_text(source)
        (tmp_path / "loops.yaml").write_text(f"- name: mine\n  _target_: mine.py:{cls}\n{options}")
        config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(tmp_path / "loops.yaml")
        config.actor_rollout_ref.rollout.agent.default_agent_loop = "mine"

        def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
            turn = int(payload["rid"].rpartition("-")[2].partition(".")[0])
            return [7 + turn] * 3, "stop"

        engine = make_engine(respond)
        rolled = make_manager(engine.address).generate_sequences(batch_of([sample(0, **fields)]))
        rolled.meta_info["asked"] = engine.requests
        return rolled

    return roll


def test_a_loop_as_verl_documents_it_runs(roll: Roll, config: RunConfig) -> None:
    rolled = roll(SINGLE, "Single")
    assert rolled.batch["responses"].tolist() == [[7, 7, 7]]
    assert rolled.batch["response_mask"].tolist() == [[1, 1, 1]]
    wanted = RolloutSetup.load(config).renderer.render_prompt([{"role": "user", "content": "3+4"}])
    assert rolled.meta_info["asked"][0]["input_ids"] == wanted
    assert (rolled.batch["rollout_log_probs"] < 0).all()
    assert (rolled.batch["weight_versions"] >= 0).all()


def test_a_loop_over_agentrls_base_class_and_lists_runs(roll: Roll) -> None:
    rolled = roll(OLDER, "Older")
    mask = rolled.batch["response_mask"][0].tolist()
    assert mask[:3] == mask[-3:] == [1, 1, 1]
    assert sum(mask) == 6 < len(mask)  # what was read after the last turn is cut off
    assert [request["sampling_params"]["max_new_tokens"] for request in rolled.meta_info["asked"]] == [99, 99]
    assert (rolled.batch["rollout_log_probs"][0] != 0).tolist() == [value == 1 for value in mask]


def test_it_is_registered_under_its_own_name(tmp_path: Path) -> None:
    for name, source in (("single", SINGLE), ("older", OLDER)):
        (tmp_path / f"{name}.py").write_text(source.replace(f"of_verl_{name}", f"named_{name}"))
        resolve("agent_loops", f"{tmp_path / name}.py:{name.capitalize()}")
        assert f"named_{name}" in load_agent_loops()


BROKEN = """
class Broken(AgentLoopBase):
    async def run(self, sampling_params, raw_prompt, extra_info, **kwargs):
        prompt = self.tokenizer.apply_chat_template(raw_prompt, add_generation_prompt=True)
        first = await self.server_manager.generate("a", prompt_ids=prompt, sampling_params=sampling_params)
        second = await self.server_manager.generate("a", prompt_ids=prompt + first + [5, 5], sampling_params={})
        given = dict(ids=first + [5, 5] + second, mask=[1] * 3 + [0] * 2 + [1] * 3, log_probs=None, media=None)
        exec(extra_info["change"], {"given": given, "self": self})
        return AgentLoopOutput(
            prompt_ids=prompt, response_ids=given["ids"], response_mask=given["mask"],
            response_logprobs=given["log_probs"], multi_modal_data=given["media"], num_turns=4,
        )
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("given['mask'][3] = 1", "response_mask is 1 for token 3 of the response (id 5), which no engine sampled"),
        ("given['ids'][1] = 9", "response_mask is 1 for token 1 of the response (id 9), which no engine sampled"),
        ("given['ids'].append(2); given['mask'].append(1)", "token 8 of the response (id 2), which no engine sampled"),
        ("given['mask'].pop()", "response_mask has 7 entries, but response_ids has 8"),
        ("given['log_probs'] = [0.0]", "response_logprobs has 1 entries, but response_ids has 8"),
        ("given['mask'][0] = 2", "response_mask holds 2 at token 0, wanted 0 or 1"),
        ("given['ids'] = ['a']", "response_ids: got ['a'], wanted a list of token ids"),
        ("given['media'] = {'image': [1]}", "multi_modal_data holds images or videos"),
        ("self.config.data.max_promt_length", "no key 'data.max_promt_length'. Did you mean 'max_prompt_length'"),
    ],
)
def test_what_no_engine_sampled_is_an_error_that_names_the_loop(roll: Roll, change: str, words: str) -> None:
    with pytest.raises(FailureBudgetError) as caught:
        roll(HEAD + BROKEN, "Broken", extra_info={"change": change})
    assert words in str(caught.value)
    if "no key" not in words:
        assert "agent loop 'mine'" in str(caught.value)


def test_sampled_tokens_that_the_loop_masks_are_not_trained(roll: Roll) -> None:
    rolled = roll(HEAD + BROKEN, "Broken", extra_info={"change": "given['mask'][:3] = [0, 0, 0]"})
    assert rolled.batch["response_mask"].tolist() == [[1, 1, 1, 0, 0, 1, 1, 1]]
    assert rolled.batch["loss_mask"].tolist() == [[0, 0, 0, 0, 0, 1, 1, 1]]


BRANCHES = """
class Branches(AgentLoopBase):
    async def run(self, sampling_params, raw_prompt, **kwargs):
        prompt = self.tokenizer.apply_chat_template(raw_prompt, add_generation_prompt=True)
        first = await self.server_manager.generate("a", prompt_ids=prompt, sampling_params=sampling_params)
        judged = await self.server_manager.generate("judge", prompt_ids=[5, 6], sampling_params=sampling_params)
        one = await self.server_manager.generate("a", prompt_ids=prompt + first + [5], sampling_params=sampling_params)
        two = await self.server_manager.generate("a", prompt_ids=prompt + first + [5], sampling_params=sampling_params)
        return AgentLoopOutput(
            prompt_ids=prompt, response_ids=first + [5] + two, response_mask=[1] * 3 + [0] + [1] * 3, num_turns=4,
            metrics=AgentLoopMetrics(tool_calls=2.0), reward_score=0.25, extra_fields={"judged": judged.token_ids},
        )
"""


def test_side_requests_and_branches_are_told_apart(roll: Roll) -> None:
    rolled = roll(HEAD + BRANCHES, "Branches")
    assert rolled.batch["responses"].tolist() == [[7, 7, 7, 5, 10, 10, 10]]
    assert rolled.batch["response_mask"].tolist() == [[1, 1, 1, 0, 1, 1, 1]]
    assert rolled.batch["rm_scores"].sum() == 0.25


TOOLS = """
import json
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.utils.tool_registry import initialize_tools_from_config


class Tools(AgentLoopBase):
    @classmethod
    def init_class(cls, config, tokenizer, processor, **kwargs):
        if cls._class_initialized:
            return
        cls._class_initialized = True
        turns = config.actor_rollout_ref.rollout.multi_turn
        cls.tools = {tool.name: tool for tool in initialize_tools_from_config(turns.tool_config_path)}
        cls.schemas = [tool.tool_schema.model_dump(exclude_unset=True) for tool in cls.tools.values()]
        cls.parser = ToolParser.get_tool_parser("hermes", tokenizer)

    async def run(self, sampling_params, **kwargs):
        ids = self.tokenizer.apply_chat_template(kwargs["raw_prompt"], tools=self.schemas, add_generation_prompt=True)
        prompt = list(ids)
        out = await self.server_manager.generate(request_id="a", prompt_ids=ids, sampling_params=sampling_params)
        call = '{"name": "calculator", "arguments": {"expression": "3+4"}}'
        text = self.tokenizer.encode(f"<tool_call>{call}</tool_call>")
        _, calls = await self.parser.extract_tool_calls(text)
        tool = self.tools[calls[0].name]
        instance, _ = await tool.create(create_kwargs={})
        response, reward, metrics = await tool.execute(instance, json.loads(calls[0].arguments))
        await tool.release(instance)
        read = self.tokenizer.encode(response.text)
        last = await self.server_manager.generate(
            request_id="a", prompt_ids=ids + out.token_ids + read, sampling_params=sampling_params
        )
        return AgentLoopOutput(
            prompt_ids=prompt, response_ids=out.token_ids + read + last.token_ids,
            response_mask=[1] * len(out) + [0] * len(read) + [1] * len(last), num_turns=4,
        )
"""


def test_its_tools_are_those_of_the_run(roll: Roll, config: RunConfig) -> None:
    rolled = roll(HEAD + TOOLS, "Tools")
    tokenizer = RolloutSetup.load(config).renderer.tokenizer
    read = tokenizer.encode("7")
    assert rolled.batch["responses"].tolist() == [[7, 7, 7, *read, 8, 8, 8]]
    prompt = tokenizer.decode(rolled.meta_info["asked"][0]["input_ids"])
    assert '"name": "calculator"' in prompt


OPTIONS = """
class Options(AgentLoopBase):
    def __init__(self, trainer_config, server_manager, tokenizer, processor, rounds, **kwargs):
        super().__init__(trainer_config, server_manager, tokenizer, processor, **kwargs)

    async def run(self, sampling_params, **kwargs): ...
"""


def test_options_are_checked_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + OPTIONS.replace(", **kwargs", ""))
    loops = tmp_path / "loops.yaml"
    for options, words in (("", "needs the option `rounds`"), ("  rouds: 1\n", "'rouds'. Did you mean 'rounds'")):
        loops.write_text(f"- name: mine\n  _target_: mine.py:Options\n{options}")
        with pytest.raises(PluginError) as caught:
            load_agent_loops(loops)
        assert words in str(caught.value)
    loops.write_text("- name: mine\n  _target_: mine.py:Options\n  rounds: 3\n")
    assert load_agent_loops(loops)["mine"].cls.__name__ == "Options"


MANAGER = """
import torch

class Manager:
    def __init__(self, tokenizer, num_examine, compute_score=None, reward_fn_key="data_source"):
        self.tokenizer = tokenizer

    def __call__(self, data, return_dict=False):
        rewards = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        for row in range(len(data)):
            item = data[row]
            assert item.non_tensor_batch["data_source"] == "of/mine"
            rewards[row, 1], rewards[row, 2] = 0.25, 1.0
        return {"reward_tensor": rewards, "reward_extra_info": {"acc": [True] * len(data)}}
"""


def test_a_reward_manager_of_verl_places_its_rewards(roll: Roll, config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "manager.py").write_text(MANAGER)
    config.reward_model.reward_manager = f"{tmp_path / 'manager.py'}:Manager"
    rolled = roll(SINGLE.replace('@register("of_verl_single")', ""), "Single", data_source="of/mine")
    assert rolled.batch["rm_scores"].tolist() == [[0.0, 0.25, 1.0]]


def test_the_base_class_renders_as_in_newer_versions(roll: Roll) -> None:
    source = """
    async def run(self, sampling_params, **kwargs):
        media = await self.process_vision_info(kwargs["raw_prompt"])
        prompt_ids = await self.apply_chat_template(kwargs["raw_prompt"], images=media.get("images"))
        first = await self.server_manager.generate("a", prompt_ids=prompt_ids, sampling_params=sampling_params)
        said = await self.apply_chat_template([{"role": "user", "content": "go on"}], remove_system_prompt=True)
        again = prompt_ids + first.token_ids + said
        second = await self.server_manager.generate("a", prompt_ids=again, sampling_params=sampling_params)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=first.token_ids + said + second.token_ids,
            response_mask=[1] * 3 + [0] * len(said) + [1] * 3,
            num_turns=4,
        )
"""
    rolled = roll(f"{HEAD}\n\nclass Newer(AgentLoopBase):{source}", "Newer")
    mask = rolled.batch["response_mask"][0].tolist()
    assert mask == [1] * 3 + [0] * (len(mask) - 6) + [1] * 3
    assert len(mask) > 6


def test_an_error_in_a_loop_names_its_line(roll: Roll) -> None:
    source = (
        "\n\nclass Wrong(AgentLoopBase):\n    async def run(self, sampling_params, **kwargs):\n        kwargs['no']\n"
    )
    line = (HEAD + source).splitlines().index("        kwargs['no']") + 1
    with pytest.raises(FailureBudgetError) as caught:
        roll(HEAD + source, "Wrong")
    assert "KeyError: 'no' (" in str(caught.value)
    assert f"mine.py:{line})" in str(caught.value)


@pytest.mark.parametrize("head", [HEAD, "from agentrl.interfaces import AgentLoopBase\n"])
def test_a_loop_without_run_is_refused_at_the_start(tmp_path: Path, head: str) -> None:
    (tmp_path / "mine.py").write_text(
        f"{head}\n\nclass Idle(AgentLoopBase):\n    async def generate(self):\n        pass\n"
    )
    (tmp_path / "loops.yaml").write_text("- {name: mine, _target_: mine.py:Idle}\n")
    with pytest.raises(PluginError, match="agent loop Idle has no method `run`"):
        load_agent_loops(tmp_path / "loops.yaml")

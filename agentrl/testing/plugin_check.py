"""Runs the contract tests on one plug-in and says for each clause whether it holds (`agentrl plugins check`)."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import PluginError, suggest
from agentrl.interfaces import RewardManager, ToolParser
from agentrl.plugins import (
    KINDS,
    InteractionSpec,
    Kind,
    LoopSpec,
    ToolSpec,
    kind_of,
    known,
    load_agent_loops,
    load_interactions,
    load_tools,
    resolve,
)
from agentrl.plugins.adapt import schema_of
from agentrl.plugins.functions import call
from agentrl.plugins.own_algorithms import find_estimator, find_policy_loss
from agentrl.plugins.specs import registered_loop
from agentrl.plugins.verl.adapters import has_parameter
from agentrl.reported import number_of
from agentrl.rewards.verl_manager import is_verl_manager
from agentrl.testing.algorithm_contracts import ESTIMATOR_CONTRACTS, LOSS_CONTRACTS, AlgorithmCase
from agentrl.testing.contracts import (
    INTERACTION_CONTRACTS,
    LOOP_CONTRACTS,
    TOOL_CONTRACTS,
    Contract,
    InteractionCase,
    LoopCase,
    ToolCase,
)
from agentrl.testing.examples import example_arguments
from agentrl.types import JsonDict, ParsedTurn

C = TypeVar("C")
CLAUSE_TIMEOUT_S = 60.0
_ROW_KWARGS = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")
_TALK = [{"role": "user", "content": "What is 6 * 7?"}, {"role": "assistant", "content": "#### 42"}]


@dataclass(frozen=True, slots=True)
class ClauseResult:
    """One clause of the contract and its problem; None: the clause holds."""

    demand: str
    problem: str | None


def check_plugin(name: str, kind: str | None, file: Path | None, example: JsonDict) -> tuple[Kind, list[ClauseResult]]:
    """Run the contract tests of a plug-in.

    Args:
        name: registered name, entry point, dotted path or `file.py:Name`; with `file` a name in it.
        kind: its kind; None: recognised from the plug-in.
        file: tool, interaction or agent-loop YAML that configures it.
        example: input to try it with: `arguments` and `create_kwargs` for a tool, `interaction_kwargs` and `messages`
            for an interaction, `final_answer` for a loop, `solution_str` and `ground_truth` for a score function, the
            keywords of an advantage estimator or policy loss.

    Returns:
        Its kind and a verdict per clause.

    Raises:
        PluginError: the plug-in is not found, or its kind cannot be recognised.
    """
    if kind is not None and kind not in KINDS:
        raise PluginError(f"--kind: got '{kind}'.{suggest(kind, KINDS)}")
    found = next((each for each in KINDS if each == kind), None) or _guess(name, file)
    checks: dict[Kind, Callable[[str, Path | None, JsonDict], Coroutine[Any, Any, list[ClauseResult]]]] = {
        "tools": _check_tool,
        "interactions": _check_interaction,
        "agent_loops": _check_loop,
        "rewards": _check_reward,
        "tool_parsers": _check_parser,
        "advantages": _check_estimator,
        "policy_losses": _check_loss,
    }
    return found, asyncio.run(checks[found](name, file, example))


def _guess(name: str, file: Path | None) -> Kind:
    """The kind of a plug-in, if the user did not give it."""
    if file is not None:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        sections: dict[str, Kind] = {"tools:": "tools", "interaction": "interactions", "- ": "agent_loops"}
        starts = [line for line in text.splitlines() if not line.startswith(("#", " ")) and line.strip()]
        for start, kind in sections.items():
            if starts and starts[0].startswith(start):
                return kind
        raise PluginError(f"{file}: cannot tell what kind of plug-in it configures: give --kind ({', '.join(KINDS)})")
    named = [kind for kind in KINDS if name in known(kind)]
    if len(named) > 1:
        raise PluginError(f"'{name}' is the name of several plug-ins ({', '.join(named)}): give --kind")
    if named:
        return named[0]
    if not any(mark in name for mark in ".:"):
        raise PluginError(f"no plug-in is named '{name}'.{suggest(name, [n for kind in KINDS for n in known(kind)])}")
    plugin = resolve("tools", name)
    seen = kind_of(plugin)
    if seen is None and has_parameter(plugin, "execute", "instance_id"):
        return "tools"
    if seen is None and has_parameter(plugin, "generate_response", "instance_id"):
        return "interactions"
    if seen is None:
        raise PluginError(f"'{name}': cannot tell what kind of plug-in it is: give --kind ({', '.join(KINDS)})")
    return seen


async def _check_tool(name: str, file: Path | None, example: JsonDict) -> list[ClauseResult]:
    spec = _pick(name, {tool.name: tool for tool in load_tools(file)}) if file else _tool_spec(name)
    arguments = example.get("arguments")
    if arguments is None:
        arguments = example_arguments(spec.schema["function"].get("parameters", {}))
    kwargs = {key: example[key] for key in _ROW_KWARGS if key in example}
    return await _run(TOOL_CONTRACTS, ToolCase(spec, arguments, kwargs))


def _tool_spec(name: str) -> ToolSpec:
    plugin = resolve("tools", name)
    schema = schema_of(plugin, {})
    return ToolSpec(schema["function"]["name"], plugin, {}, schema)


async def _check_interaction(name: str, file: Path | None, example: JsonDict) -> list[ClauseResult]:
    spec = _pick(name, load_interactions(file)) if file else InteractionSpec(name, resolve("interactions", name))
    kwargs = example.get("interaction_kwargs", {"query": "What is 6 * 7?", "ground_truth": "42"})
    return await _run(INTERACTION_CONTRACTS, InteractionCase(spec, kwargs, example.get("messages", _TALK)))


async def _check_loop(name: str, file: Path | None, example: JsonDict) -> list[ClauseResult]:
    cls, problem = (None, "") if file else registered_loop(name)
    if problem:
        raise PluginError(problem)
    spec = LoopSpec(name, cls) if cls is not None else _pick(name, load_agent_loops(file))
    fields = {key: value for key, value in example.items() if key != "final_answer"}
    return await _run(LOOP_CONTRACTS, LoopCase(spec, example.get("final_answer", "Final Answer: 42"), fields))


async def _check_reward(name: str, file: Path | None, example: JsonDict) -> list[ClauseResult]:
    plugin = resolve("rewards", name)
    if isinstance(plugin, type):
        return [await _verdict("it derives from RewardManager", _is_manager(plugin))]
    given = {"data_source": "", "solution_str": "#### 42", "ground_truth": "42", "extra_info": {}, **example}

    async def takes() -> None:
        inspect.signature(plugin).bind(**given)

    async def scores() -> None:
        value = await call(plugin, **given)
        number = number_of(value.get("score") if isinstance(value, dict) else value)
        assert number is not None, f"got {value!r}, wanted a number or a mapping with a `score`"
        assert math.isfinite(number), f"got {number!r}, wanted a finite number"

    return [
        await _verdict("it takes data_source, solution_str, ground_truth and extra_info", takes()),
        await _verdict("it returns a finite number, or a mapping with one under `score`", scores()),
    ]


async def _is_manager(plugin: type) -> None:
    is_one = issubclass(plugin, RewardManager) or is_verl_manager(plugin)
    assert is_one, (
        f"{plugin!r} is not an agentrl.interfaces.RewardManager, and has no verl's __call__(data, return_dict)"
    )


async def _check_parser(name: str, file: Path | None, example: JsonDict) -> list[ClauseResult]:
    cls = resolve("tool_parsers", name)
    if not isinstance(cls, type):
        raise PluginError(f"{cls!r} is not a tool parser: derive it from agentrl.interfaces.ToolParser")
    parser = cls()

    async def plain() -> None:
        turn = parser.parse(example.get("text", "The answer is 42."))
        assert isinstance(turn, ParsedTurn), f"got {type(turn).__name__}, wanted ParsedTurn"
        assert not turn.wants_tools, f"found calls in plain text: {turn}"

    async def garbage() -> None:
        for text in ("", "<tool_call>", '{"name": ', "[" * 5000, "\x00\ud800", "```json\n{]\n```"):
            assert isinstance(parser.parse(text), ParsedTurn)

    async def is_parser() -> None:
        assert isinstance(parser, ToolParser)

    return [
        await _verdict("it has the methods of a ToolParser", is_parser()),
        await _verdict("plain text holds no call", plain()),
        await _verdict("no text makes it raise", garbage()),
    ]


async def _check_estimator(name: str, file: Path | None, example: JsonDict) -> list[ClauseResult]:
    find_estimator(name, example)
    return await _run(ESTIMATOR_CONTRACTS, AlgorithmCase(name, example))


async def _check_loss(name: str, file: Path | None, example: JsonDict) -> list[ClauseResult]:
    find_policy_loss(name, example)
    return await _run(LOSS_CONTRACTS, AlgorithmCase(name, example))


def _pick(name: str, specs: dict[str, C]) -> C:
    if name not in specs:
        raise PluginError(f"the file has no '{name}'.{suggest(name, specs)}")
    return specs[name]


async def _run(contracts: Sequence[Contract[C]], case: C) -> list[ClauseResult]:
    return [await _verdict(contract.demand, contract.check(case)) for contract in contracts]


async def _verdict(demand: str, check: Awaitable[None]) -> ClauseResult:
    """Run one clause; any exception from the plug-in breaks it."""
    try:
        async with asyncio.timeout(CLAUSE_TIMEOUT_S):
            await check
    except AssertionError as error:
        return ClauseResult(demand, str(error) or "it does not hold")
    except TimeoutError:
        return ClauseResult(demand, f"no answer within {CLAUSE_TIMEOUT_S:g} s")
    except Exception as error:
        return ClauseResult(demand, f"{type(error).__name__}: {error}")
    return ClauseResult(demand, None)

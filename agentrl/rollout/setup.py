"""What a worker builds once and every trajectory uses: renderer, tools, interactions, loops, rewards, limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from agentrl import plugins
from agentrl.chat.loading import load_renderer
from agentrl.chat.renderer import ChatRenderer
from agentrl.config.root import RunConfig
from agentrl.errors import PluginError, UserInputError
from agentrl.interfaces import RewardManager, ToolParser
from agentrl.plugin_config import (
    InteractionSpec,
    LoopSpec,
    ToolSpec,
    check_routing,
    load_agent_loops,
    load_interactions,
    load_tools,
)
from agentrl.rewards.dispatcher import find_score
from agentrl.rewards.loading import load_reward_manager
from agentrl.types import JsonDict, LoopLimits, Sample


@dataclass(frozen=True, slots=True)
class RolloutSetup:
    """Everything of a run that trajectories share; immutable."""

    config: RunConfig
    renderer: ChatRenderer
    tools: list[ToolSpec]
    interactions: dict[str, InteractionSpec]
    loops: dict[str, LoopSpec]
    parser: ToolParser
    rewards: RewardManager
    limits: LoopLimits
    _known_good: set[tuple[object, ...]] = field(default_factory=set)

    @classmethod
    def load(cls, config: RunConfig, renderer: ChatRenderer | None = None) -> RolloutSetup:
        """Read the model's tokenizer and every YAML that the run names.

        Args:
            config: the run.
            renderer: a renderer of this model that is loaded already.

        Raises:
            UserInputError: something of it cannot be used; the message names the file and entry.
        """
        rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
        turns = rollout.multi_turn
        if renderer is None:
            renderer = load_renderer(
                model.path,
                model.tokenizer_path,
                model.chat_template,
                config.data.apply_chat_template_kwargs,
                trust_remote_code=model.trust_remote_code,
            )
        return cls(
            config=config,
            renderer=renderer,
            tools=load_tools(turns.tool_config_path) if turns.tool_config_path else [],
            interactions=load_interactions(turns.interaction_config_path) if turns.interaction_config_path else {},
            loops=load_agent_loops(rollout.agent.agent_loop_config_path),
            parser=cast(ToolParser, plugins.resolve("tool_parsers", turns.format)()),
            rewards=load_reward_manager(config),
            limits=loop_limits(config),
        )

    @property
    def pad_id(self) -> int:
        """Id that fills padding; it is masked everywhere, so any id of the vocabulary serves."""
        pad = self.renderer.tokenizer.pad_token_id
        return int(pad) if pad is not None else 0

    def loop_of(self, sample: Sample) -> LoopSpec:
        """The loop that a row asks for, else the run's default."""
        return self.loops[sample.agent_name or self.config.actor_rollout_ref.rollout.agent.default_agent_loop]

    def interaction_of(self, sample: Sample) -> InteractionSpec | None:
        """The interaction that a row asks for, if any."""
        return self.interactions[sample.interaction_kwargs["name"]] if sample.interaction_kwargs else None

    def check_rows(self, samples: Sequence[Sample]) -> None:
        """Refuse rows that name a loop, tool, interaction or score function that the run does not have.

        Raises:
            PluginError: every kind of problem with its first row and the nearest name.
        """
        problems: dict[str, None] = {}
        for sample in samples:
            key = _routing(sample)
            if key in self._known_good:
                continue
            found = [*self._problems(sample)]
            problems.update(dict.fromkeys(found))
            if not found:
                self._known_good.add(key)
        if problems:
            raise PluginError("\n".join(problems))

    def _problems(self, sample: Sample) -> list[str]:
        agent = self.config.actor_rollout_ref.rollout.agent
        found = []
        try:
            check_routing(
                [sample],
                default_loop=agent.default_agent_loop,
                loops=self.loops,
                tools=[tool.name for tool in self.tools],
                interactions=self.interactions,
            )
        except UserInputError as error:
            found.append(str(error))
        if self.config.custom_reward_function.path is None:
            try:
                find_score(sample.data_source)
            except UserInputError as error:
                found.append(f"row {sample.index}: {error}")
        return found


def _routing(sample: Sample) -> tuple[object, ...]:
    """What of a row decides where it goes; thousands of rows share a few of these."""
    return (
        sample.agent_name,
        sample.data_source,
        frozenset(sample.tools_kwargs),
        tuple(sample.tool_config.get("available_tools") or ()),
        sample.interaction_kwargs.get("name") if sample.interaction_kwargs else None,
        bool(sample.interaction_kwargs),
    )


def loop_limits(config: RunConfig) -> LoopLimits:
    """The limits of every conversation of a run."""
    rollout = config.actor_rollout_ref.rollout
    turns = rollout.multi_turn
    return LoopLimits(
        prompt_length=rollout.prompt_length or config.data.max_prompt_length,
        response_length=rollout.response_length or config.data.max_response_length,
        max_assistant_turns=turns.max_assistant_turns,
        max_user_turns=turns.max_user_turns,
        max_parallel_calls=turns.max_parallel_calls,
        max_tool_calls=turns.max_tool_calls,
        max_tool_response_length=turns.max_tool_response_length,
        tool_response_truncate_side=turns.tool_response_truncate_side,
        max_tokens_per_turn=turns.max_tokens_per_turn,
        turn_timeout_s=turns.turn_timeout_s or rollout.server.request_timeout_s,
        tool_timeout_s=turns.tool_timeout_s,
        trajectory_timeout_s=turns.trajectory_timeout_s,
    )


def sampling_params(config: RunConfig, stop_token_ids: frozenset[int], *, validate: bool) -> JsonDict:
    """Sampling fields of a request, without `max_new_tokens`; the template's end-of-turn ids always end a turn."""
    rollout = config.actor_rollout_ref.rollout
    params = rollout.sampling_params()
    if not rollout.ignore_eos:
        params["stop_token_ids"] = sorted({*params["stop_token_ids"], *stop_token_ids})
    if validate:
        val = rollout.val_kwargs
        greedy = not val.do_sample or val.temperature == 0
        params |= (
            {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
            if greedy
            else {"temperature": val.temperature, "top_p": val.top_p, "top_k": val.top_k}
        )
        params["min_p"] = 0.0
    return params

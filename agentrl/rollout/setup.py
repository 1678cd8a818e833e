"""Everything that a worker builds once for all trajectories: renderer, tools, interactions, loops, rewards, limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from agentrl.chat.loading import load_renderer
from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.auto import load_tool_parser
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, PluginError, UserInputError, suggest
from agentrl.interfaces import RewardManager, ToolParser
from agentrl.pictures import pictures_in
from agentrl.plugins import (
    InteractionSpec,
    LoopSpec,
    ToolSpec,
    check_routing,
    load_agent_loops,
    load_interactions,
    load_tools,
    registry,
)
from agentrl.plugins.tool_schemas import described_schema
from agentrl.rewards.dispatcher import find_score, truth_problem
from agentrl.rewards.judge import RubricJudge, load_judge
from agentrl.rewards.loading import check_kwargs, load_code_score, load_reward_manager, scores_by_source
from agentrl.rollout.search_keys import search_loops, search_tools
from agentrl.rollout.service_gate import ENGINE, JUDGE, interaction_service, score_service, tool_service
from agentrl.rollout.tools.limits import check_limits
from agentrl.rollout.tools.recording import check_recorded, recorded_discovery
from agentrl.rollout.trained_tokens import Training
from agentrl.types import JsonDict, LoopLimits, Sample

_parser = lru_cache(load_tool_parser)
"""One parser per format, so that its choice is logged only once."""


@dataclass(frozen=True, slots=True)
class RolloutSetup:
    """Everything of a run that trajectories share; immutable."""

    config: RunConfig
    renderer: ChatRenderer
    tools: list[ToolSpec]
    tool_envs: dict[str, list[ToolSpec]]
    interactions: dict[str, InteractionSpec]
    loops: dict[str, LoopSpec]
    parser: ToolParser
    rewards: RewardManager
    judge: RubricJudge | None
    limits: LoopLimits
    training: Training
    _known_good: set[tuple[object, ...]] = field(default_factory=set)
    _own_descriptions: dict[tuple[str, int, str], ToolSpec] = field(default_factory=dict)

    @classmethod
    def load(cls, config: RunConfig, renderer: ChatRenderer | None = None) -> RolloutSetup:
        """Read the model's tokenizer and every YAML that the run names.

        Args:
            config: the run.
            renderer: an already loaded renderer of this model.

        Raises:
            UserInputError: a part cannot be used; the message names the file and entry.
        """
        registry.load_registrations(config.plugins)
        rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
        turns = rollout.multi_turn
        if renderer is None:
            renderer = load_renderer(
                model.path,
                model.tokenizer_path,
                model.chat_template,
                config.data.apply_chat_template_kwargs,
                stop_token_ids=rollout.stop_token_ids,
                trust_remote_code=model.trust_remote_code,
                max_pixels=config.data.max_image_pixels,
            )
        discover = recorded_discovery(turns.tool_cache.mode, turns.tool_cache.path)
        tools = load_tools(turns.tool_config_path, discover=discover) if turns.tool_config_path else []
        tool_envs = {name: load_tools(path, discover=discover) for name, path in turns.tool_envs.items()}
        tools, tool_envs = search_tools(config, tools, tool_envs)
        _check_stop_tools(turns.stop_tools, [tools, *tool_envs.values()])
        for specs in (tools, *tool_envs.values()):
            check_limits(specs, num_workers(config))
        if turns.tool_cache.mode == "replay":
            check_recorded(turns.tool_cache.path or "")
        return cls(
            config=config,
            renderer=renderer,
            tools=tools,
            tool_envs=tool_envs,
            interactions=load_interactions(turns.interaction_config_path) if turns.interaction_config_path else {},
            loops=search_loops(config, load_agent_loops(rollout.agent.agent_loop_config_path)),
            parser=_parser(turns.format, renderer.template, renderer.name, offers_tools=bool(tools or tool_envs)),
            rewards=load_reward_manager(config, num_workers(config), renderer),
            judge=load_judge(config, num_workers(config)),
            limits=loop_limits(config),
            training=Training(
                turns.trainable_turns, turns.mask_tool_call_args, config.algorithm.state_masking.markers()
            ),
        )

    @property
    def _scores_by_source(self) -> bool:
        """Whether rows are scored by the built-in function of their `data_source`."""
        return scores_by_source(self.config) and self.config.reward_model.combine.outcome != 0

    def has_outcome(self, sample: Sample) -> bool:
        """Whether the score function scores a row; one of `style: model` may be left to a reward model or judge."""
        section = self.config.reward_model
        alone = section.scores_by_model and sample.reward_model.get("style") == "model" and self._scores_by_source
        return section.combine.outcome != 0 and not alone

    @property
    def pad_id(self) -> int:
        """Id that fills padding. It is masked everywhere, so any id of the vocabulary will do."""
        pad = self.renderer.tokenizer.pad_token_id
        return int(pad) if pad is not None else 0

    def loop_of(self, sample: Sample) -> LoopSpec:
        """The loop that a row names, else the run's default."""
        return self.loops[sample.agent_name or self.config.actor_rollout_ref.rollout.agent.default_agent_loop]

    def interaction_of(self, sample: Sample) -> InteractionSpec | None:
        """The interaction that a row names, if any."""
        return self.interactions[sample.interaction_kwargs["name"]] if sample.interaction_kwargs else None

    def services_of(self, sample: Sample) -> list[str]:
        """The services that the row's trajectories need: the engine, its tools, its interaction and its score's."""
        offered = self.offered_tools(sample)
        interaction = self.interaction_of(sample)
        others = [interaction_service(interaction.name)] if interaction is not None else []
        others += [JUDGE] if self.judge is not None else []
        return [ENGINE, *(tool_service(spec.name) for spec in offered), *others, score_service(sample.data_source)]

    def offered_tools(self, sample: Sample) -> list[ToolSpec]:
        """The tools that a row's loop offers to the model."""
        if not self.loop_of(sample).cls.uses_tools:
            return []
        available = sample.tool_config.get("available_tools")
        return [spec for spec in self.tools_of(sample) if available is None or spec.name in available]

    def tools_of(self, sample: Sample) -> list[ToolSpec]:
        """The set of tools that a row names (`extra_info.tool_env_name`), else the run's; as the row describes them."""
        specs = self.tools if sample.tool_env_name is None else self.tool_envs[sample.tool_env_name]
        own = sample.tool_config.get("tools")
        return [self._described(spec, own[spec.name]) if spec.name in own else spec for spec in specs] if own else specs

    def _described(self, spec: ToolSpec, entry: JsonDict) -> ToolSpec:
        """A tool under a row's own description; rows that share one share its checks."""
        key = (spec.name, id(spec.schema), json.dumps(entry, sort_keys=True, default=str))
        if key not in self._own_descriptions:
            schema = described_schema(entry, spec.schema, "tool_config.available_tools")
            self._own_descriptions[key] = replace(spec, schema=schema)
        return self._own_descriptions[key]

    def limits_of(self, sample: Sample) -> LoopLimits:
        """The run's limits with those of the row (`tool_config.max_tool_calls`, `tool_config.timeout`)."""
        calls, seconds = sample.tool_config.get("max_tool_calls"), sample.tool_config.get("timeout")
        if calls is None and seconds is None:
            return self.limits
        most = self.limits.max_tool_calls if calls is None else int(calls)
        return replace(self.limits, max_tool_calls=most, tool_timeout_s=seconds or self.limits.tool_timeout_s)

    def parser_of(self, sample: Sample) -> ToolParser:
        """The tool parser that a row names (`tool_config.tool_format`), else the run's."""
        if sample.tool_format is None:
            return self.parser
        return _parser(sample.tool_format, self.renderer.template, self.renderer.name, offers_tools=True)

    def check_rows(self, samples: Sequence[Sample]) -> None:
        """Refuse rows that name a loop, tool, interaction or score function that the run does not have.

        Raises:
            PluginError: lists every kind of problem with its first row and the nearest name.
        """
        problems: dict[str, None] = {}
        for sample in samples:
            key = row_kind(sample)
            if key in self._known_good:
                continue
            found = [*self._problems(sample)]
            problems.update(dict.fromkeys(found))
            if not found:
                self._known_good.add(key)
        if problems:
            raise PluginError("\n".join(problems))

    def truth_problem(self, sample: Sample) -> str | None:
        """Why the score of a row cannot score it; None: it can. The user's own loop may score itself."""
        section, has_truth = self.config.reward_model, sample.ground_truth not in (None, "", [], {})
        if section.has_judge and not has_truth and "{ground_truth}" in (section.judge.template or ""):
            return "no `reward_model.ground_truth`, which reward_model.judge.template names"
        if not self.has_outcome(sample) or not is_built_in(self.loop_of(sample)):
            return None
        if self._scores_by_source:
            kwargs = self.config.custom_reward_function.reward_kwargs
            return truth_problem(sample, language=str(kwargs.get("language", "python")))
        if not sample.reward_model:
            return (
                "no `reward_model`, so the score function would get the ground truth None; if it needs none, give the "
                "row {style: rule}"
            )
        return None

    def prompt_ids(self, sample: Sample) -> list[int]:
        """Ids of the first request of a row's trajectories."""
        loop, schemas = self.loop_of(sample), [spec.schema for spec in self.offered_tools(sample)]
        return loop.cls.render_prompt(self.renderer, sample.prompt, schemas, **loop.kwargs)

    def _problems(self, sample: Sample) -> list[str]:
        found = []
        for check in (self._check_tool_set, self._check_score):
            try:
                check(sample)
            except UserInputError as error:
                found.append(str(error) if str(error).startswith("row ") else f"row {sample.index}: {error}")
        return found

    def _check_tool_set(self, sample: Sample) -> None:
        """Check that a row's tools, loop, interaction and parser exist, and that its prompt names its tools."""
        name = sample.tool_env_name
        if name is not None and name not in self.tool_envs:
            unset = " The run has none: set `multi_turn.tool_envs`."
            hint = suggest(name, self.tool_envs) if self.tool_envs else unset
            raise PluginError(f"no tool set is named '{name}' (`extra_info.tool_env_name`).{hint}")
        check_routing(
            [sample],
            default_loop=self.config.actor_rollout_ref.rollout.agent.default_agent_loop,
            loops=self.loops,
            tools=[tool.name for tool in self.tools_of(sample)],
            interactions=self.interactions,
        )
        self.parser_of(sample)
        loop = self.loop_of(sample)
        loop.check_options(f"agent loop '{loop.name}'")
        if pictures_in(sample.prompt) and not loop.cls.sees_pictures:
            raise PluginError(
                f"agent loop '{loop.name}' shows no pictures, but the prompt has some: use tool_agent or "
                "single_turn_agent (a loop of your own says `sees_pictures = True`)"
            )
        text = self.renderer.encoder.decode(self.prompt_ids(sample))
        hidden = [spec.name for spec in self.offered_tools(sample) if spec.name not in text]
        if hidden and loop.cls.shows_tools:
            raise PluginError(
                f"the prompt does not name the tools {', '.join(hidden)}: the chat template of {self.renderer.name} "
                "omits them, so the model would not know about them. Set a template that shows tools "
                "(actor_rollout_ref.model.chat_template=templates/chatml_tools.jinja), or use a loop that describes "
                "them itself (react_agent)"
            )

    def _check_score(self, sample: Sample) -> None:
        if not self._scores_by_source or not self.has_outcome(sample):
            return
        try:
            score = find_score(sample.data_source, load_code_score(self.config))
        except PluginError as error:
            if not self.config.reward_model.scores_by_model:
                raise
            alone = "For the score of the reward model or the judge alone, set reward_model.combine.outcome=0"
            raise PluginError(f"{error} {alone}, or `reward_model.style` of these rows to 'model'.") from error
        check_kwargs(score, self.config.custom_reward_function.reward_kwargs)


def _check_stop_tools(names: Sequence[str], tool_sets: Iterable[Sequence[ToolSpec]]) -> None:
    """Refuse a stop tool that no row can call.

    Raises:
        ConfigError: names the nearest tool.
    """
    known = {spec.name for specs in tool_sets for spec in specs}
    for name in names:
        if name not in known:
            hint = suggest(name, known) if known else " The run has no tools: set `multi_turn.tool_config_path`."
            raise ConfigError(f"actor_rollout_ref.rollout.multi_turn.stop_tools: no tool is named '{name}'.{hint}")


def is_built_in(loop: LoopSpec) -> bool:
    """Whether an agent loop is one of agentrl's; any other may do, and report, anything."""
    return loop.cls.__module__.startswith("agentrl.")


def row_kind(sample: Sample) -> tuple[object, ...]:
    """The fields of a row that decide its routing; thousands of rows share a few combinations."""
    return (
        sample.agent_name,
        sample.data_source,
        sample.reward_model.get("style") == "model",
        frozenset(sample.tools_kwargs),
        sample.tool_env_name,
        sample.tool_format,
        tuple(sample.tool_config.get("available_tools", ("*",))),
        json.dumps(sample.tool_config.get("tools"), sort_keys=True, default=str),
        "max_tool_calls" in sample.tool_config or "timeout" in sample.tool_config,
        sample.interaction_kwargs.get("name") if sample.interaction_kwargs else None,
        bool(sample.interaction_kwargs),
        bool(pictures_in(sample.prompt)),
    )


def num_workers(config: RunConfig) -> int:
    """The number of agent-loop workers that the run starts."""
    agent = config.actor_rollout_ref.rollout.agent
    return 1 if config.trainer.backend == "local" else min(agent.num_workers, agent.max_in_flight)


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
        max_images=rollout.limit_images,
        max_tokens_per_turn=turns.max_tokens_per_turn,
        stop_tools=tuple(turns.stop_tools),
        turn_timeout_s=turns.turn_timeout_s or rollout.server.request_timeout_s,
        tool_timeout_s=turns.tool_timeout_s,
        trajectory_timeout_s=turns.trajectory_timeout_s,
    )


def sampling_params(config: RunConfig, *, validate: bool, greedy: bool = False) -> JsonDict:
    """The sampling parameters of a loop; `Session.generate` adds the turn's budget and the model's stop ids."""
    rollout = config.actor_rollout_ref.rollout
    params, val = rollout.sampling_params(), rollout.val_kwargs
    if greedy or (validate and (not val.do_sample or val.temperature == 0)):
        return params | {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    if validate:
        return params | {name: getattr(val, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    return params

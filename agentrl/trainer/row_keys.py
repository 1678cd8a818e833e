"""Which keys cannot act on the rows of a run: what loads all rows knows which loops they run and what these offer.

A row decides with its loop, its tools, its interaction and its data source what the run's keys can do::

    default_agent_loop: single_turn_agent    tool_config_path, format, max_user_turns, ... have no effect
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentrl.config import RunConfig
from agentrl.config.idle import Idle
from agentrl.pictures import pictures_in
from agentrl.plugins import LoopSpec, load_agent_loops
from agentrl.plugins.specs import names_in_loop_file
from agentrl.rewards.dispatcher import CODE_SOURCES
from agentrl.rollout.setup import RolloutSetup, is_built_in, row_kind
from agentrl.types import Sample

_ROLLOUT = "actor_rollout_ref.rollout."
_TURNS = f"{_ROLLOUT}multi_turn."
TOOL_ENVS = f"{_TURNS}tool_envs"


class RowUse:
    """What the rows of a run use, gathered row by row.

    Args:
        setup: of the run.
    """

    def __init__(self, setup: RolloutSetup) -> None:
        self._setup = setup
        self._kinds: set[tuple[object, ...]] = set()
        self.loops: dict[str, LoopSpec] = {}
        self.tool_sets: set[str | None] = set()
        """Sets of tools that rows ask for; None: the run's."""
        self.default_loop = self.offers_tools = self.offers_run_tools = self.talks = self.runs_code = False
        self.own_loop = False
        """A loop is not agentrl's: it may do, and report, anything."""
        self.open_ended = False
        """A loop may take several turns without the row's tools and interactions."""
        self.reads_format = self.shows_pictures = False

    def see(self, sample: Sample) -> None:
        """Look at a row; thousands of rows share a few kinds, and each kind is looked at once."""
        kind = row_kind(sample)
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        loop, offered = self._setup.loop_of(sample), bool(self._setup.offered_tools(sample))
        own = not is_built_in(loop)
        open_ended = own or not loop.cls.ends_alone
        self.loops[loop.name] = loop
        self.default_loop |= sample.agent_name is None
        self.tool_sets.add(sample.tool_env_name)
        self.offers_tools |= offered
        self.offers_run_tools |= offered and sample.tool_env_name is None
        self.talks |= bool(sample.interaction_kwargs)
        self.runs_code |= sample.data_source in CODE_SOURCES
        self.own_loop |= own
        self.open_ended |= open_ended
        self.shows_pictures |= bool(pictures_in(sample.prompt))
        self.reads_format |= sample.tool_format is None and loop.cls.uses_format and (offered or open_ended)

    @property
    def names(self) -> str:
        """The loops, for a sentence."""
        return ", ".join(sorted(self.loops))

    def idle_keys(self) -> tuple[Idle[RunConfig], ...]:
        """The keys that cannot act on these rows."""
        return tuple(Idle(keys, lambda run: True, reason) for keys, reason, idle in self._table() if idle)

    def idle_parts(self) -> dict[str, str]:
        """Parts of keys that cannot act, with the reason: tool sets that no row names."""
        envs = self._setup.tool_envs
        unnamed = [name for name in envs if name not in self.tool_sets]
        reason = "no row names it (extra_info.tool_env_name)"
        return {f"{TOOL_ENVS}.{name}": reason for name in unnamed} if len(unnamed) < len(envs) else {}

    def problems(self, config: RunConfig) -> Iterator[str]:
        """Rewards that every trajectory would lack."""
        combine = config.reward_model.combine
        given = [name for name, can in (("turn", self._scores_turns), ("tool", self._rewards_calls)) if can]
        alone = combine.outcome == 0 and not config.reward_model.scores_by_model
        if self.loops and alone and not any(getattr(combine, name) for name in given):
            lacks = {"turn": "no row has an interaction", "tool": "no row is offered tools"}
            why = " and ".join(lacks[name] for name in ("turn", "tool") if getattr(combine, name))
            yield (
                f"reward_model.combine: outcome is 0 and {why}, so every reward would be 0: set outcome to 1, or give "
                "the rows what earns the other parts"
            )

    @property
    def _scores_turns(self) -> bool:
        return self.talks or self.own_loop

    @property
    def _rewards_calls(self) -> bool:
        return self.offers_tools or self.own_loop

    def _table(self) -> list[tuple[tuple[str, ...], str, bool]]:
        calls = self.offers_tools or self.open_ended
        turns = calls or self.talks
        no_tools, no_turns = self._why_no_tools(), f"every row has one turn: {self._why_no_tools()}, and no interaction"
        limits = ("max_tool_calls", "max_parallel_calls", "max_tool_response_length", "tool_response_truncate_side")
        of_calls = (*limits, "tool_cache.*", "stop_tools", "mask_tool_call_args")
        of_turns = ("max_assistant_turns", "max_user_turns", "trainable_turns", "tool_timeout_s")
        return [
            ((f"{_TURNS}tool_config_path",), no_tools, not self.offers_run_tools and not self.own_loop),
            ((TOOL_ENVS,), "no row names a tool set (extra_info.tool_env_name)", not self.tool_sets - {None}),
            ((f"{_TURNS}interaction_config_path",), "no row names an interaction (interaction_kwargs)", not self.talks),
            ((f"{_ROLLOUT}agent.default_agent_loop",), "every row names its own (agent_name)", not self.default_loop),
            (
                (f"{_ROLLOUT}agent.agent_loop_config_path",),
                f"no row runs a loop of it, all run {self.names}",
                not self._runs_a_loop_of_the_file(),
            ),
            (tuple(f"{_TURNS}{name}" for name in of_calls), no_tools, not calls),
            (tuple(f"{_TURNS}{name}" for name in of_turns), no_turns, not turns),
            ((f"{_TURNS}format",), self._why_no_format(), not self.reads_format),
            (("reward_model.combine.turn",), "no row has an interaction, so no turn is scored", not self._scores_turns),
            (("reward_model.combine.tool",), f"{no_tools}, so no tool gives a reward", not self._rewards_calls),
            (("data.image_key", "data.video_key"), self._why_no_pictures(), not self.shows_pictures),
            (
                ("data.max_image_pixels", f"{_ROLLOUT}limit_images"),
                self._why_no_pictures(),
                not self.shows_pictures and (not turns or self._setup.renderer.vision is None),
            ),
            (
                ("reward_model.sandbox_fusion.*",),
                f"no row is scored by running code (data_source {', '.join(CODE_SOURCES)})",
                not self.runs_code,
            ),
        ]

    def _why_no_pictures(self) -> str:
        return "the model reads text only" if self._setup.renderer.vision is None else "no row has pictures"

    def _why_no_tools(self) -> str:
        if not any(loop.cls.uses_tools for loop in self.loops.values()):
            return f"the rows run {self.names}, which uses no tools (tool_agent does: agent.default_agent_loop)"
        if None not in self.tool_sets:
            return "every row names a tool set of its own (extra_info.tool_env_name)"
        return "no row is offered a tool"

    def _why_no_format(self) -> str:
        if self.offers_tools:
            return f"the rows name their own (tool_config.tool_format), or their loops ({self.names}) have their own"
        return self._why_no_tools()

    def _runs_a_loop_of_the_file(self) -> bool:
        path = self._setup.config.actor_rollout_ref.rollout.agent.agent_loop_config_path
        of_file = names_in_loop_file(path) if path is not None else set()
        registered: dict[str, Any] = load_agent_loops()
        # A class with `@register("its_name")` is registered only because the file names its module.
        return any(
            loop != registered.get(name) or not is_built_in(loop)
            for name, loop in self.loops.items()
            if name in of_file
        )

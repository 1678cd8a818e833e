"""What the keys of search runs (`retriever.*`, `max_turns`, `algorithm.state_masking.*`) change in tools and loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentrl.config.root import SEARCH_LOOP, RunConfig
from agentrl.errors import ConfigError, PluginError
from agentrl.plugins import LoopSpec, ToolSpec, registry
from agentrl.plugins.tool_schemas import checked_schema

SEARCH_TOOL = "search"


def search_tools(
    config: RunConfig, tools: Sequence[ToolSpec], tool_envs: Mapping[str, Sequence[ToolSpec]]
) -> tuple[list[ToolSpec], dict[str, list[ToolSpec]]]:
    """The run's tools and sets of tools, with the search service of `retriever`.

    Where none of them is named `search`, the run gets the built-in one.

    Raises:
        ConfigError: there is no search tool and no address for one, it is not the built-in one, or the address cannot
            be used.
    """
    own = {"retrieval_service_url": config.retriever.url, "topk": config.retriever.topk}
    given = {key: value for key, value in own.items() if value is not None}
    sets = {name: [_with_service(spec, given) for spec in specs] for name, specs in tool_envs.items()}
    main = [_with_service(spec, given) for spec in tools]
    if given and all(spec.name != SEARCH_TOOL for specs in (main, *sets.values()) for spec in specs):
        if config.retriever.url is None:
            raise ConfigError(
                f"retriever.topk: got {config.retriever.topk}, but no tool of the run is named {SEARCH_TOOL}: set "
                "retriever.url"
            )
        cls = registry.resolve("tools", SEARCH_TOOL)
        schema = checked_schema(cls.default_schema(), "retriever")
        main.append(_checked(ToolSpec(SEARCH_TOOL, cls, given, schema)))
    return main, sets


def search_loops(config: RunConfig, loops: Mapping[str, LoopSpec]) -> dict[str, LoopSpec]:
    """The loops; those of Search-R1's kind take the run's `max_turns` and markers."""
    markers = config.algorithm.state_masking.markers()
    given = {} if config.max_turns is None or not config.searches else {"max_turns": config.max_turns}
    own = {**given, **({} if markers is None else {"markers": markers})}
    kind = loops[SEARCH_LOOP].cls if SEARCH_LOOP in loops else None
    return {
        name: replace(spec, kwargs={**spec.kwargs, **own}) if own and spec.cls is kind else spec
        for name, spec in loops.items()
    }


def _with_service(spec: ToolSpec, given: Mapping[str, object]) -> ToolSpec:
    """The tool with the given configuration, if it is the one that searches."""
    if not given or spec.name != SEARCH_TOOL:
        return spec
    if spec.cls is not registry.resolve("tools", SEARCH_TOOL):
        raise ConfigError(
            f"retriever: the tool named {SEARCH_TOOL} in actor_rollout_ref.rollout.multi_turn.tool_config_path is your "
            "own: give its service in its `config`"
        )
    return _checked(replace(spec, config={**spec.config, **given}))


def _checked(spec: ToolSpec) -> ToolSpec:
    """The tool, built once: an address that cannot be used is then an error at the start."""
    try:
        spec.build()
    except (PluginError, ValueError) as error:
        raise ConfigError(f"retriever.url: {error}") from error
    return spec

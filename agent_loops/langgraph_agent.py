"""Trains an unchanged LangGraph graph: its chat model is agentrl's engine with exact tokens, its tools are the row's.

The agent-loop YAML names a function that builds the graph (`langgraph.prebuilt.create_react_agent`,
`langchain.agents.create_agent` or a graph of your own)::

    - name: my_graph
      _target_: langgraph_agent
      graph: my_graphs.py:build          # def build(chat_model, tools): return create_agent(chat_model, tools)

A graph may only append to the conversation that its model sees. A graph that trims, rewrites or branches it is refused:
the trainer must see each turn after exactly the tokens that the model saw.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from agentrl.agent_loops.langgraph_talk import ConversationOver, GraphTalk
from agentrl.errors import PluginError
from agentrl.interfaces import AgentLoopBase, LoopContext, Renderer, ToolParser
from agentrl.types import AgentLoopOutput, JsonDict, Message, Sample, StopReason

GraphFactory = Callable[[Any, list[Any]], Any]
_RECURSION_LIMIT = 10_000


class LangGraphAgent(AgentLoopBase):
    """Runs a compiled graph on `{"messages": prompt}` until it ends or agentrl's limits end it.

    Args:
        context: the services of this trajectory.
        graph: gets the chat model and the row's tools (LangChain's), and returns a compiled graph.
        recursion_limit: LangGraph's limit of steps; reaching it ends the trajectory as `max_turns`.
    """

    uses_interaction: ClassVar[bool] = False
    object_options: ClassVar[tuple[str, ...]] = ("graph",)

    def __init__(self, context: LoopContext, *, graph: GraphFactory, recursion_limit: int = _RECURSION_LIMIT) -> None:
        super().__init__(context)
        self._graph = graph
        self._recursion_limit = recursion_limit

    @classmethod
    def render_prompt(
        cls, renderer: Renderer, messages: Sequence[Message], tools: Sequence[JsonDict], **options: Any
    ) -> list[int]:
        """The row's prompt with its tools; a graph may put its own system message in front.

        Raises:
            PluginError: LangGraph is not installed.
        """
        if importlib.util.find_spec("langgraph") is None:
            raise PluginError("langgraph_agent needs LangGraph: pip install 'agentrl[langgraph]'")
        return renderer.render_prompt(messages, tools or None)

    @property
    def parser(self) -> ToolParser:
        """The run's parser, since a graph may have its own tools."""
        return self.context.tool_parser

    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:
        """Let the graph play the conversation."""
        from langgraph.errors import GraphRecursionError

        from agentrl.agent_loops.langgraph_model import ExactChatModel, ExactTool, to_langchain

        talk = GraphTalk(self.context, sampling_params, sample.index)
        tools = [ExactTool.of(talk, schema) for schema in self.context.tools.schemas]
        graph = self._graph(ExactChatModel.of(talk), tools)
        graph = await graph if inspect.isawaitable(graph) else graph
        if not hasattr(graph, "ainvoke"):
            raise PluginError(f"langgraph_agent: `graph` returned {graph!r}, wanted a compiled graph")
        state = {"messages": to_langchain(sample.prompt)}
        try:
            await graph.ainvoke(state, config={"recursion_limit": self._recursion_limit})
        except ConversationOver:
            pass
        except GraphRecursionError:
            talk.end(StopReason.MAX_TURNS)
        return await talk.finish()

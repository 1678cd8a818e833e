"""LangChain's side of `langgraph_agent`: chat model, tools, messages. Imported only when a graph runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

from agentrl.agent_loops.langgraph_talk import GraphTalk
from agentrl.errors import PluginError
from agentrl.types import JsonDict, Message

T = TypeVar("T")


class ExactChatModel(BaseChatModel):
    """A LangChain chat model that samples from agentrl's engine and keeps the ids of one conversation."""

    _talk: GraphTalk = PrivateAttr()
    _loop: asyncio.AbstractEventLoop = PrivateAttr()

    @classmethod
    def of(cls, talk: GraphTalk) -> ExactChatModel:
        """The model of one trajectory; create it in its event loop."""
        model = cls()
        model._talk, model._loop = talk, asyncio.get_running_loop()
        return model

    @property
    def _llm_type(self) -> str:
        return "agentrl"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> Runnable[Any, AIMessage]:
        """Offer tools; the chat template shows them.

        Raises:
            PluginError: the graph wants to force a call, which exact sampling cannot do.
        """
        if tool_choice not in (None, "auto"):
            raise PluginError(f"langgraph_agent: `tool_choice` is {tool_choice!r}; the model alone chooses")
        schemas = [tool.schema_ if isinstance(tool, ExactTool) else convert_to_openai_tool(tool) for tool in tools]
        return self.bind(tools=schemas, **kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        *,
        tools: Sequence[JsonDict] = (),
        **kwargs: Any,
    ) -> ChatResult:
        if kwargs:
            raise PluginError(f"langgraph_agent: the run decides how to sample; the graph gave {sorted(kwargs)}")
        reply = await self._talk.answer([from_langchain(message) for message in messages], list(tools), stop or ())
        return ChatResult(generations=[ChatGeneration(message=to_langchain([reply])[0])])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _from_thread(self._agenerate(messages, stop, **kwargs), self._loop)


class ExactTool(BaseTool):
    """A tool of the row, run by agentrl: with its timeouts, limits, rewards and failures."""

    schema_: JsonDict
    """The schema that the model sees, as in the tool YAML."""
    _talk: GraphTalk = PrivateAttr()
    _loop: asyncio.AbstractEventLoop = PrivateAttr()

    @classmethod
    def of(cls, talk: GraphTalk, schema: JsonDict) -> ExactTool:
        """A tool of one trajectory; create it in its event loop."""
        function = schema["function"]
        parameters = {"type": "object", "properties": {}, **function.get("parameters", {})}
        tool = cls(
            name=function["name"],
            description=function.get("description") or function["name"],
            args_schema=parameters,
            schema_=schema,
        )
        tool._talk, tool._loop = talk, asyncio.get_running_loop()
        return tool

    async def ainvoke(self, input: str | dict[str, Any] | Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        """Run a call of the model, or arguments that the graph itself gives."""
        if isinstance(input, dict) and input.get("type") == "tool_call":
            content = await self._talk.call(input["id"], self.name, input["args"])
            return ToolMessage(content=content, name=self.name, tool_call_id=input["id"])
        return await self._talk.call("", self.name, input if isinstance(input, dict) else {"input": input})

    def invoke(self, input: str | dict[str, Any] | Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        """The same for a node that is not async."""
        return _from_thread(self.ainvoke(input, config), self._loop)

    def _run(self, **arguments: Any) -> Any:
        return self.invoke(arguments)


def to_langchain(messages: Sequence[Message]) -> list[BaseMessage]:
    """Agentrl's messages as LangChain's."""
    made: list[BaseMessage] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "assistant":
            calls = [
                {"name": call["function"]["name"], "args": call["function"]["arguments"], "id": call.get("id")}
                for call in message.get("tool_calls", ())
            ]
            made.append(AIMessage(content=content, tool_calls=calls))
        elif role == "tool":
            call_id = message.get("tool_call_id", "")
            made.append(ToolMessage(content=content, name=message.get("name"), tool_call_id=call_id))
        else:
            made.append(HumanMessage(content=content) if role == "user" else SystemMessage(content=content))
    return made


def from_langchain(message: BaseMessage) -> Message:
    """A LangChain message as agentrl's.

    Raises:
        PluginError: the message is of another kind, or is not text.
    """
    content = message.content
    if not isinstance(content, str):
        if any(isinstance(part, dict) and part.get("type") != "text" for part in content):
            raise PluginError("langgraph_agent: the graph sends a message that is not text")
        content = str(message.text)
    if isinstance(message, ToolMessage):
        named = {"name": message.name} if message.name else {}
        return {"role": "tool", **named, "tool_call_id": message.tool_call_id, "content": content}
    if isinstance(message, AIMessage):
        calls = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["args"]}}
            for call in message.tool_calls
        ]
        return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    for kind, role in ((HumanMessage, "user"), (SystemMessage, "system")):
        if isinstance(message, kind):
            return {"role": role, "content": content}
    raise PluginError(
        f"langgraph_agent: the graph sends a {type(message).__name__}, which no chat template has a role for"
    )


def _from_thread(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Run a coroutine in the trajectory's loop and wait for it in this thread.

    Raises:
        PluginError: called in the loop's own thread, which would wait for itself.
    """
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        work.close()
        raise PluginError("langgraph_agent: an async node must await the model and tools (`ainvoke`, not `invoke`)")
    return asyncio.run_coroutine_threadsafe(work, loop).result()

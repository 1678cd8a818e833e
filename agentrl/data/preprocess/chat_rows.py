"""`agentrl data messages`: conversations as other tools write them, as rows for `agentrl sft`.

::

    {"messages": [{"role": "user", "content": "..."}, ...], "tools"?: [...]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
    {"prompt": "...", "response": "..."}
    {"instruction": "...", "input"?: "...", "output": "..."}
"""

from __future__ import annotations

import json
from typing import Any

from agentrl.data.preprocess.reading import Cells
from agentrl.data.row import ROLES
from agentrl.errors import repr_of, suggest
from agentrl.types import JsonDict, Message

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "observation": "tool"}
"""Other names of roles."""
_CONVERSATIONS = ("messages", "conversations", "conversation")
_QUESTIONS = ("prompt", "instruction", "question", "query")
_ANSWERS = ("response", "output", "completion", "answer")


def messages_row(cells: Cells, split: str, index: int) -> JsonDict:
    """Row with the columns `messages` and, where there are any, `tools` (JSON text).

    Args:
        cells: one of the shapes above.
        split: `train` or `test`.
        index: number of the row in its split.

    Raises:
        DataError: no shape fits, a role is unknown, or no turn is the assistant's.
    """
    if any(cells.row.get(name) is not None for name in _CONVERSATIONS):
        column, value = cells.find(*_CONVERSATIONS)
        messages = _messages(cells, column, cells.parsed(column) if isinstance(value, str) else value)
    else:
        messages = _pair(cells)
    system = cells.row.get("system")
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    roles = [message["role"] for message in messages]
    if "assistant" not in roles[1:]:
        raise cells.error("messages", f"the roles {', '.join(roles)}", "an answer of the assistant to something")
    row: JsonDict = {"messages": messages, "extra_info": {"split": split, "index": index}}
    if cells.row.get("tools"):
        tools = cells.parsed("tools")
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise cells.error("tools", repr_of(tools), "a list of function schemas")
        row["tools"] = json.dumps(tools, ensure_ascii=False)
    return row


def _pair(cells: Cells) -> list[Message]:
    if not any(cells.row.get(name) for name in _QUESTIONS):
        cells.find(*_CONVERSATIONS, *_QUESTIONS)  # raises, and lists the columns
    column, question = cells.find(*_QUESTIONS)
    if isinstance(question, list):
        asked = _messages(cells, column, question)
    else:
        more = cells.row.get("input") if column == "instruction" else None
        asked = [{"role": "user", "content": f"{question}\n\n{more}" if more else cells.text(column)}]
    return [*asked, {"role": "assistant", "content": cells.text(*_ANSWERS)}]


def _messages(cells: Cells, column: str, value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise cells.error(column, repr_of(value), "a list of messages")
    return [_message(cells, f"{column}[{place}]", message) for place, message in enumerate(value)]


def _message(cells: Cells, column: str, message: Any) -> Message:
    if not isinstance(message, dict):
        raise cells.error(column, repr_of(message), "{role, content} or {from, value}")
    role = str(message.get("role", message.get("from", "")))
    role = _ROLES.get(role, role)
    if role not in ROLES:
        raise cells.error(f"{column}.role", repr(role), f"one of {', '.join(ROLES)}.{suggest(role, [*ROLES, *_ROLES])}")
    content = message.get("content", message.get("value"))
    calls = message.get("tool_calls")
    if not isinstance(content, str) and not (content is None and calls):
        raise cells.error(f"{column}.content", repr_of(content), "text")
    made: Message = {"role": role, "content": content or ""}
    if calls:
        made["tool_calls"] = [_call(call) for call in calls]
    return {**made, **{key: message[key] for key in ("tool_call_id", "name") if message.get(key)}}


def _call(call: Any) -> Any:
    """A call whose arguments are JSON text, as OpenAI has them: a column of parquet holds one type."""
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
        return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
    return call

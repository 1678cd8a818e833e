"""The rows of a parquet file as demonstrations: checked messages and tools. Every error names file, row and column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.config.sft import SINGLE_TURN, SFTDataConfig
from agentrl.data.dataset import MEDIA_COLUMNS, refuse_media
from agentrl.data.row import ROLES, messages_in, without_nones
from agentrl.errors import DataError, suggest
from agentrl.types import JsonDict, Message

if TYPE_CHECKING:
    import pyarrow as pa

PROMPT, RESPONSE = "prompt", "response"
"""Columns of a prompt and a response where `data.prompt_key` and `response_key` do not name others."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One row: a conversation that ends in what the model should have said.

    Attributes:
        row: number of the row in its file.
        messages: at least one assistant turn after another message.
        tools: function schemas that the row offers; None: it has none of its own.
        thinking: the template's `enable_thinking`; None: as in all rows.
    """

    row: int
    messages: list[Message]
    tools: list[JsonDict] | None = None
    thinking: bool | None = None


@dataclass(frozen=True, slots=True)
class DemonstrationReader:
    """Reads one parquet file.

    Args:
        file: its path.
        config: `data.*`.
    """

    file: str
    config: SFTDataConfig

    def rows(self, most: int = -1) -> Iterator[Demonstration]:
        """The first `most` rows, each checked; -1: all.

        Raises:
            DataError: the file has no rows or lacks a column, or a row cannot be used.
        """
        table, conversations = self._table()
        if table.num_rows == 0:
            raise DataError(self.file, None, None, "no rows", "at least one")
        number = 0
        for batch in table.to_batches(max_chunksize=1024):
            for row in batch.to_pylist():
                if number == most:
                    return
                yield self._demonstration(without_nones(row), number, conversations)
                number += 1

    def _table(self) -> tuple[pa.Table, bool]:
        """The columns that are used, and whether rows hold whole conversations."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        config = self.config
        try:
            source = pq.ParquetFile(self.file, memory_map=True)
            names = source.schema_arrow.names
            conversations = self._holds_conversations(names)
            wanted = [config.messages_key] if conversations else [config.prompt_key or PROMPT, self._response_key]
            for column in wanted:
                if column not in names:
                    raise self._missing(column, names, conversations)
            for column in names:
                if column.lower() in MEDIA_COLUMNS and column not in wanted:
                    refuse_media(source, self.file, column, "supervised training reads text only")
            optional = [name for name in (config.tools_key, config.enable_thinking_key) if name in names]
            return source.read(columns=list(dict.fromkeys([*wanted, *optional]))), conversations
        except FileNotFoundError as error:
            raise DataError(self.file, None, None, "no such file", "a parquet file") from error
        except (pa.ArrowException, OSError) as error:
            got = f"a file that is not readable as parquet ({error})"
            raise DataError(self.file, None, None, got, "parquet") from error

    @property
    def _response_key(self) -> str:
        return self.config.response_key or RESPONSE

    def _holds_conversations(self, names: Sequence[str]) -> bool:
        config = self.config
        if config.multiturn.enable is not None:
            return config.multiturn.enable
        if any(getattr(config, key) is not None for key in SINGLE_TURN):
            return False
        return config.messages_key in names or not {PROMPT, RESPONSE} <= set(names)

    def _missing(self, column: str, names: Sequence[str], conversations: bool) -> DataError:
        keys = "data.messages_key" if conversations else "data.prompt_key, data.response_key"
        other = (
            "conversations; for rows with a prompt and a response give data.prompt_key and data.response_key"
            if conversations
            else "a prompt and a response"
        )
        listed = ", ".join(names)
        near = suggest(column, names) if column else ""
        hint = near if near.startswith(" Did") else ""
        return DataError(self.file, None, column, f"no such column among {listed}", f"{other} ({keys}).{hint}".strip())

    def _demonstration(self, row: JsonDict, number: int, conversations: bool) -> Demonstration:
        config = self.config
        if conversations:
            messages = self._messages(row.get(config.messages_key), number, config.messages_key)
            _require_turn(messages, self.file, number, config.messages_key)
        else:
            messages = self._single_turn(row, number)
        tools = self._tools(row.get(config.tools_key), number)
        return Demonstration(number, messages, tools, self._thinking(row.get(config.enable_thinking_key), number))

    def _single_turn(self, row: JsonDict, number: int) -> list[Message]:
        config = self.config
        column, value = self._inside(row, number, config.prompt_key or PROMPT, config.prompt_dict_keys)
        if isinstance(value, str):
            value = messages_in(value) or [{"role": "user", "content": value}]
        prompt = self._messages(value, number, column)
        if prompt[-1]["role"] == "assistant":
            raise DataError(self.file, number, column, "an assistant turn at the end", "a message to answer")
        column, response = self._inside(row, number, self._response_key, config.response_dict_keys)
        if not isinstance(response, str) or not response:
            raise DataError(self.file, number, column, short(response), "text")
        return [*prompt, {"role": "assistant", "content": response}]

    def _inside(self, row: JsonDict, number: int, column: str, keys: Sequence[str] | None) -> tuple[str, Any]:
        """The value of a cell, or of a field in it, and its name for errors."""
        value = row.get(column)
        for key in keys or ():
            if isinstance(value, dict) and key not in value:
                got = f"a struct of {', '.join(value) or 'nothing'}"
                raise DataError(self.file, number, column, got, f"a field '{key}'.{suggest(key, value)}")
            if not isinstance(value, dict):
                raise DataError(self.file, number, column, short(value), f"a struct with the field '{key}'")
            column, value = f"{column}.{key}", value[key]
        return column, value

    def _thinking(self, value: Any, number: int) -> bool | None:
        if value is None or isinstance(value, bool):
            return value
        raise DataError(self.file, number, self.config.enable_thinking_key, short(value), "true or false")

    def _messages(self, value: Any, number: int, column: str) -> list[Message]:
        if isinstance(value, str):
            value = messages_in(value) or value
        if not isinstance(value, list) or not value:
            raise DataError(self.file, number, column, short(value), "a list of {role, content, tool_calls?}")
        return [self._message(message, number, f"{column}[{place}]") for place, message in enumerate(value)]

    def _message(self, message: Any, number: int, column: str) -> Message:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            wanted = f"{{role, content}} with a role of {', '.join(ROLES)}"
            raise DataError(self.file, number, column, short(message), wanted)
        content = message.get("content", "")
        if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            content = "".join(part.get("text", "") for part in content)
        if not isinstance(content, str):
            raise DataError(self.file, number, f"{column}.content", short(content), "text")
        calls = message.get("tool_calls")
        if not calls:
            return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}
        if not isinstance(calls, list):
            raise DataError(self.file, number, f"{column}.tool_calls", short(calls), "a list of calls")
        read = [self._call(call, number, f"{column}.tool_calls[{place}]") for place, call in enumerate(calls)]
        return {**message, "content": content, "tool_calls": read}

    def _call(self, call: Any, number: int, column: str) -> JsonDict:
        """A call with its arguments as a mapping: parquet files hold them as JSON text, templates need the object."""
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise DataError(self.file, number, column, short(call), "{function: {name, arguments}}")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            arguments = self._json(arguments, number, f"{column}.arguments")
        if not isinstance(arguments, dict):
            raise DataError(self.file, number, f"{column}.arguments", short(arguments), "a JSON object")
        return {**call, "type": "function", "function": {"name": function["name"], "arguments": arguments}}

    def _tools(self, value: Any, number: int) -> list[JsonDict] | None:
        column = self.config.tools_key
        if value is None:
            return None
        if isinstance(value, str):
            value = self._json(value, number, column)
        if not isinstance(value, list) or not all(isinstance(schema, dict) for schema in value):
            raise DataError(self.file, number, column, short(value), "a list of function schemas, or one as JSON text")
        return value

    def _json(self, text: str, number: int, column: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise DataError(self.file, number, column, short(text), f"JSON ({error})") from error


def _require_turn(messages: Sequence[Message], file: str, row: int, column: str) -> None:
    roles = [message["role"] for message in messages]
    if "assistant" not in roles or roles[0] == "assistant":
        raise DataError(file, row, column, f"roles {', '.join(roles)}", "an assistant turn after another message")


def short(value: Any) -> str:
    """A value for an error message."""
    shown = "nothing" if value is None else repr(value)
    return shown if len(shown) <= 120 else f"{shown[:117]}…"

"""One parquet row to a checked `Sample`. Every error names file, row, column, what was found and what was wanted."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentrl.data.row_pictures import PictureColumns, RowPictures
from agentrl.errors import DataError, suggest
from agentrl.reported import finite_number_of, whole_number_of
from agentrl.types import JsonDict, Message, Sample

TOOL_PHASES = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")
ROLES = ("system", "developer", "user", "assistant", "tool")
OPTIONAL_COLUMNS = (
    "ability",
    "reward_model",
    "agent_name",
    "extra_info",
    "tools_kwargs",
    "interaction_kwargs",
    "tool_config",
    "tools",
    "style",
)
STYLES = ("rule", "model", "short")
"""`short`, a short answer, is compared by the rule of its data source like any other; so is `rule-NAME`."""
_TOOL_CONFIG = ("available_tools", "tool_format", "max_tool_calls", "timeout")

_LIKE_MESSAGES = re.compile(r"""\ufeff?\s*(\[\s*)?\{\s*["'](role|from|messages|conversations)["']\s*:""")
"""The start of a text that was meant as messages: `[{'role': ...`, `{"messages": [...`, `[{"from": "human", ...`."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """Checks the rows of one file.

    Args:
        file: named in errors.
        prompt_key: column of the prompt.
        pictures: columns of pictures; None: the model reads text only.
    """

    file: str
    prompt_key: str
    pictures: PictureColumns | None = None

    def sample(self, row: JsonDict, number: int, index: int) -> Sample:
        """Check a row.

        Args:
            row: plain Python values, as pyarrow returns them.
            number: number of the row in its file.
            index: `Sample.index`: number of the row in the dataset.

        Raises:
            DataError: a cell cannot be used.
        """
        cells = _Cells(self.file, number, {key: without_nones(value) for key, value in row.items()}, self.pictures)
        extra_info = cells.mapping("extra_info")
        sample = Sample(
            index=index,
            prompt=cells.messages(self.prompt_key),
            data_source=cells.text("data_source", required=True) or "",
            ability=cells.text("ability") or "",
            reward_model=cells.reward_model(),
            agent_name=cells.text("agent_name"),
            tools_kwargs=cells.tools_kwargs(extra_info),
            interaction_kwargs=cells.interaction_kwargs(extra_info),
            tool_config=cells.tool_config(extra_info),
            extra_info=extra_info,
        )
        if extra_info.get("need_tools_kwargs") is True and not sample.tools_kwargs:
            raise cells.error("extra_info.need_tools_kwargs", True, "false, or `tools_kwargs` in this row")
        return sample


def without_nones(value: Any) -> Any:
    """Drop struct fields that are None: parquet gives every row the fields of all rows (None: not given)."""
    if isinstance(value, dict):
        return {key: without_nones(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [without_nones(item) for item in value]
    return value


def messages_in(text: str) -> list[Any] | None:
    """The messages of a prompt that was written as JSON text; None: the text is a prompt itself.

    `'[{"role": "user", "content": "2 + 2"}]'` holds one message, and so does the object alone; `'[1, 2, 3]'` is a text.
    """
    text = text.lstrip("\ufeff \t\r\n")
    if not text.startswith(("[", "{")):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    messages = value if isinstance(value, list) else [value]
    spoken = messages and all(isinstance(message, dict) and "role" in message for message in messages)
    return [without_nones(message) for message in messages] if spoken else None


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of one row, each read with its check."""

    file: str
    number: int
    row: JsonDict
    pictures: PictureColumns | None = None

    def error(self, column: str, got: Any, wanted: str) -> DataError:
        shown = "nothing" if got is None else repr(got)
        return DataError(self.file, self.number, column, shown if len(shown) <= 120 else f"{shown[:117]}…", wanted)

    def text(self, column: str, required: bool = False) -> str | None:
        value = self.row.get(column)
        if isinstance(value, str) and (value or not required):
            return value or None
        if value is None and not required:
            return None
        raise self.error(column, value, "text")

    def mapping(self, column: str) -> JsonDict:
        value = self.row.get(column)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(column, value, "a struct")
        return value

    def messages(self, column: str) -> list[Message]:
        value = self.row.get(column)
        if isinstance(value, str):
            wanted = "a list of {role, content}, or text that is not empty"
            if not value.strip():
                raise self.error(column, value, wanted)
            messages = messages_in(value)
            if messages is None and _LIKE_MESSAGES.match(value):
                raise self.error(column, value, f"{wanted}: this looks like messages, but is no JSON list of them")
            value = messages or [{"role": "user", "content": value}]
        if not isinstance(value, list) or not value:
            raise self.error(column, value, "a list of {role, content}, or text")
        messages = [self._message(f"{column}[{position}]", message) for position, message in enumerate(value)]
        if self.pictures is None:
            return messages
        return RowPictures(self.pictures, self.row, self.file, self.number).shown(column, messages)

    def _message(self, column: str, message: Any) -> Message:
        if not isinstance(message, dict):
            raise self.error(column, message, "{role, content}")
        if message.get("role") not in ROLES:
            raise self.error(f"{column}.role", message.get("role"), f"one of {', '.join(ROLES)}")
        content = message.get("content")
        if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            content = "".join(part.get("text", "") for part in content)
        if content is None and message.get("tool_calls"):
            content = ""
        if not isinstance(content, str) and not (self.pictures is not None and _are_parts(content)):
            wanted = "text (the model sees no pictures and videos)" if self.pictures is None else "text, or parts"
            raise self.error(f"{column}.content", content, wanted)
        elsewhere = "the model reads text only" if self.pictures is None else "pictures are parts, or in their column"
        for media in ("images", "videos", "audios"):
            if message.get(media):
                raise self.error(f"{column}.{media}", message[media], f"nothing: {elsewhere}")
        return {**message, "content": content}

    def reward_model(self) -> JsonDict:
        value = self.mapping("reward_model")
        style = self.text("style")
        if style is not None and value.get("style", style) != style:
            raise self.error(
                "style", style, f"the same as reward_model.style ('{value['style']}'), or only one of them"
            )
        column = "style" if style is not None else "reward_model.style"
        style = style or value.get("style", "rule")
        if style not in STYLES and not str(style).startswith("rule-"):  # `rule-lighteval/MATH_v2` of DAPO's rows
            raise self.error(column, style, f"one of {', '.join(STYLES)}.{suggest(str(style), STYLES)}")
        return {**value, "style": style} if column == "style" else value

    def tools_kwargs(self, extra_info: JsonDict) -> dict[str, JsonDict]:
        value = self._here_or_in_extra_info("tools_kwargs", extra_info)
        for tool, phases in value.items():
            if not isinstance(phases, dict):
                raise self.error(f"tools_kwargs.{tool}", phases, f"a struct of {', '.join(TOOL_PHASES)}")
            for phase, kwargs in phases.items():
                column = f"tools_kwargs.{tool}.{phase}"
                if phase not in TOOL_PHASES:
                    raise self.error(column, kwargs, f"no such key.{suggest(phase, TOOL_PHASES)}")
                if not isinstance(kwargs, dict):
                    raise self.error(column, kwargs, "a struct")
        return value

    def interaction_kwargs(self, extra_info: JsonDict) -> JsonDict:
        value = self._here_or_in_extra_info("interaction_kwargs", extra_info)
        if value and not (isinstance(value.get("name"), str) and value["name"]):
            raise self.error("interaction_kwargs.name", value.get("name"), "the name of an interaction")
        return value

    def tool_config(self, extra_info: JsonDict) -> JsonDict:
        value = self._here_or_in_extra_info("tool_config", extra_info)
        for key in value:
            if key not in _TOOL_CONFIG:
                raise self.error(f"tool_config.{key}", value[key], f"no such key.{suggest(key, _TOOL_CONFIG)}")
        column, tools = "tool_config.available_tools", value.get("available_tools")
        listed = self.row.get("tools")
        if listed is not None and tools is not None:
            raise self.error("tools", listed, "nothing beside tool_config.available_tools: the two say the same")
        if listed is not None:
            column, tools = "tools", _from_json(listed)
        if tools is not None:
            value = {**value, "available_tools": tools, **self._described(column, tools)}
        self._check_limits(value)
        if not isinstance(value.get("tool_format", ""), str):
            raise self.error("tool_config.tool_format", value["tool_format"], "the name of a tool parser")
        if not isinstance(extra_info.get("tool_env_name", ""), str):
            raise self.error("extra_info.tool_env_name", extra_info["tool_env_name"], "a key of `tool_envs`")
        return value

    def _described(self, column: str, tools: Any) -> JsonDict:
        """The tools as names, and the descriptions of those that are given as `{name, description, parameters}`."""
        wanted = "a list of tool names, or of {name, description, parameters}"
        if not isinstance(tools, list):
            raise self.error(column, tools, wanted)
        described = {}
        names = []
        for position, tool in enumerate(tools):
            entry = tool.get("function", tool) if isinstance(tool, dict) else {"name": tool}
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
                raise self.error(f"{column}[{position}]", tool, "a tool name, or {name, description, parameters}")
            names.append(entry["name"])
            if parameters := entry.get("parameters"):
                entry = {**entry, "parameters": _from_json(parameters)}
            if len(entry) > 1:
                described[entry["name"]] = entry
        return {"available_tools": names, **({"tools": described} if described else {})}

    def _check_limits(self, value: JsonDict) -> None:
        for key, wanted, is_right in (
            ("max_tool_calls", "a whole number above 0; for no tools give available_tools: []", _is_count),
            ("timeout", "a positive number of seconds", _is_seconds),
        ):
            if key in value and not is_right(value[key]):
                raise self.error(f"tool_config.{key}", value[key], wanted)

    def _here_or_in_extra_info(self, column: str, extra_info: JsonDict) -> JsonDict:
        """A struct at the top level or in `extra_info`; if it is in both, the two must be equal."""
        here, inside = self.mapping(column), extra_info.get(column, {})
        if not isinstance(inside, dict):
            raise self.error(f"extra_info.{column}", inside, "a struct")
        if here and inside and here != inside:
            raise self.error(column, here, f"the same as extra_info.{column}, or only one of them")
        return here or inside


def _are_parts(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) and isinstance(part.get("text", ""), str)
        for part in content
    )


def _from_json(value: Any) -> Any:
    """A list or mapping that a column holds as JSON text; else the value."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        with suppress(ValueError):
            return without_nones(json.loads(value))
    return value


def _is_count(value: Any) -> bool:
    count = whole_number_of(value)
    return count is not None and count > 0


def _is_seconds(value: Any) -> bool:
    seconds = None if isinstance(value, bool) else finite_number_of(value)
    return seconds is not None and seconds > 0

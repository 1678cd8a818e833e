"""Demonstrations as token ids with a loss mask, rendered as an agent loop would build them turn by turn."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentrl.config.sft import SFTDataConfig
from agentrl.data.dataset import expand_files
from agentrl.data.row import ROLES, without_nones
from agentrl.errors import DataError, TemplateError
from agentrl.plugins import load_tools
from agentrl.types import JsonDict, Message
from agentrl.workers.micro_batch_plan import MicroLimits, cut_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from agentrl.chat.renderer import ChatRenderer

logger = logging.getLogger(__name__)
_NEXT_USER: list[Message] = [{"role": "user", "content": "-"}]


@dataclass(frozen=True, slots=True)
class Example:
    """One demonstration. `mask` is 1 exactly for the assistant's tokens, end-of-turn ids included."""

    ids: list[int]
    mask: list[int]


@dataclass(frozen=True, slots=True)
class SFTBatch:
    """One forward pass: rows padded on the right, so that causal attention needs no mask.

    Attributes:
        input_ids: (b, T).
        sources: (K,) places in the flattened `input_ids` whose hidden state predicts a label.
        labels: (K,) the ids to learn.
    """

    input_ids: torch.Tensor
    sources: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device) -> SFTBatch:
        """Move everything to a device."""
        return SFTBatch(self.input_ids.to(device), self.sources.to(device), self.labels.to(device))


def render_example(
    renderer: ChatRenderer, messages: Sequence[Message], tools: Sequence[JsonDict] | None = None
) -> Example:
    """Token ids of a conversation up to its last assistant turn.

    The ids are those of an agent loop: the first prompt, then each assistant turn as the policy would have sampled it,
    with `renderer.delta` in between.

    Raises:
        TemplateError: the template does not put an assistant turn after its own generation prompt.
    """
    ids: list[int] = []
    mask: list[int] = []
    turn: list[int] = []
    since = 0
    for position, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        between = messages[since:position]
        new = (
            renderer.delta(between, sampled_ids=turn, tools=tools) if since else renderer.render_prompt(between, tools)
        )
        turn = _assistant_turn(renderer, messages, position, ids + new, tools)
        ids += new + turn
        mask += [0] * len(new) + [1] * len(turn)
        since = position + 1
    return Example(ids, mask)


def _assistant_turn(
    renderer: ChatRenderer,
    messages: Sequence[Message],
    position: int,
    context: list[int],
    tools: Sequence[JsonDict] | None,
) -> list[int]:
    """Ids of one assistant message up to the id that ends the turn."""
    whole = renderer.render(messages[: position + 1], tools)
    if whole[: len(context)] != context:  # a template that rewrites earlier turns: look at this turn alone
        context = renderer.render_prompt(messages[:position], tools)
        if whole[: len(context)] != context:
            raise TemplateError(
                f"the chat template of {renderer.name} does not render message {position} (assistant) as a "
                "continuation of its generation prompt, so the policy could not have sampled it"
            )
    tail = whole[len(context) :]
    ends = [place for place, token in enumerate(tail) if token in renderer.stop_token_ids]
    if ends:
        return tail[: ends[-1] + 1]
    following = list(messages[position + 1 : position + 2]) or _NEXT_USER
    after = renderer.delta(following, sampled_ids=tail, tools=tools)
    return tail + after[:1] if after and after[0] in renderer.stop_token_ids else tail


class SFTDataset:
    """Demonstrations of one or more parquet files, rendered once.

    Args:
        files: a path, a glob, or a list of them.
        config: `data.*`.
        renderer: renders with the model's template.

    Raises:
        DataError: a file or row cannot be used.
    """

    def __init__(self, files: str | Sequence[str], config: SFTDataConfig, renderer: ChatRenderer) -> None:
        self.files = expand_files(files)
        self._config = config
        self._renderer = renderer
        shared = load_tools(config.tool_config_path) if config.tool_config_path else []
        self._tools = [spec.schema for spec in shared] or None
        self.left_out = 0
        self.examples = [example for file in self.files for example in self._read(file)]
        if self.left_out:
            logger.warning("left out %d conversations over %d tokens", self.left_out, config.max_length)
        if not self.examples:
            raise DataError(", ".join(self.files), None, None, "no conversation that can be used", "at least one")

    def __len__(self) -> int:
        return len(self.examples)

    def _read(self, file: str) -> Iterator[Example]:
        table = _read_table(file, self._config)
        for number, row in enumerate(table.to_pylist()):
            row = without_nones(row)
            messages = _read_messages(row.get(self._config.messages_key), file, number, self._config.messages_key)
            tools = _read_tools(row.get(self._config.tools_key), file, number, self._config.tools_key) or self._tools
            try:
                example = render_example(self._renderer, messages, tools)
            except TemplateError as error:
                raise TemplateError(f"{file}, row {number}: {error}") from error
            if len(example.ids) <= self._config.max_length:
                yield example
            elif self._config.filter_overlong:
                self.left_out += 1
            else:
                wanted = f"at most {self._config.max_length} (data.max_length); or set data.filter_overlong=true"
                raise DataError(file, number, self._config.messages_key, f"{len(example.ids)} tokens", wanted)


def draw_rows(count: int, batch_size: int, shuffle: bool, seed: int) -> Iterator[list[int]]:
    """Batches of row numbers without end; every epoch uses each row once, and a batch may span two epochs."""
    pending: list[int] = []
    epoch = 0
    while True:
        while len(pending) < batch_size:
            rng = np.random.RandomState([seed % 2**32, epoch])  # its streams never change between NumPy versions
            pending += rng.permutation(count).tolist() if shuffle else list(range(count))
            epoch += 1
        yield pending[:batch_size]
        pending = pending[batch_size:]


def make_batches(examples: Sequence[Example], max_tokens: int) -> list[SFTBatch]:
    """Split examples into forward passes of similar lengths, with almost no padding."""
    cut = cut_rows(range(len(examples)), [len(example.ids) for example in examples], MicroLimits(max_tokens))
    return [_pad([examples[row] for piece in group for row in piece.rows]) for group in cut.groups]


def _pad(examples: Sequence[Example]) -> SFTBatch:
    width = max(len(example.ids) for example in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        mask[row, : len(example.mask)] = torch.tensor(example.mask, dtype=torch.bool)
    mask[:, 0] = False  # nothing predicts the first token
    labels = mask.flatten().nonzero().squeeze(1)
    return SFTBatch(ids, labels - 1, ids.flatten()[labels])


def _read_table(file: str, config: SFTDataConfig) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = pq.ParquetFile(file, memory_map=True)
        names = source.schema_arrow.names
        if config.messages_key not in names:
            raise DataError(
                file,
                None,
                config.messages_key,
                f"no such column among {', '.join(names)}",
                "a column with conversations (data.messages_key)",
            )
        return source.read(columns=[name for name in (config.messages_key, config.tools_key) if name in names])
    except FileNotFoundError as error:
        raise DataError(file, None, None, "no such file", "a parquet file") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(file, None, None, f"a file that is not readable as parquet ({error})", "parquet") from error


def _read_messages(value: Any, file: str, row: int, column: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise DataError(file, row, column, _short(value), "a list of {role, content, tool_calls?}")
    messages = [_read_message(message, file, row, f"{column}[{place}]") for place, message in enumerate(value)]
    roles = [message["role"] for message in messages]
    if "assistant" not in roles or roles[0] == "assistant":
        raise DataError(file, row, column, f"roles {', '.join(roles)}", "an assistant turn after another message")
    return messages


def _read_message(message: Any, file: str, row: int, column: str) -> Message:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise DataError(file, row, column, _short(message), f"{{role, content}} with a role of {', '.join(ROLES)}")
    content = message.get("content", "")
    if not isinstance(content, str):
        raise DataError(file, row, f"{column}.content", _short(content), "text")
    calls = message.get("tool_calls")
    if not calls:
        return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}
    if not isinstance(calls, list):
        raise DataError(file, row, f"{column}.tool_calls", _short(calls), "a list of calls")
    read = [_read_call(call, file, row, f"{column}.tool_calls[{place}]") for place, call in enumerate(calls)]
    return {**message, "content": content, "tool_calls": read}


def _read_call(call: Any, file: str, row: int, column: str) -> JsonDict:
    """A call with its arguments as a mapping: parquet files hold them as JSON text, templates need the object."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise DataError(file, row, column, _short(call), "{function: {name, arguments}}")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise DataError(file, row, f"{column}.arguments", _short(arguments), f"JSON ({error})") from error
    if not isinstance(arguments, dict):
        raise DataError(file, row, f"{column}.arguments", _short(arguments), "a JSON object")
    return {**call, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _read_tools(value: Any, file: str, row: int, column: str) -> list[JsonDict] | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(file, row, column, _short(value), f"JSON ({error})") from error
    if not isinstance(value, list) or not all(isinstance(schema, dict) for schema in value):
        raise DataError(file, row, column, _short(value), "a list of function schemas, or one as JSON text")
    return value


def _short(value: Any) -> str:
    shown = "nothing" if value is None else repr(value)
    return shown if len(shown) <= 120 else f"{shown[:117]}…"

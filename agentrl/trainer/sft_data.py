"""Demonstrations as token ids with a loss mask, rendered as an agent loop would build them turn by turn."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentrl.config.sft import SFTDataConfig
from agentrl.data.dataset import expand_files
from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError, DataError, TemplateError
from agentrl.plugins import load_tools
from agentrl.trainer.sft_rows import Demonstration, DemonstrationReader
from agentrl.types import JsonDict, Message

if TYPE_CHECKING:
    from agentrl.chat.renderer import ChatRenderer

logger = logging.getLogger(__name__)
_PROMPT_END = 32
"""Ids at the end of a generation prompt in which the beginning of a turn is looked for."""
_NEXT_USER: list[Message] = [{"role": "user", "content": "-"}]


@dataclass(frozen=True, slots=True)
class Example:
    """One demonstration. `mask` is 1 exactly for the assistant's tokens, end-of-turn ids included."""

    ids: Sequence[int]
    mask: Sequence[int]

    def compact(self) -> Example:
        """The same in 5 bytes a token; a list takes 44."""
        return Example(array("i", self.ids), array("b", self.mask))

    def cut(self, most: int, side: str) -> Example:
        """At most this many tokens: those on the `left` or on the `right` are cut off."""
        kept = slice(-most, None) if side == "left" else slice(most)
        return Example(self.ids[kept], self.mask[kept])

    @property
    def learns(self) -> bool:
        """Whether it has a token to learn: the first one is never predicted."""
        return any(self.mask[1:])


def render_example(
    renderer: ChatRenderer,
    messages: Sequence[Message],
    tools: Sequence[JsonDict] | None = None,
    in_turn_text: str | None = None,
) -> Example:
    """Token ids of a conversation up to its last assistant turn.

    The ids are those of an agent loop: the first prompt, then each assistant turn as the policy would have sampled it,
    with `renderer.delta` in between.

    Args:
        renderer: renders with the model's template.
        messages: the conversation.
        tools: the schemas that the template shows.
        in_turn_text: `data.in_turn_text`.

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
        if in_turn_text and _stands_in_turn(between):
            new = [i for shown in between for i in renderer.encode_text(_in_turn(in_turn_text, shown))]
        elif since:
            new = renderer.delta(between, sampled_ids=turn, tools=tools)
        else:
            new = renderer.render_prompt(between, tools)
        if in_turn_text and _stands_in_turn(messages[position + 1 : position + 2], between):
            turn = _part_of_a_turn(renderer, messages, position)
        else:
            turn = _assistant_turn(renderer, messages, position, ids + new, tools)
        ids += new + turn
        mask += [0] * len(new) + [1] * len(turn)
        since = position + 1
    return Example(ids, mask)


def _stands_in_turn(*neighbours: Sequence[Message]) -> bool:
    """Whether any of these stretches of messages is what tools said within a turn of the model."""
    return any(shown and all(message["role"] == "tool" for message in shown) for shown in neighbours)


def _in_turn(in_turn_text: str, message: Message) -> str:
    return in_turn_text.replace("{content}", str(message["content"]))


def _part_of_a_turn(renderer: ChatRenderer, messages: Sequence[Message], position: int) -> list[int]:
    """Ids of an assistant message before or after a tool message in the same turn; the last part ends the turn.

    A stop string ends the parts before, so nothing but their text is sampled: `<search>Zoru</search>`.
    """
    message = messages[position]
    if message.get("tool_calls"):
        raise TemplateError(
            f"message {position} (assistant) has `tool_calls`, and data.in_turn_text puts tool messages within the "
            "model's turn: write the call in its `content`, as the model writes it"
        )
    vault: list[str] = []
    text = renderer.encoder.protect_turn(str(message["content"]), vault)
    ends = not _stands_in_turn(messages[position + 1 : position + 2])
    return [*renderer.encoder.encode(text, vault), *(renderer.turn_end_ids if ends else ())]


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
            turn = _turn_after_its_beginning(renderer, messages[position], context)
            if turn is not None:
                return turn
            raise TemplateError(
                f"the chat template of {renderer.name} does not render message {position} (assistant) as a "
                "continuation of its generation prompt, so the policy could not have sampled it: give a template that "
                "does (model.chat_template)"
            )
    tail = whole[len(context) :]
    _require_calls(renderer, messages[position], position, tail)
    end = next((place for place, token in enumerate(tail) if token in renderer.stop_token_ids), None)
    if end is not None:  # generation ends there, whatever the template adds at the end of a conversation
        return tail[: end + 1]
    following = list(messages[position + 1 : position + 2]) or _NEXT_USER
    after = renderer.delta(following, sampled_ids=tail, tools=tools)
    return tail + after[:1] if after and after[0] in renderer.stop_token_ids else tail


def _turn_after_its_beginning(renderer: ChatRenderer, message: Message, context: Sequence[int]) -> list[int] | None:
    r"""A turn whose beginning the generation prompt has already, under a template that leaves thoughts out.

    DeepSeek-R1 renders "<think>\nHm.\n</think>\n42" as "42", behind a generation prompt that ends in "<think>\n": the
    policy samples "Hm.\n</think>\n42" and the end of the turn. None: the content does not begin as the prompt ends.
    """
    content, prompt = message["content"], renderer.encoder.decode(list(context[-_PROMPT_END:]))
    sizes = range(min(len(prompt), len(content)), 0, -1)
    begun = next((size for size in sizes if prompt.endswith(content[:size]) and content[:size].strip()), 0)
    if not begun or message.get("tool_calls"):
        return None
    vault: list[str] = []
    text = renderer.encoder.protect_turn(content[begun:], vault)
    return [*renderer.encoder.encode(text, vault), *renderer.turn_end_ids]


def _require_calls(renderer: ChatRenderer, message: Message, position: int, turn: Sequence[int]) -> None:
    """Refuse a template that leaves out a turn's calls: the model would learn to say nothing in their place."""
    text = renderer.encoder.decode(list(turn))
    for call in message.get("tool_calls") or ():
        if call["function"]["name"] not in text:
            raise TemplateError(
                f"the chat template of {renderer.name} does not render the call of {call['function']['name']} in "
                f"message {position} (assistant): give a template with tool calls (model.chat_template)"
            )


def _with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """For templates that write the arguments of a call as they are (DeepSeek's): JSON text in place of objects."""

    def changed(call: JsonDict) -> JsonDict:
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "function": {**function, "arguments": text}}

    return [
        {**m, "tool_calls": [changed(call) for call in m["tool_calls"]]} if "tool_calls" in m else m for m in messages
    ]


class SFTDataset:
    """Demonstrations of one or more parquet files, rendered once.

    Args:
        files: a path, a glob, or a list of them.
        config: `data.*`.
        renderer: renders with the model's template.
        max_samples: use at most this many rows; -1: all.

    Raises:
        DataError: a file or row cannot be used.
    """

    def __init__(
        self, files: str | Sequence[str], config: SFTDataConfig, renderer: ChatRenderer, max_samples: int = -1
    ) -> None:
        self.files = expand_files(files)
        self._config = config
        self._renderers: dict[bool | None, ChatRenderer] = {None: renderer}
        shared = load_tools(config.tool_config_path) if config.tool_config_path else []
        self._tools = [spec.schema for spec in shared] or None
        self.left_out = self.cut = self.empty = self.unthought = 0
        self._read_rows = 0
        self.examples = [example for file in self.files for example in self._read(file, max_samples)]
        self._tell()
        if not self.examples:
            raise DataError(", ".join(self.files), None, None, "no conversation that can be used", "at least one")

    def __len__(self) -> int:
        return len(self.examples)

    def _read(self, file: str, max_samples: int) -> Iterator[Example]:
        left = -1 if max_samples < 0 else max_samples - self._read_rows
        for shown in DemonstrationReader(file, self._config).rows(left):
            self._read_rows += 1
            whole = self._render(shown, file)
            self.unthought += not _says_thoughts(self._renderers[None], shown.messages, whole)
            example = self._fit(whole, file, shown.row)
            if example is None:
                self.left_out += 1
            elif example.learns:
                yield example.compact()
            else:
                self.empty += 1

    def _render(self, shown: Demonstration, file: str) -> Example:
        if shown.thinking not in self._renderers:
            self._renderers[shown.thinking] = self._renderers[None].with_variables(enable_thinking=shown.thinking)
        renderer, tools = self._renderers[shown.thinking], shown.tools or self._tools
        try:
            return render_example(renderer, shown.messages, tools, self._config.in_turn_text)
        except TemplateError as error:
            if any("tool_calls" in message for message in shown.messages):
                with suppress(TemplateError):
                    return render_example(renderer, _with_text_arguments(shown.messages), tools)
            raise TemplateError(f"{file}, row {shown.row}: {error}") from error

    def _fit(self, example: Example, file: str, row: int) -> Example | None:
        """The example within `data.max_length`; None: it is left out."""
        config, length = self._config, len(example.ids)
        if length <= config.max_length:
            return example
        if config.filter_overlong:
            return None
        if config.truncation == "error":
            raise DataError(
                *(file, row, None, f"{length} tokens"),
                f"at most {config.max_length} (data.max_length); or set data.filter_overlong=true, or data.truncation "
                "to left or right",
            )
        self.cut += 1
        return example.cut(config.max_length, config.truncation)

    def _tell(self) -> None:
        most = self._config.max_length
        for count, what in (
            (self.left_out, f"left out {self.left_out} of {self._read_rows} conversations: over {most} tokens"),
            (
                self.cut,
                f"cut {self.cut} of {self._read_rows} conversations ({self._config.truncation}) to {most} tokens",
            ),
            (self.empty, f"left out {self.empty} conversations: nothing to learn is left of them"),
            (self.unthought, f"the chat template leaves out `reasoning_content` in {self.unthought} conversations"),
        ):
            if count:
                logger.warning("%s", what)


def _says_thoughts(renderer: ChatRenderer, messages: Sequence[Message], example: Example) -> bool:
    """Whether every assistant's `reasoning_content` is in the rendering."""
    thoughts = [str(m["reasoning_content"]).strip() for m in messages if m.get("reasoning_content")]
    text = renderer.encoder.decode(list(example.ids)) if thoughts else ""
    return all(thought in text for thought in thoughts)


class RowOrder:
    """Row numbers without end: every epoch has each row once, in a new seeded order, and a batch may span two epochs.

    Args:
        count: number of rows.
        shuffle: false: the order of the files.
        seed: of the order.
    """

    def __init__(self, count: int, shuffle: bool, seed: int) -> None:
        self._identity = {"rows": count, "shuffle": shuffle, "seed": seed}
        self._drawn = 0
        self._orders: dict[int, list[int]] = {}

    def take(self, size: int) -> list[int]:
        """The next row numbers."""
        count, first = self._identity["rows"], self._drawn
        self._drawn += size
        # 5 rows, 3 at a time: the second batch has draws 3, 4 and 5: the last two of epoch 0, the first of epoch 1.
        orders = {epoch: self._order(epoch) for epoch in range(first // count, (self._drawn - 1) // count + 1)}
        return [orders[draw // count][draw % count] for draw in range(first, self._drawn)]

    def state_dict(self) -> dict[str, Any]:
        """The cursor, as plain values."""
        return {**self._identity, "drawn": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            ConfigError: the state belongs to other rows or to another order.
        """
        for key, value in self._identity.items():
            if state.get(key) != value:
                raise ConfigError(
                    f"{_KEY_OF[key]}: the checkpoint was made with {key}={state.get(key)!r}, this run has {value!r}; "
                    "it cannot continue in the same order of rows (trainer.resume_mode=disable starts anew)"
                )
        self._drawn = state["drawn"]

    def _order(self, epoch: int) -> list[int]:
        count = self._identity["rows"]
        if not self._identity["shuffle"]:
            return list(range(count))
        if epoch not in self._orders:
            rng = np.random.RandomState([self._identity["seed"] % 2**32, epoch])  # its streams never change
            self._orders = {epoch: rng.permutation(count).tolist()}
        return self._orders[epoch]


_KEY_OF = {"rows": "data.train_files", "shuffle": "data.shuffle", "seed": "trainer.seed"}


def as_batch(examples: Sequence[Example]) -> DataProto:
    """The padded rows that workers take: the first token stands for the prompt, all others for the response.

    Returns:
        `input_ids`, `attention_mask` (B, T), `responses`, `loss_mask` (B, T - 1).
    """
    width = max(len(example.ids) for example in examples)
    ids, attention, mask = (torch.zeros(len(examples), width, dtype=torch.long) for _ in range(3))
    for row, example in enumerate(examples):
        length = len(example.ids)
        ids[row, :length] = torch.from_numpy(np.array(example.ids, dtype=np.int64))
        mask[row, :length] = torch.from_numpy(np.array(example.mask, dtype=np.int64))
        attention[row, :length] = 1
    return DataProto({"input_ids": ids, "attention_mask": attention, "responses": ids[:, 1:], "loss_mask": mask[:, 1:]})

"""A user played by a language model behind any OpenAI-compatible endpoint, or by a script."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

from agentrl.errors import ToolServiceError, suggest
from agentrl.interfaces import BaseInteraction, ServiceClient, check_config
from agentrl.types import InteractionResponse, JsonDict, Message

_CONFIG = (
    *("base_url", "model", "api_key_env", "temperature", "max_tokens", "timeout_s", "retries", "backoff_s", "extra"),
    *("system_prompt", "stop_marker", "success_marker", "script"),
)
_SYSTEM = (
    "You are a person who talks with an assistant. What you want: {query}\n"
    "Write only your own next message, in a sentence or two. Do not solve the task yourself. "
    "Once you have what you want, or the assistant cannot help you, answer {stop_marker} and nothing else."
)
_STOP = "[END]"
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


class UserSimulatorInteraction(BaseInteraction):
    """Answers as a user until it writes its stop marker.

    Args:
        config: the model: `base_url` (an address that ends in `/v1`), `model`, `api_key_env` (name of the environment
            variable that holds the key), `temperature` (1.0), `max_tokens` (256), `timeout_s` (30), `retries` (3),
            `backoff_s` (0.5), `extra` (more fields of the request). The user: `system_prompt` (a template with the
            row's fields, `{stop_marker}` and `{success_marker}`), `stop_marker` ("[END]"), `success_marker` (null; if
            set, a reply that holds it ends the conversation with score 1, and a stop without it scores 0). `script`:
            fixed replies, used in order instead of a model; the conversation ends after the last.

    A row provides the template's fields, for example `query` and `persona`; its own `script` replaces the config's.
    """

    def __init__(self, config: JsonDict) -> None:
        super().__init__(config)
        check_config(config, _CONFIG)
        self._stop = str(config.get("stop_marker", _STOP))
        self._success: str | None = config.get("success_marker")
        self._template = str(config.get("system_prompt", _SYSTEM))
        self._fields = _fields_of(self._template)
        self._script: list[str] | None = _script(config.get("script"))
        self._service = None if self._script is not None and "base_url" not in config else _service(config)
        self._system = ""
        self._turn = 0
        self._score = 0.0

    async def start_interaction(self, **interaction_kwargs: Any) -> None:
        """Fill the system prompt with the row's fields.

        Raises:
            ValueError: the row lacks a field of the template.
        """
        self._script = _script(interaction_kwargs.get("script")) or self._script
        if self._script is not None:
            return
        known = {**interaction_kwargs, "stop_marker": self._stop, "success_marker": self._success or ""}
        for name in self._fields:
            if name not in known:
                raise ValueError(
                    f"`interaction_kwargs` has no '{name}', which `config.system_prompt` uses.{suggest(name, known)}"
                )
        self._system = self._template.format(**known)
        if self._service is not None:
            self._service.scope = self.scope

    async def generate_response(self, messages: list[Message]) -> InteractionResponse:
        """The user's next message.

        Raises:
            ToolServiceError: the endpoint gave no answer, after retries.
        """
        said = self._next_line() if self._script is not None else await self._ask(messages)
        self._turn += 1
        done = self._success is not None and self._success in said
        over = done or self._stop in said
        text = said.replace(self._stop, "").replace(self._success or self._stop, "").strip()
        if not over:
            return InteractionResponse(False, text)
        self._score = float(done)
        return InteractionResponse(True, text, self._score if self._success is not None else None)

    async def calculate_score(self) -> float:
        """1 once the user has written `success_marker`, else 0."""
        return self._score

    async def finalize_interaction(self) -> None:
        """Close the interaction's own connections."""
        if self._service is not None:
            await self._service.aclose()

    def _next_line(self) -> str:
        script = self._script or []
        return script[self._turn] if self._turn < len(script) else self._stop

    async def _ask(self, messages: Sequence[Message]) -> str:
        if self._service is None:
            raise ToolServiceError("user_simulator: the row has no `script`, and `config.base_url` is not set")
        body = {
            "model": self.config.get("model", "default"),
            "messages": [{"role": "system", "content": self._system}, *swap_roles(messages)],
            "temperature": float(self.config.get("temperature", 1.0)),
            "max_tokens": int(self.config.get("max_tokens", 256)),
            **(self.config.get("extra") or {}),
        }
        return await self._service.chat(body)


def swap_roles(messages: Sequence[Message]) -> list[Message]:
    """The conversation as the simulated user sees it: the assistant's turns are `user`, its own are `assistant`.

    The user sees no system and tool messages, no turns that called a tool and no thinking.
    """
    seen: list[Message] = []
    for message, following in zip(messages, [*messages[1:], {"role": ""}], strict=True):
        role = {"assistant": "user", "user": "assistant"}.get(message["role"])
        if role is None or following["role"] == "tool":
            continue
        content = _THINKING.sub("", str(message["content"])).strip()
        if seen and seen[-1]["role"] == role:  # the messages between the two are hidden
            seen[-1] = {"role": role, "content": f"{seen[-1]['content']}\n\n{content}"}
        else:
            seen.append({"role": role, "content": content})
    return seen


def _service(config: JsonDict) -> ServiceClient:
    variable = config.get("api_key_env")
    try:
        headers = ServiceClient.bearer(None if variable is None else str(variable))
    except ValueError as error:
        raise ValueError(f"`config.api_key_env`: {error}") from error
    try:
        return ServiceClient(
            config.get("base_url"),
            timeout_s=float(config.get("timeout_s", 30.0)),
            retries=int(config.get("retries", 3)),
            backoff_s=float(config.get("backoff_s", 0.5)),
            headers=headers,
        )
    except ValueError as error:
        raise ValueError(f"`config.base_url` {error}") from error


def _fields_of(template: str) -> list[str]:
    try:
        return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"`config.system_prompt`: {error}; write {{{{ for a brace") from error


def _script(value: Any) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(line, str) for line in value):
        raise ValueError(f"`script`: got {value!r:.200}, wanted a list of texts")
    return list(value)

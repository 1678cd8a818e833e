"""Recorded exchanges, and how an answer is held against one.

A recording's answer is JSON in which a text in angle brackets stands for what the contract does not fix:
`<str>`, `<float>`, `<any>`, `<has WORD>` (a text with it), `<titled>` (`"Title"`, a line end, a text), `<texts>` (an
object of texts). A list whose last item is `...` may go on like the item before it, and an object with the key
`...` may have more keys. All else is equal to the answer: the keys and their order, types, nesting, lengths and order
of lists.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx

RECORDINGS = Path(__file__).with_name("recordings")
_MARK = re.compile(r"<(?:(str|float|any|titled|texts)|has (.+))>")
_TITLED = re.compile(r'"[^\n]+"\n.+', re.DOTALL)


def recordings(service: str) -> list[dict[str, Any]]:
    """The exchanges of a service, in the order in which they were made."""
    found: list[dict[str, Any]] = json.loads((RECORDINGS / f"{service}.json").read_text(encoding="utf-8"))
    return found


def replay(client: httpx.Client, exchange: dict[str, Any], kept: dict[str, str]) -> list[str]:
    """Send a recorded request; how the answer differs from the recorded one.

    Args:
        client: of a running server.
        exchange: the recording.
        kept: values of earlier answers that paths name; this one's are added.
    """
    path = exchange["path"]
    for name, value in kept.items():
        path = path.replace(name, value)
    sent = {"json": exchange["body"]} if "body" in exchange else {"content": exchange.get("text")}
    answer = client.request(exchange["method"], path, **sent)
    if answer.status_code != exchange["status"]:
        return [f"status: got {answer.status_code}, wanted {exchange['status']}: {answer.text:.300}"]
    if answer.headers["content-type"] != "application/json":
        return [f"content-type: got {answer.headers['content-type']}"]
    given = answer.json()
    kept |= {name: given[key] for name, key in exchange.get("keep", {}).items()}
    return differences(given, exchange["answer"])


def differences(given: Any, wanted: Any, where: str = "answer") -> list[str]:
    """Where an answer is not what the recording wants."""
    if isinstance(wanted, str) and (mark := _MARK.fullmatch(wanted)) is not None:
        return [] if _fits(given, mark) else [f"{where}: got {given!r}, wanted {wanted}"]
    if type(given) is not type(wanted):
        return [f"{where}: got {given!r}, wanted {wanted!r}"]
    if isinstance(wanted, dict):
        keys = [key for key in wanted if key != "..."]
        if (list(given)[: len(keys)] if "..." in wanted else list(given)) != keys:
            return [f"{where}: got the keys {list(given)}, wanted {list(wanted)}"]
        return [each for key in keys for each in differences(given[key], wanted[key], f"{where}.{key}")]
    if isinstance(wanted, list):
        return _list_differences(given, wanted, where)
    return [] if given == wanted else [f"{where}: got {given!r}, wanted {wanted!r}"]


def _list_differences(given: list[Any], wanted: list[Any], where: str) -> list[str]:
    if wanted and wanted[-1] == "...":
        start = wanted[:-1]
        wanted = start + start[-1:] * (len(given) - len(start))
    if len(given) != len(wanted):
        return [f"{where}: got {len(given)} items, wanted {len(wanted)}"]
    pairs = enumerate(zip(given, wanted, strict=True))
    return [each for i, (one, other) in pairs for each in differences(one, other, f"{where}[{i}]")]


def _fits(given: Any, mark: re.Match[str]) -> bool:
    kind, word = mark.groups()
    if kind == "any":
        return True
    if kind == "float":
        return isinstance(given, float)
    if kind == "texts":
        return isinstance(given, dict) and bool(given) and all(isinstance(text, str) for text in given.values())
    if not isinstance(given, str):
        return False
    return word in given if word else kind == "str" or _TITLED.fullmatch(given) is not None

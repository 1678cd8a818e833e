"""Notes on keys that were accepted but do nothing: one line per reason, however many keys a file writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

_MANY = 4
"""From this number on, the keys of a section of which nothing else was written are told as `section.*`."""


def idle_notes(reasons: Mapping[str, str], written: Iterable[str]) -> list[str]:
    """One line for all keys that do nothing for the same reason.

    Args:
        reasons: why a key does nothing.
        written: every key that the user wrote.
    """
    keys: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        keys.setdefault(reason, []).append(key)
    everything = list(written)
    return [
        f"{_listed(group, everything)} {'have' if len(group) > 1 else 'has'} no effect here: {reason}"
        for reason, group in keys.items()
    ]


def _listed(keys: list[str], written: Iterable[str]) -> str:
    """`critic.* (12 keys) and trainer.critic_warmup`."""
    left, names = dict.fromkeys(keys), []
    for key in keys:
        if key not in left:
            continue
        section, members = _whole_section(key, left.keys(), written)
        names.append(f"{section}.* ({len(members)} keys)" if section else key)
        for member in members:
            del left[member]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _whole_section(key: str, keys: Set[str], written: Iterable[str]) -> tuple[str, list[str]]:
    """The largest section around a key of which nothing else was written; no section: the key alone."""
    parts = key.split(".")
    for end in range(1, len(parts)):
        section = ".".join(parts[:end])
        members = [other for other in written if other.startswith(f"{section}.")]
        if len(members) >= _MANY and keys >= set(members):
            return section, members
    return "", [key]

"""One conversation as a pytest test: the run's score function gives its answer the reward that it got.

::

    def test_score():                          # copied from the page, into a file of the user's own suite
        outcome = score(data_source=..., solution_str=ANSWER, ...)
        assert (outcome["score"] if isinstance(outcome, dict) else outcome) == pytest.approx(1.0)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pprint import pformat
from typing import Any

from agentrl.observability.viewer.records import Record, messages_of, text_field
from agentrl.reported import finite_number_of

_FRAME = '''"""A conversation of step {step} (group {uid}) of the run {run}."""

import pytest
{imports}

MESSAGES = {messages}
"""What was said; the test needs only the answer."""
ANSWER = {answer}
"""What the model wrote, its turns joined by line breaks."""
GROUND_TRUTH = {truth}
EXTRA_INFO = {extra}


def test_score():
    given = {{"ground_truth": GROUND_TRUTH, "extra_info": EXTRA_INFO{options}}}
    outcome = score(data_source={source}, solution_str=ANSWER, **given)
    assert (outcome["score"] if isinstance(outcome, dict) else outcome) == pytest.approx({wanted})
'''
_ODD = re.compile(r"[^\w ./-]")
"""A model's text or a name must not end the docstring that it stands in."""
_BUILT_IN = "\nfrom agentrl.rewards.dispatcher import default_compute_score as score"


def as_test(record: Record, run: str, custom: Mapping[str, Any] | None) -> str:
    """The text of the test.

    Args:
        record: the trajectory.
        run: name of the run.
        custom: `custom_reward_function` of its configuration.
    """
    said, extra = record.get("solution_str"), record.get("extra_info")
    parts = record.get("reward_extra_info")
    outcome = parts.get("outcome_score") if isinstance(parts, dict) else None
    imports, options = _score_function(custom or {})
    return _FRAME.format(
        step=_ODD.sub("_", text_field(record, "step")),
        uid=_ODD.sub("_", text_field(record, "uid")),
        run=_ODD.sub("_", run),
        imports=imports,
        messages=pformat(messages_of(record), width=110, sort_dicts=False),
        answer=pformat(said if isinstance(said, str) else record["output"], width=110),
        truth=pformat(record.get("gts"), width=110),
        extra=pformat(extra if isinstance(extra, dict) else {}, width=110, sort_dicts=False),
        source=repr(text_field(record, "data_source")),
        options=options,
        # Where turns or tools give rewards too, the score function's part of the whole.
        wanted=repr(finite_number_of(record.get("score") if outcome is None else outcome)),
    )


def _score_function(custom: Mapping[str, Any]) -> tuple[str, str]:
    """The import of the run's score function, and the options that the run gives it."""
    path, name, options = custom.get("path"), custom.get("name") or "compute_score", custom.get("reward_kwargs")
    given = f", **{pformat(options, width=110)}" if isinstance(options, dict) and options else ""
    if not isinstance(path, str):
        return _BUILT_IN, given
    path = path.removeprefix("pkg://")  # how verl marks a module
    # `file.py:name`, `package.module.name`; a path of neither kind is the registered name of a score function.
    place = f"{path}:{name}" if path.endswith(".py") else f"{path}.{name}" if "." in path else path
    return f'\nfrom agentrl.plugins import resolve\n\nscore = resolve("rewards", {place!r})', given

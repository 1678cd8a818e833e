"""One conversation as a pytest test: the run's score function gives its answer the score that it got.

::

    def test_score():                          # copied from the page, into a file of the user's own suite
        assert score_again(RECORD, RUN) == pytest.approx(1.0)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pprint import pformat
from typing import Any

from agentrl.observability.dumps import outcome_of, scored_text
from agentrl.observability.tracker import without_secrets
from agentrl.observability.viewer.records import Record, messages_of, text_field
from agentrl.reported import finite_number_of

Setting = Callable[[str], Any]

_FRAME = '''"""A conversation of step {step} (group {uid}) of the run {run}."""

import pytest

from agentrl.testing.scores import score_again

RUN = {scoring}
"""How the run scores."""
MESSAGES = {messages}
"""What was said."""
ANSWER = {answer}
"""What the model wrote, its turns joined by line breaks."""
GROUND_TRUTH = {truth}
EXTRA_INFO = {extra}
RECORD = {{
    "data_source": {source},
    "solution_str": ANSWER,
    "gts": GROUND_TRUTH,
    "extra_info": EXTRA_INFO,
    "messages": MESSAGES,{counts}
}}


def test_score():
    assert score_again(RECORD, RUN) == pytest.approx({wanted})
'''
_NO_TEST = "# This conversation makes no test: {reason}.\n"
_ODD = re.compile(r"[^\w ./-]")
"""A model's text or a name must not end the docstring that it stands in."""
TEXT_MANAGERS = ("naive", "batch", "prime", "dapo")
"""Reward managers that need no tokenizer."""
_MODEL = tuple(f"actor_rollout_ref.model.{name}" for name in ("path", "tokenizer_path", "trust_remote_code"))


def as_test(record: Record, name: str, setting: Setting) -> str:
    """The text of the test; a comment that says why, where no score function gave the reward.

    Args:
        record: the trajectory.
        name: of the run.
        setting: the value of a dotted key of its configuration; None where it has no such key.
    """
    if finite_number_of(record.get("score")) is None:
        return _NO_TEST.format(reason="it has no score")
    if setting("reward_model.combine.outcome") == 0:
        return _NO_TEST.format(reason="reward_model.combine.outcome is 0, so that no score function is called")
    messages, extra = messages_of(record), record.get("extra_info")
    counts = [f'\n    "{key}": {record[key]!r},' for key in ("num_turns", "num_tool_calls") if key in record]
    return _FRAME.format(
        step=_ODD.sub("_", text_field(record, "step")),
        uid=_ODD.sub("_", text_field(record, "uid")),
        run=_ODD.sub("_", name),
        scoring=_literal(without_secrets(_scoring(setting))),
        messages=_literal(messages),
        answer=_literal(scored_text({**record, "messages": messages})),
        truth=_literal(record.get("gts")),
        extra=_literal(extra if isinstance(extra, dict) else {}),
        source=repr(text_field(record, "data_source")),
        counts="".join(counts),
        wanted=repr(outcome_of(record)),
    )


def _scoring(setting: Setting) -> dict[str, Any]:
    """The keys that say how the run scores a text, without those that are null or empty."""
    manager = setting("reward_manager.name") or setting("reward_model.reward_manager") or "naive"
    imported = setting("reward_manager.source") == "importlib"
    keys = ["plugins", "custom_reward_function.reward_kwargs", "reward_model.timeout_s"]
    if setting("custom_reward_function.path"):
        keys += ["custom_reward_function.path", "custom_reward_function.name"]
    elif setting("reward_model.sandbox_fusion.url"):
        keys.append("reward_model.sandbox_fusion")
    if imported or manager not in TEXT_MANAGERS:
        keys += ["reward_model.reward_kwargs", *_MODEL]
    found = {"reward_manager": setting("reward_manager")} if imported else {"reward_model.reward_manager": manager}
    return found | {key: value for key in keys if (value := setting(key)) not in (None, {}, [])}


def _literal(value: Any) -> str:
    return pformat(value, width=110, sort_dicts=False)

"""The reference page is complete and the committed one is up to date."""

from __future__ import annotations

from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config.reference import config_reference
from agentrl.config.schema import section_of, walk
from agentrl.config.sft import SFTConfig
from agentrl.config.verl_keys import VERL_KEYS

PAGE = Path(__file__).parents[2] / "docs" / "config_reference.md"


def test_every_key_is_on_the_page_and_has_a_meaning() -> None:
    page = config_reference()
    assert "``\n" not in page.replace("```\n", "")  # no heading is empty
    for model in (RunConfig, SFTConfig):
        for key, field in walk(model):
            assert field.description, key
            if section_of(field) is None:
                assert f"| `{key}` |" in page
    assert all(f"| `{key}` |" in page for key in VERL_KEYS)


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == config_reference(), (
        "run `agentrl docs config --out docs/config_reference.md`"
    )

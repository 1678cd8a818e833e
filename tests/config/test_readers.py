"""Every configuration key is read by code that acts on it: a key that nothing reads would be a silent no-op."""

from __future__ import annotations

from pathlib import Path

from reads import Reads

from agentrl.config import RunConfig
from agentrl.config.base import Section
from agentrl.config.root import CriticConfig
from agentrl.config.schema import section_of, walk
from agentrl.config.sft import SFTConfig

PACKAGE = Path(__file__).parents[2] / "agentrl"
CONFIG = PACKAGE / "config"
MODELS = [CONFIG / f"{name}.py" for name in ("actor", "data", "machine", "rollout", "root", "sft")]


def all_sections() -> set[type[Section]]:
    def below(section: type[Section]) -> set[type[Section]]:
        return {section}.union(*map(below, section.__subclasses__()))

    return below(Section)


def source_files() -> list[Path]:
    """Code that acts on configuration, and the models' own methods; checks and the reference page do not count."""
    outside = [file for file in PACKAGE.rglob("*.py") if CONFIG not in file.parents and "testing" not in file.parts]
    return outside + MODELS


def owners(model: type[Section], key: str) -> type[Section]:
    """The section that holds a key."""
    for name in key.split(".")[:-1]:
        section = section_of(model.model_fields[name])
        assert section is not None
        model = section
    return model


def test_every_key_has_a_reader() -> None:
    found = Reads(all_sections(), source_files()).found
    unread = []
    found.add((CriticConfig, "enable"))  # asks for what `adv_estimator` says, or is an error: only a check reads it
    for model in (RunConfig, SFTConfig):
        for key, _ in walk(model):
            owner, name = owners(model, key), key.rpartition(".")[2]
            if not any(name == read and (issubclass(owner, kind) or issubclass(kind, owner)) for kind, read in found):
                unread.append(key)
    assert unread == []


def test_the_search_follows_types(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text(
        "def run(config: RunConfig):\n"
        "    rollout, data = config.actor_rollout_ref.rollout, config.data\n"
        "    rollout.n\n"
        "    data.seed = 3\n"
        "    other.top_p\n"
        "class A:\n"
        "    def __init__(self, config: RunConfig):\n"
        "        self.own = config.critic\n"
        "    def f(self):\n"
        "        return self.own.grad_clip\n"
    )
    names = {(kind.__name__, name) for kind, name in Reads(all_sections(), [source]).found}
    assert ("RolloutConfig", "n") in names
    assert ("CriticConfig", "grad_clip") in names
    assert not {name for _, name in names} & {"seed", "top_p"}

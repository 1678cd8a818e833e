"""`agentrl eval --compare A B`: two evaluations, or two runs' validations, on the prompts that both have."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import UserInputError
from agentrl.jobs.evaluate import ALL, FORMAT
from agentrl.jobs.statistics import PairedDifference, paired_bootstrap
from agentrl.observability.dumps import prompt_of
from agentrl.observability.run_folder import RunFolder, dump_files
from agentrl.reported import finite_number_of

RESULT_SUFFIX = ".eval.json"
_WANTED = (
    f"a result of `agentrl eval` (*{RESULT_SUFFIX}), a dump of a run ({{step}}.jsonl), or a folder that holds one of "
    "them (trainer.validation_data_dir)"
)

Key = tuple[str, str]
"""Data source and id of a prompt."""


@dataclass(frozen=True, slots=True)
class ScoredPrompts:
    """The scores of one evaluation, by prompt."""

    file: Path
    scores: dict[Key, list[float]]
    """Without those of responses that have none."""
    texts: dict[Key, str]
    """A short text of each prompt, to name it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A."""

    differences: dict[str, PairedDifference]
    """By data source, and of all together where there are several."""
    only_a: list[str]
    """Prompts that have no counterpart with a score in B."""
    only_b: list[str]

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return {
            "format": "agentrl comparison 1",
            "sources": {source: asdict(difference) for source, difference in self.differences.items()},
            "only_a": self.only_a,
            "only_b": self.only_b,
        }


def compare_evaluations(a: ScoredPrompts, b: ScoredPrompts, seed: int) -> Comparison:
    """Pair the prompts of two evaluations; each counts with the mean of its scores.

    Raises:
        UserInputError: they have no prompt in common.
    """
    shared = [key for key, scores in a.scores.items() if scores and b.scores.get(key)]
    if not shared:
        raise UserInputError(f"{a.file} and {b.file} have no prompt in common: wanted two evaluations of the same rows")
    by_source: dict[str, list[Key]] = defaultdict(list)
    for key in shared:
        by_source[key[0]].append(key)
    named = dict(sorted(by_source.items()))
    if len(named) > 1:
        named[ALL] = shared
    differences = {
        source: paired_bootstrap([_mean(a, key) for key in keys], [_mean(b, key) for key in keys], seed=seed)
        for source, keys in named.items()
    }
    return Comparison(differences, _without(a, shared), _without(b, shared))


def read_scored(path: Path) -> ScoredPrompts:
    """The scores behind a path.

    Raises:
        UserInputError: it is neither a result nor a dump, nor a folder with one.
    """
    file = _file_of(path)
    records = list(_dumped(file) if file.suffix == ".jsonl" else _evaluated(file))
    if not records:
        raise UserInputError(f"{file} holds no scores, wanted {_WANTED}")
    scores: dict[Key, list[float]] = {}
    texts: dict[Key, str] = {}
    for key, text, values in records:
        scores.setdefault(key, []).extend(values)
        texts.setdefault(key, text)
    return ScoredPrompts(file, scores, texts)


def _mean(of: ScoredPrompts, key: Key) -> float:
    return sum(of.scores[key]) / len(of.scores[key])


def _without(of: ScoredPrompts, shared: Sequence[Key]) -> list[str]:
    known = set(shared)
    return [f"{key[0]}: {of.texts[key]}" for key in of.scores if key not in known]


def _file_of(path: Path) -> Path:
    """The result or dump: of several dumps the last step's."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserInputError(f"{path} does not exist, wanted {_WANTED}")
    results = sorted(path.glob(f"*{RESULT_SUFFIX}"))
    if len(results) > 1:
        raise UserInputError(f"{path} holds several results ({', '.join(file.name for file in results)}): name one")
    if results:
        return results[0]
    run = RunFolder(path)
    for dumps in (dump_files(path), run.dumps("validation"), run.dumps("rollouts")):
        if dumps:
            return dumps[max(dumps)]
    raise UserInputError(f"{path} holds no scores, wanted {_WANTED}")


def _evaluated(file: Path) -> Iterator[tuple[Key, str, list[float]]]:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserInputError(f"{file} is not readable as JSON ({error}), wanted {_WANTED}") from error
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise UserInputError(f"{file} is no result of `agentrl eval`, wanted {_WANTED}")
    for record in result["prompts"]:
        values = [value for value in record["scores"] if value is not None]
        yield (record["data_source"], record["id"]), record["prompt"], values


def _dumped(file: Path) -> Iterator[tuple[Key, str, list[float]]]:
    try:
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        exact = _sources_with_acc(records)
        for record in records:
            source, messages = record["data_source"], record.get("messages") or []
            name = prompt_of(record)
            said = [message["content"] for message in messages if message["role"] == "user"]
            value = record["reward_extra_info"]["acc"] if source in exact else record["score"]
            yield (source, name), str((said or [record["input"]])[0])[:200], [float(value)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserInputError(
            f"{file} is no dump of rollouts ({type(error).__name__}: {error}), wanted {_WANTED}"
        ) from error


def _sources_with_acc(records: Sequence[Mapping[str, Any]]) -> set[str]:
    """Data sources whose score function reports `acc` for every response: it counts, as in validation."""
    every = {record["data_source"] for record in records}
    without = {
        record["data_source"]
        for record in records
        if finite_number_of((record.get("reward_extra_info") or {}).get("acc")) is None
    }
    return every - without

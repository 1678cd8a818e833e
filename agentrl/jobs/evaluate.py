"""`agentrl eval`: from scored responses to a result: statistics by data source, and the scores of every prompt."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.config.jobs import EvalConfig, EvalStatistics
from agentrl.errors import ConfigError
from agentrl.jobs.parts import Advance, JobParts, identity_of, refuse_taken
from agentrl.jobs.scoring import Responses, ResponseScorer, ScoredResponse, failures_in
from agentrl.jobs.statistics import Estimate, majority_at_k, mean_over_prompts, pass_at_k, powers_up_to
from agentrl.jobs.tables import JobTable
from agentrl.observability.dumps import prompt_id
from agentrl.pictures import shown_text
from agentrl.reported import json_of
from agentrl.rollout.report import grouped_causes
from agentrl.trainer.stopping import StopGuard

FORMAT = "agentrl evaluation 1"
ALL = "all"
"""Name of the line over all data sources."""
_SHOWN_PROMPT = 200

Result = dict[str, Any]
"""As it is written: `sources` by name, `failures`, `prompts`. docs/generate_eval.md describes it."""


def result_path(job: EvalConfig) -> Path:
    """Where the result goes: as given, else beside the first file with responses."""
    if job.data.output_path is not None:
        return Path(job.data.output_path)
    assert job.data.path is not None
    first = job.data.path if isinstance(job.data.path, str) else job.data.path[0]
    return Path(first.replace("*", "all")).with_suffix(".eval.json")


def evaluate_responses(job: EvalConfig, files: str | list[str], advance: Advance, *, overwrite: bool = False) -> Result:
    """Score a file with responses and write the result and its plot.

    Args:
        job: the configuration.
        files: the files with responses.
        advance: hears how far the job is.
        overwrite: replace a result that exists.

    Raises:
        UserInputError: the result exists, or a column, row or the score function cannot be used.
        FailureBudgetError: too many responses have no score. What was scored is kept: a second start goes on.
    """
    from agentrl.jobs.plots import draw_result

    output = result_path(job)
    picture = output.with_suffix(".png")
    refuse_taken(output, picture, overwrite=overwrite)
    table = JobTable(files)
    scorer = ResponseScorer(job, table)
    ks = chosen_ks(job.eval, scorer.rows)
    with JobParts(output, _identity(job, table.files), overwrite=overwrite) as parts, StopGuard():
        scored = asyncio.run(scorer.score_all(parts, job.data.batch_size, advance))
        result = result_of(job, scorer, scored, ks)
        result["responses"] = table.files
        parts.finish(
            (picture, lambda path: draw_result(result, path)),
            (output, lambda path: _write_result(path, result)),
        )
    return result


def chosen_ks(wanted: EvalStatistics, rows: Sequence[Responses]) -> list[int]:
    """The k of pass@k and maj@k.

    Raises:
        ConfigError: a k is larger than the number of responses of some prompt.
    """
    fewest = min(len(row.texts) for row in rows)
    if wanted.k is None:
        return powers_up_to(fewest)
    if max(wanted.k) > fewest:
        raise ConfigError(
            f"eval.k: got {max(wanted.k)}, but there is a prompt with {fewest} responses: k is at most that"
        )
    return sorted(set(wanted.k))


def result_of(
    job: EvalConfig, scorer: ResponseScorer, scored: Sequence[Sequence[ScoredResponse]], ks: Sequence[int]
) -> Result:
    """The statistics of every data source and of all together."""
    by_source: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(scorer.rows):
        by_source[row.sample.data_source].append(number)
    variable = {source: _variable([scored[number] for number in rows]) for source, rows in by_source.items()}
    values = [
        [response.get(variable[row.sample.data_source]) for response in responses]
        for row, responses in zip(scorer.rows, scored, strict=True)
    ]
    votes = [[response.get("pred") for response in responses] for responses in scored]
    named = dict(sorted(by_source.items()))
    if len(named) > 1:
        named[ALL if ALL not in named else f"{ALL} data sources"] = list(range(len(scored)))
    sources = {}
    for source, rows in named.items():
        can_vote = all(any("pred" in response for response in scored[row]) for row in rows)
        sources[source] = {
            "variable": variable.get(source, " / ".join(sorted(set(variable.values())))),
            "prompts": len(rows),
            "responses": sum(len(scored[row]) for row in rows),
            "failed": len(failures_in([response for row in rows for response in scored[row]])),
            **_statistics(
                [values[row] for row in rows], [votes[row] for row in rows] if can_vote else None, ks, job.eval
            ),
        }
    failures = failures_in([response for row in scored for response in row])
    return {
        "format": FORMAT,
        "sources": sources,
        "failures": [{"count": count, "cause": cause} for count, cause in grouped_causes(failures)],
        "prompts": [
            _record(row, values[number], votes[number], number, scorer.named) for number, row in enumerate(scorer.rows)
        ],
    }


def _variable(rows: Sequence[Sequence[ScoredResponse]]) -> str:
    """`acc` where the score function reports it for every response that it scores, else its score."""
    responses = [response for row in rows for response in row if "error" not in response]
    return "acc" if responses and all("acc" in response for response in responses) else "score"


def _statistics(
    values: Sequence[Sequence[float | None]],
    votes: Sequence[Sequence[Any]] | None,
    ks: Sequence[int],
    wanted: EvalStatistics,
) -> dict[str, Any]:
    """`mean@n`, and by k `pass` and `maj`, each with its standard error; over prompts with enough scored responses."""
    groups = [[value for value in row if value is not None] for row in values]
    counts = [len(row) for row in values]
    n = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)}-{max(counts)}"
    some = [group for group in groups if group]
    found: dict[str, Any] = {"n": n, "mean": _as_json(mean_over_prompts(some, _mean) if some else None)}
    found["pass"] = {}
    found["maj"] = {}
    for k in ks:
        enough = [group for group in groups if len(group) >= k]
        passed = [pass_at_k(sum(v >= wanted.pass_at for v in group), len(group), k) for group in enough]
        found["pass"][str(k)] = _as_json(Estimate.of(passed) if passed else None)
        if votes is None or k == 1:  # of one vote the majority is the vote itself
            continue
        pairs = [_scored_votes(*pair) for pair in zip(values, votes, strict=True)]
        majority = [majority_at_k(scores, own, k, wanted.seed) for scores, own in pairs if len(scores) >= k]
        found["maj"][str(k)] = _as_json(Estimate.of(majority) if majority else None)
    return found


def _scored_votes(values: Sequence[float | None], votes: Sequence[Any]) -> tuple[list[float], list[Any]]:
    kept = [(value, vote) for value, vote in zip(values, votes, strict=True) if value is not None]
    return [value for value, _ in kept], [vote for _, vote in kept]


def _mean(group: Sequence[float]) -> float:
    return sum(group) / len(group)


def _as_json(estimate: Estimate | None) -> dict[str, float | None]:
    return {"value": None, "error": None} if estimate is None else {"value": estimate.value, "error": estimate.error}


def _record(row: Responses, values: Sequence[Any], votes: Sequence[Any], number: int, named: bool) -> dict[str, Any]:
    source = row.sample.data_source
    spoken = [shown_text(message["content"]) for message in row.sample.prompt if message["role"] == "user"]
    return {
        "row": number,
        "id": prompt_id(source, row.sample.prompt) if named else f"row {number}",
        "data_source": source,
        "prompt": str(spoken[-1] if spoken else "")[:_SHOWN_PROMPT],
        "scores": list(values),
        "answers": [json_of(vote) for vote in votes],
    }


def _identity(job: EvalConfig, files: list[str]) -> dict[str, Any]:
    """Everything that the scores depend on."""
    data, score = job.data, job.custom_reward_function
    keys = ("prompt_key", "response_key", "data_source_key", "reward_model_key", "facts_key", "batch_size")
    own = [score.path] if score.path is not None and score.path.endswith(".py") else []
    found: dict[str, Any] = {f"data.{key}": getattr(data, key) for key in keys}
    found["reward_model.reward_manager"] = job.reward_model.reward_manager
    judged = {"judge": job.reward_model.judge, "combine": job.reward_model.combine}
    for section, values in judged.items() if job.reward_model.has_judge else ():
        found |= {f"reward_model.{section}.{key}": value for key, value in values.model_dump(mode="json").items()}
    found |= {f"custom_reward_function.{key}": value for key, value in score.model_dump(mode="json").items()}
    return found | identity_of([*files, *own])


def _write_result(path: Path, result: Result) -> None:
    """Readable JSON, with one line for each prompt."""
    head = json.dumps({key: value for key, value in result.items() if key != "prompts"}, ensure_ascii=False, indent=1)
    lines = ",\n  ".join(json.dumps(record, ensure_ascii=False) for record in result["prompts"])
    path.write_text(f'{head.removesuffix("}").rstrip()},\n "prompts": [\n  {lines}\n ]\n}}\n', encoding="utf-8")

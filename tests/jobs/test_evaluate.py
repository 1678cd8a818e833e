"""`agentrl eval` on files of responses: scores as in training, statistics, failures, comparison, and a second start."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from judge_endpoint import JudgeEndpoint, judging
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.jobs.parts import JobParts

runner = CliRunner()
SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if "boom" in solution_str:
        raise KeyError(solution_str)
    return {"score": len(solution_str) / 10, "acc": solution_str == ground_truth, "pred": solution_str}
"""


def row(question: str, truth: Any, responses: Any, source: str = "openai/gsm8k", **columns: Any) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": question}],
        "data_source": source,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "responses": responses,
        **columns,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluated(*arguments: str, code: int = 0) -> Any:
    result = runner.invoke(app, ["eval", *arguments])
    assert result.exit_code == code, result.output
    return result


def result_in(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found


ROWS = [
    row("1 + 1", "2", ["#### 2", "#### 3", "#### 2", "none"]),
    row("2 + 2", "4", ["#### 5", "#### 5", "#### 4", "#### 5"]),
    row("half", r"\frac{1}{2}", [r"\boxed{0.5}", r"\boxed{1}", r"\boxed{0.5}", r"\boxed{2}"], "lighteval/MATH"),
]


def test_statistics_by_data_source_as_table_file_and_plot() -> None:
    write(Path("responses.parquet"), ROWS)
    told = evaluated("data.path=responses.parquet")
    found = result_in("responses.eval.json")
    assert list(found["sources"]) == ["lighteval/MATH", "openai/gsm8k", "all"]
    sums = found["sources"]["openai/gsm8k"]
    assert (sums["prompts"], sums["responses"], sums["failed"], sums["n"]) == (2, 8, 0, "4")
    assert sums["mean"] == {"value": 0.375, "error": pytest.approx(0.125)}
    # 2 of 4 right, and 1 of 4: 1 - C(2,2)/C(4,2) = 5/6, 1 - C(3,2)/C(4,2) = 1/2.
    assert sums["pass"]["2"]["value"] == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert sums["pass"]["4"]["value"] == 1.0
    assert sums["maj"]["4"]["value"] == 0.5  # 2 wins the first, 5 the second
    assert found["sources"]["lighteval/MATH"]["maj"]["4"]["value"] == 1.0
    assert found["sources"]["lighteval/MATH"]["mean"]["error"] is None
    assert found["prompts"][0]["answers"] == ["2", "3", "2", None]
    assert Path("responses.eval.png").read_bytes().startswith(b"\x89PNG")
    for text in ("openai/gsm8k", "mean@4", "0.375", "pass@2", "maj@4", "result: responses.eval.json"):
        assert text in told.output
    assert sorted(path.name for path in Path().iterdir()) == [
        *("responses.eval.json", "responses.eval.png", "responses.parquet")
    ]


def test_an_own_score_function_and_its_acc_and_pred() -> None:
    Path("score.py").write_text(SCORE)
    write(
        Path("r.parquet"), [row("q", "yes", ["yes", "yes", "no"], "mine"), row("p", "no", ["yes", "no", "yes"], "mine")]
    )
    evaluated("data.path=r.parquet", "custom_reward_function.path=score.py", "eval.k=[1,3]")
    mine = result_in("r.eval.json")["sources"]["mine"]
    assert mine["variable"] == "acc"
    assert mine["mean"]["value"] == 0.5
    assert mine["pass"] == {"1": {"value": 0.5, "error": pytest.approx(1 / 6)}, "3": {"value": 1.0, "error": 0.0}}
    assert mine["maj"]["3"]["value"] == 0.5


def test_a_judge_evaluates_too() -> None:
    def reply(_: JudgeEndpoint, text: str) -> str | int:
        return 500 if "boom" in text else str(0.5 * ("yes" in text))

    write(Path("r.parquet"), [row("q", None, ["yes", "no", "boom", "yes"], "own")])
    arguments = ["data.path=r.parquet", "eval.max_failure_rate=0.25", "reward_model.judge.template='{answer}'"]
    with judging(reply) as endpoint:
        judge = [f"reward_model.judge.base_url={endpoint.url}", "reward_model.judge.retries=0"]
        told = evaluated(*arguments, *judge, "reward_model.combine.outcome=0", "reward_model.combine.judge=2")
        assert len(endpoint.bodies) == 3, "equal answers are judged once"
    assert result_in("r.eval.json")["prompts"][0]["scores"] == [1.0, 0.0, None, 1.0]
    assert "1 x no score: ToolServiceError: the judge: " in told.output
    assert (
        "reward_model.judge.base_url: got 'x'" in evaluated(*arguments, "reward_model.judge.base_url=x", code=2).output
    )


def test_failures_are_named_and_counted_and_are_no_zeros() -> None:
    Path("score.py").write_text(SCORE)
    write(
        Path("r.parquet"), [row("q", "yes", ["yes", "boom", "yes", None], "mine"), row("p", "no", ["no"] * 4, "mine")]
    )
    arguments = ("data.path=r.parquet", "custom_reward_function.path=score.py")
    refused = evaluated(*arguments, code=3)
    assert "2 of 8 responses have no score, more than eval.max_failure_rate (0.1) allows" in refused.output
    assert not Path("r.eval.json").exists()
    told = evaluated(*arguments, "eval.max_failure_rate=0.5")
    found = result_in("r.eval.json")
    assert found["sources"]["mine"]["failed"] == 2
    assert found["sources"]["mine"]["mean"]["value"] == 1.0
    assert found["prompts"][0]["scores"] == [1.0, None, 1.0, None]
    assert [failure["count"] for failure in found["failures"]] == [1, 1]
    assert re.search(r"1 x no score: .*KeyError: 'boom' \(score\.py:4\)", told.output)
    assert "failed when it was generated" in told.output


def test_a_second_start_scores_only_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("score.py").write_text(
        "from pathlib import Path\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    with Path('calls').open('a') as file: file.write(solution_str + '\\n')\n"
        "    return 1.0\n"
    )
    write(Path("r.parquet"), [row(str(i), "1", [f"r{i}"], "mine") for i in range(6)])
    keep, kept = JobParts.keep, []

    def keep_two(self: JobParts, number: int, content: Any) -> None:
        if len(kept) == 2:
            raise KeyboardInterrupt
        keep(self, number, content)
        kept.append(number)

    arguments = ("data.path=r.parquet", "custom_reward_function.path=score.py", "data.batch_size=2")
    monkeypatch.setattr(JobParts, "keep", keep_two)
    evaluated(*arguments, code=130)
    assert not Path("r.eval.json").exists()
    monkeypatch.setattr(JobParts, "keep", keep)
    before = Path("calls").read_text()
    told = evaluated(*arguments)
    assert "going on after 4 of 6 prompts that an earlier start finished" in told.output
    assert sorted(Path("calls").read_text().removeprefix(before).split()) == ["r4", "r5"]
    assert result_in("r.eval.json")["sources"]["mine"]["responses"] == 6
    assert not Path("r.eval.json.parts").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.response_key=respones"], "column 'respones': got only the columns prompt, data_source"),
        (["data.response_key=respones"], "(data.response_key). Did you mean 'responses'?"),
        (["data.reward_model_key=truth"], "column 'truth'"),
        (["data.prompt_key=question"], "column 'question'"),
        (["data.path=none.parquet"], "none.parquet: got no such file"),
        (["data.path=empty.parquet"], "empty.parquet: got no rows, wanted at least one"),
        (["data.path=numbers.parquet"], "row 0, column 'responses': got [1], wanted a text, or a list of texts"),
        (
            ["data.path=unknown.parquet"],
            "no score function for data_source 'openai/gsm8'. Did you mean 'openai/gsm8k'?",
        ),
        (["data.path=truthless.parquet"], "truthless.parquet, row 1: no `reward_model.ground_truth`"),
        (["custom_reward_function.path=score.py"], "score.py does not exist"),
        (["eval.k=[5]"], "eval.k: got 5, but there is a prompt with 4 responses"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(arguments: list[str], message: str) -> None:
    write(Path("responses.parquet"), ROWS)
    pq.write_table(pq.read_table("responses.parquet").slice(0, 0), "empty.parquet")
    write(Path("numbers.parquet"), [row("q", "1", [1])])
    write(Path("unknown.parquet"), [row("q", "1", ["1"], "openai/gsm8")])
    write(Path("truthless.parquet"), [row("q", "1", ["1"]), row("q", None, ["1"])])
    before = sorted(Path().iterdir())
    told = evaluated("data.path=responses.parquet", *arguments, code=2)
    assert message in told.output
    assert told.output.count("error:") == 1
    assert sorted(Path().iterdir()) == before


def test_a_configuration_is_given_once() -> None:
    told = evaluated("y.yaml", "--config", "x.yaml", code=2)
    assert "got the configuration twice: y.yaml and x.yaml" in told.output


def test_a_result_that_exists_is_kept() -> None:
    write(Path("r.parquet"), ROWS)
    Path("r.eval.json").write_text("mine")
    assert "r.eval.json already exists" in evaluated("data.path=r.parquet", code=2).output
    assert Path("r.eval.json").read_text() == "mine"
    evaluated("data.path=r.parquet", "--overwrite")
    assert result_in("r.eval.json")["sources"]
    evaluated("data.path=r.parquet", "--out", "other.json")
    assert Path("other.png").exists()


def test_a_comparison_never_replaces_what_it_reads() -> None:
    write(Path("r.parquet"), ROWS)
    evaluated("data.path=r.parquet")
    evaluated("data.path=r.parquet", "--out", "other.json")
    before = Path("other.json").read_text()
    told = evaluated("--compare", "r.eval.json", "other.json", "--out", "other.json", "--overwrite", code=2)
    assert "other.json is a file that this command reads: give another output" in told.output
    assert Path("other.json").read_text() == before


def test_single_texts_and_prompts_without_a_column() -> None:
    rows = [{key: value for key, value in row("", "2", "#### 2").items() if key != "prompt"}]
    write(Path("r.parquet"), rows)
    told = evaluated("data.path=r.parquet")
    assert "mean@1" in told.output
    assert result_in("r.eval.json")["prompts"][0]["id"] == "row 0"


def test_two_results_are_compared_on_the_prompts_that_both_have() -> None:
    better = [
        row("1 + 1", "2", ["#### 2"] * 4),
        row("2 + 2", "4", ["#### 4", "#### 4", "#### 4", "#### 5"]),
        row("new", "4", ["#### 4"] * 4),
    ]
    write(Path("a.parquet"), ROWS)
    write(Path("b.parquet"), better)
    for name in "ab":
        evaluated(f"data.path={name}.parquet")
    told = evaluated("--compare", "a.eval.json", "b.eval.json", "--out", "difference.json")
    found = result_in("difference.json")
    sums = found["sources"]["openai/gsm8k"]
    assert list(found["sources"]) == ["openai/gsm8k"]
    assert (sums["prompts"], sums["mean_a"], sums["mean_b"], sums["better"]) == (2, 0.375, 0.875, 1.0)
    assert sums["low"] <= 0.5 <= sums["high"]
    assert found["only_a"] == ["lighteval/MATH: half"]
    assert found["only_b"] == ["openai/gsm8k: new"]
    for text in ("+0.500", "1 prompts have a score only in A", "half", "B better"):
        assert text in told.output
    again = evaluated("--compare", "a.eval.json", "b.eval.json", "--out", "difference.json", code=2)
    assert "difference.json already exists" in again.output


def dump(folder: Path, step: int, scores: list[float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    records = [
        {
            "input": f"<user>{question} + {question}",
            "score": score,
            "uid": f"0-{question}",
            "data_source": "openai/gsm8k",
            "messages": [
                {"role": "user", "content": f"{question} + {question}"},
                {"role": "assistant", "content": "x"},
            ],
            "reward_extra_info": {},
        }
        for question, score in enumerate(scores, start=1)
    ]
    (folder / f"{step}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_runs_are_compared_by_their_last_validation_also_with_a_result() -> None:
    dump(Path("run_a/validation"), 0, [1.0, 1.0])
    dump(Path("run_a/validation"), 20, [0.0, 0.0])
    dump(Path("elsewhere"), 9, [1.0, 0.0])
    Path("run_b").mkdir()
    Path("run_b/config.yaml").write_text("trainer: {validation_data_dir: elsewhere}")
    told = evaluated("--compare", "run_a", "run_b")
    assert "A: run_a/validation/20.jsonl" in told.output
    assert "+0.500" in told.output
    write(Path("r.parquet"), ROWS)  # the same questions, named by what the user says
    evaluated("data.path=r.parquet")
    found = evaluated("--compare", "r.eval.json", "elsewhere/9.jsonl").output
    assert "+0.125" in found  # 0.5 and 0.25 there, 1 and 0 here


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (["a.json"], "--compare: got 1 runs, wanted two"),
        (["nowhere", "nowhere"], "nowhere does not exist, wanted a result of `agentrl eval`"),
        (["empty", "empty"], "empty holds no scores"),
        (["other.json", "other.json"], "other.json is no result of `agentrl eval`"),
        (["broken/1.jsonl", "broken"], "is no dump of rollouts (KeyError: 'data_source')"),
        (["run_a", "run_c"], "have no prompt in common"),
    ],
)
def test_what_cannot_be_compared_is_one_message(runs: list[str], message: str) -> None:
    Path("empty").mkdir()
    Path("other.json").write_text("{}")
    Path("broken").mkdir()
    Path("broken/1.jsonl").write_text('{"score": 1}\n')
    dump(Path("run_a"), 1, [1.0])
    Path("run_c").mkdir()
    Path("run_c/1.jsonl").write_text(Path("run_a/1.jsonl").read_text().replace("1 + 1", "7 + 7"))
    assert message in evaluated("--compare", *runs, code=2).output

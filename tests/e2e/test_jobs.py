"""`agentrl generate` and `agentrl eval` with a model: training's engines and loops, and a second start after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import Workspace, started, wait_until
from typer.testing import CliRunner

from agentrl.cli import app

runner = CliRunner()
ROWS = 6


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        {
            "note": f"row {i}",
            "prompt": [{"role": "user", "content": f"{i} + {i}"}],
            "data_source": "agentrl/arithmetic",
            "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
        }
        for i in range(ROWS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    return tmp_path


def settings(workspace: Workspace, engine: str | None, output: str, **changes: Any) -> list[str]:
    given = {
        "model.path": str(workspace.model),
        "data.path": "rows.parquet",
        "data.output_path": output,
        "data.n_samples": 2,
        "data.batch_size": 2,
        "rollout.prompt_length": 64,
        "rollout.response_length": 12,
        "trainer.device": "cpu",
        **({"rollout.server.addresses": [engine]} if engine else {"rollout.name": "embedded"}),
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return [f"{key}={json.dumps(value)}" for key, value in given.items()]


def responses(file: str, column: str = "responses") -> list[Any]:
    found: list[Any] = pq.read_table(file).column(column).to_pylist()
    return found


def done(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_responses_stand_beside_the_columns_in_order_and_do_not_depend_on_batches(
    workspace: Workspace, engine: str, folder: Path
) -> None:
    told = done("generate", *settings(workspace, engine, "out.parquet"))
    table = pq.read_table("out.parquet")
    assert table.column_names == ["note", "prompt", "data_source", "reward_model", "responses"]
    assert table.column("note").to_pylist() == [f"row {i}" for i in range(ROWS)]
    texts = responses("out.parquet")
    assert all(len(row) == 2 and row[0] != row[1] for row in texts)
    assert "generated 2/6 prompts" in told
    assert "6 prompts with 2 responses each in out.parquet" in told
    done("generate", *settings(workspace, engine, "other.parquet", data__batch_size=5))
    assert responses("other.parquet") == texts
    done("generate", *settings(workspace, engine, "seed.parquet", trainer__seed=2))
    assert responses("seed.parquet") != texts
    assert sorted(path.name for path in folder.glob("*.parts")) == []


def test_greedy_responses_are_those_of_validation(workspace: Workspace, engine: str, folder: Path) -> None:
    from agentrl.trainer.run import run_training

    run = workspace.run(
        "validation_of_jobs",
        data__train_files=str(folder / "rows.parquet"),
        data__val_files=str(folder / "rows.parquet"),
        data__max_response_length=12,
        custom_reward_function__path=None,
        actor_rollout_ref__rollout__server={"addresses": [engine]},
        trainer__val_only=True,
        trainer__validation_data_dir=str(folder / "validation"),
    )
    run_training(run.config)  # first: it gives the engine the model's weights, whatever other tests left there
    done("generate", *settings(workspace, engine, "out.parquet", rollout__do_sample=False, data__n_samples=1))
    lines = [json.loads(line) for line in (folder / "validation" / "0.jsonl").read_text().splitlines()]
    assert [line["messages"][-1]["content"] for line in lines] == [row[0] for row in responses("out.parquet")]


def test_texts_are_continued_and_can_be_messages_of_a_user(workspace: Workspace, engine: str, folder: Path) -> None:
    rows = pq.read_table("rows.parquet")
    texts = [cell[0]["content"] for cell in rows.column("prompt").to_pylist()]
    pq.write_table(pa.table({"prompt": texts}), "texts.parquet")
    greedy = {"rollout__do_sample": False, "data__n_samples": 1}
    done("generate", *settings(workspace, engine, "messages.parquet", **greedy))
    told = done("generate", *settings(workspace, engine, "raw.parquet", data__path="texts.parquet", **greedy))
    assert "the model continues them" in told
    as_user = {"data__path": "texts.parquet", "data__text_prompts": "user_message", **greedy}
    done("generate", *settings(workspace, engine, "user.parquet", **as_user))
    assert responses("user.parquet") == responses("messages.parquet")
    assert responses("raw.parquet") != responses("messages.parquet")


def test_rows_that_name_their_own_loop_are_told_of(workspace: Workspace, engine: str, folder: Path) -> None:
    names = pa.array(["react_agent", *[None] * (ROWS - 1)])
    pq.write_table(pq.read_table("rows.parquet").append_column("agent_name", names), "routed.parquet")
    routed = settings(workspace, engine, "out.parquet", data__path="routed.parquet", data__n_samples=1)
    told = done("generate", *routed)
    assert "the rows name agent_name, which have no effect here: without --agent-loop" in told
    told = done("generate", *routed, "--overwrite", "--agent-loop", "single_turn_agent")
    assert "rows with an `agent_name` keep it (react_agent); single_turn_agent is for those without" in told


def test_a_loop_with_tools_and_its_evaluation(workspace: Workspace, engine: str, folder: Path) -> None:
    arguments = settings(workspace, engine, "out.json", rollout__prompt_length=800, rollout__response_length=24)
    arguments = ["eval", *arguments, "rollout.server.addresses=null", "rollout.name=embedded"]
    arguments += ["--agent-loop", "tool_agent", "--tools", "tools/calculator.yaml"]
    told = done(*arguments)
    facts = [json.loads(cell) for row in responses("out.responses.parquet", "response_facts") for cell in row]
    assert len(facts) == 2 * ROWS
    texts = [text for row in responses("out.responses.parquet") for text in row]
    for text, fact in zip(texts, facts, strict=True):
        assert fact["messages"][0]["role"] == "user"
        said = [message["content"] for message in fact["messages"] if message["role"] == "assistant"]
        assert "\n".join(said) == text
    assert json.loads(Path("out.json").read_text())["sources"]["agentrl/arithmetic"]["responses"] == 2 * ROWS
    assert "mean@2" in told
    Path("out.json").unlink()  # as if it had been stopped while it scored
    Path("out.png").unlink()
    assert "generated" not in done(*arguments)


@pytest.mark.slow
def test_after_a_kill_a_second_start_goes_on_and_the_result_is_the_same(
    workspace: Workspace, engine: str, folder: Path
) -> None:
    changes: dict[str, Any] = {
        "data__batch_size": 1,
        "data__n_samples": 3,
        "rollout__response_length": 100,
        "rollout__name": "embedded",
        "trainer__deterministic": True,
    }
    done("generate", *settings(workspace, engine, "whole.parquet", **changes))
    parts = folder / "out.parquet.parts"
    with started("generate", *settings(workspace, None, "out.parquet", **changes)) as process:
        wait_until(lambda: len(list(parts.glob("batch_*.json"))) >= 2 or process.popen.poll() is not None, 120)
        assert any("agentrl.inference.embedded" in " ".join(each.cmdline()) for each in process.family())
        process.send(signal.SIGKILL)
        process.finish()  # and its engine ends with it
    kept = {file.name: file.read_bytes() for file in parts.glob("batch_*.json")}
    assert 2 <= len(kept) < ROWS
    assert not Path("out.parquet").exists()
    told = done("generate", *settings(workspace, engine, "out.parquet", **changes))
    assert f"going on after {len(kept)} of {ROWS} prompts" in told
    assert pq.read_table("out.parquet").equals(pq.read_table("whole.parquet"))
    assert not parts.exists()


def test_a_failing_engine_keeps_what_is_finished(workspace: Workspace, engine: str, folder: Path) -> None:
    from agentrl.jobs import generate

    arguments = ["generate", *settings(workspace, engine, "out.parquet", rollout__server__retries=0)]
    original = generate._Engines.generate
    with pytest.MonkeyPatch.context() as patch:

        def fail(self: Any, batch: Any) -> Any:
            if "0-2" in batch.non_tensor_batch["uid"]:
                self._manager.set_addresses(["http://127.0.0.1:9"])
            return original(self, batch)

        patch.setattr(generate._Engines, "generate", fail)
        patch.setattr(generate.EngineFleet, "tend", lambda self: self.addresses)
        told = done(*arguments, "rollout.refill=false", code=3)
    assert "rollout.max_failure_rate (0) allows" in told
    assert "actor_rollout_ref" not in told
    assert [file.name for file in Path("out.parquet.parts").glob("batch_*")] == ["batch_000000.json"]
    assert "going on after 2 of 6 prompts" in done(*arguments, "rollout.refill=false")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.prompt_key=promt"], "column 'promt': got only the columns note, prompt, data_source, reward_model"),
        (["data.path=out.parquet"], "column 'responses': got a column of this name"),
        (["data.path=empty.parquet"], "empty.parquet: got no rows"),
        (
            ["rollout.prompt_length=5"],
            "row 0, column 'prompt': got 24 tokens, wanted at most 5 (rollout.prompt_length)",
        ),
        (["--agent-loop", "tool_agnt"], "Did you mean 'tool_agent'?"),
        (["data.output_path=out.parquet"], "out.parquet already exists"),
        (["data.output_path=rows.parquet", "--overwrite"], "rows.parquet is a file that this command reads"),
        (["data.output_path=folder.parquet"], "folder.parquet is a folder, wanted the name of a file"),
        (["--model", "nowhere/model"], "nowhere/model"),
    ],
)
def test_bad_input_is_told_before_anything_starts(
    workspace: Workspace, engine: str, folder: Path, arguments: list[str], message: str
) -> None:
    table = pq.read_table("rows.parquet")
    pq.write_table(table.slice(0, 0), "empty.parquet")
    pq.write_table(table.append_column("responses", pa.array([["x"]] * ROWS)), "out.parquet")
    Path("folder.parquet").mkdir()
    before = sorted(folder.rglob("*"))
    told = done("generate", *settings(workspace, engine, "new.parquet"), *arguments, code=2)
    assert message in told
    assert told.count("error:") == 1
    assert sorted(folder.rglob("*")) == before


def test_the_modules_of_the_field_are_the_same_commands(folder: Path) -> None:
    for module, name in (("main_generation", "model.path"), ("main_eval", "data.path")):
        command = [sys.executable, "-m", f"agentrl.trainer.{module}", "--config", "job.yaml"]
        (folder / "job.yaml").write_text("ray_init: {num_cpus: null}\n")
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert f"{name}: not given" in ended.stderr

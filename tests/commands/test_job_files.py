"""The field's generation and evaluation YAML as they are written, one after the other. Only paths are made real."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
from stage import Stage
from typer.testing import CliRunner

from agentrl.cli import app


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_generation_then_evaluation(stage: Stage) -> None:
    stage.answers = ["#### 4", "#### 5", "#### 4", "so 4", "#### 4"]
    stage._engine.requests.clear()
    given = ("data.path=~/data/gsm8k/test.parquet", "data.output_path=out/responses.parquet", "model.path=MODEL")
    told = command(
        *("generate", "--config", stage.recipe("generation.yaml"), *given, "trainer.device=cpu"),
        f"rollout.server.addresses=[{stage.address}]",
    )
    assert "8 prompts with 5 responses each in out/responses.parquet" in told
    assert "rollout.mode has no effect here: generation is always asynchronous" in told
    asked = [request["sampling_params"] for request in stage._engine.requests]
    assert len(asked) == 40
    assert all((p["temperature"], p["top_k"], p["top_p"]) == (1.0, 50, 0.7) for p in asked)
    assert {p["max_new_tokens"] for p in asked} == {512}
    assert len({p["sampling_seed"] for p in asked}) == 40
    texts = [text for row in pq.read_table("out/responses.parquet").column("responses").to_pylist() for text in row]
    assert sorted(texts) == sorted(stage.answers * 8)
    told = command("eval", "--config", stage.recipe("evaluation.yaml"), "data.path=out/responses.parquet")
    found = json.loads(Path("out/responses.eval.json").read_text())["sources"]["openai/gsm8k"]
    assert found["mean"]["value"] == found["pass"]["1"]["value"] == 0.6
    assert "mean@5" in told


def test_hydras_options_name_the_yaml(stage: Stage) -> None:
    folder = Path(stage.recipe("evaluation.yaml")).parent
    pq.write_table(pq.read_table("train.parquet").append_column("responses", [["#### 4"]] * 8), folder / "mine.parquet")
    for options in (("--config-path", str(folder)), (f"--config-path={folder}", "--config-name=evaluation")):
        told = command("eval", *options, f"data.path={folder}/mine.parquet", "--overwrite")
        assert "mean@1" in told

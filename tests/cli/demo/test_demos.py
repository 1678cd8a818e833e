"""`agentrl demo NAME`: every demo is found by its name, and its service starts and ends with it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace

import httpx
import psutil
import pytest
from needs import needs_filter
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.cli.demo import command, python, search
from agentrl.cli.demo.demos import DEMOS
from agentrl.cli.demo.description import DataRequest
from agentrl.cli.demo.service import running_service
from agentrl.config import load_config
from agentrl.errors import UserInputError
from agentrl.plugins import load_tools


@pytest.mark.parametrize(
    ("arguments", "name", "overrides"),
    [
        ([], "calculator", []),
        (["trainer.test_freq=3"], "calculator", ["trainer.test_freq=3"]),
        (["search"], "search", []),
        (["python", "trainer.test_freq=3", "--seed", "4"], "python", ["trainer.test_freq=3"]),
        (["interaction"], "interaction", []),
    ],
)
def test_a_name_and_overrides(monkeypatch, arguments, name, overrides):
    asked = []
    monkeypatch.setattr(command, "run_demo", lambda options, _console: asked.append(options))
    assert CliRunner().invoke(app, ["demo", *arguments]).exit_code == 0
    (options,) = asked
    assert (options.demo.name, options.overrides, options.out) == (name, overrides, DEMOS[name].folder)
    assert options.seed == (4 if "--seed" in arguments else None)


def test_a_wrong_name_is_answered_with_the_nearest():
    result = CliRunner().invoke(app, ["demo", "serach"])
    assert result.exit_code == 2
    assert "no demo is named 'serach'. Did you mean 'search'?" in " ".join(result.output.split())


def test_real_annotations_are_for_the_calculator():
    result = CliRunner().invoke(app, ["demo", "search", "--from-gsm8k", "x.jsonl"])
    assert result.exit_code == 2
    assert "wanted the demo calculator" in " ".join(result.output.split())


@pytest.mark.parametrize("demo", DEMOS.values(), ids=list(DEMOS))
def test_what_a_demo_shows_is_what_its_run_reports(demo):
    assert demo.success == f"val-core/{demo.data_source}/reward/mean@1"
    config = load_config(demo.recipe)
    assert config.actor_rollout_ref.rollout.val_kwargs.n == 1
    assert config.trainer.val_before_train


def test_a_seed_is_that_of_both_trainings(tmp_path):
    config = command._run_config(command.DemoOptions(tmp_path, demo=DEMOS["search"], seed=7))
    assert (config.data.seed, config.trainer.seed) == (7, 7)


def test_a_service_that_does_not_start_says_why(tmp_path):
    with (
        pytest.raises(
            UserInputError, match=r"`agentrl serve retrieval` ended before it served.*no such folder|missing"
        ),
        running_service("retrieval", ["--index", str(tmp_path / "missing")], tmp_path / "log"),
    ):
        pass


HOLD = """
import sys, time
from pathlib import Path
from agentrl.cli.demo.description import DataRequest
from agentrl.cli.demo.service import running_service
with running_service(sys.argv[1], [], Path(sys.argv[2])) as url:
    print(url, flush=True)
    time.sleep(60)
"""


ASKED = {
    "retrieval": ("/retrieve", {"queries": ["Australia"]}),
    "sandbox": ("/run_code", {"code": "print(1)", "language": "python"}),
}


@pytest.mark.parametrize("service", ASKED)
@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.slow), pytest.param(signal.SIGKILL, id="SIGKILL")],
)
def test_a_service_ends_with_its_demo_however_that_ends(tmp_path, service, number):
    if service == "sandbox":
        needs_filter()
    hold = [sys.executable, "-c", HOLD, service, str(tmp_path / "log")]
    with subprocess.Popen(hold, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        path, body = ASKED[service]
        answer = httpx.post(f"{url}{path}", json=body, trust_env=False)
        assert answer.status_code == 200
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        os.kill(process.pid, number)
        process.wait(30)
        gone, alive = psutil.wait_procs(children, 30)
        assert not alive, gone
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health", trust_env=False)


@pytest.mark.slow
async def test_demonstrations_read_what_the_search_service_says(tmp_path):
    rng = random.Random(1)
    request = DataRequest(tmp_path / "data", 10, train_rows=60, held_out_rows=10, seed=1)
    search.write_encyclopaedia(request)
    entries = [json.loads(line)["contents"] for line in (request.folder / search.CORPUS).read_text().splitlines()]
    tool = load_tools("tools/demo_search.yaml")[0]
    with running_service("retrieval", search.index_encyclopaedia(tmp_path), tmp_path / "log") as url:
        instance = replace(tool, config={**tool.config, "retrieval_service_url": url}).build()
        for contents in rng.sample(entries, 5):
            title, text = contents.split("\n")
            assert (await instance.execute({"query_list": [title.strip('"')]})).text == text
        await instance.release()


@pytest.mark.slow
async def test_demonstrations_read_what_the_sandbox_prints(tmp_path):
    needs_filter()
    with running_service("sandbox", [], tmp_path / "log") as url:
        python.use_sandbox(tmp_path, url)
        instance = load_tools(tmp_path / "tools.yaml")[0].build()
        for asked in python.CODE:
            question = (asked, (7, 30, 12))
            assert (await instance.execute({"code": python.code_for(question)})).text == python.answer_to(question)
        await instance.release()

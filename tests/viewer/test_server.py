"""What the page asks: runs, curves, conversations; live, with bad questions, and of runs that lack something."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from made_dumps import record, write_dump, write_run

from agentrl.errors import UserInputError
from agentrl.observability.viewer.curves import events_of
from agentrl.observability.viewer.guard import Access
from agentrl.observability.viewer.runs import RunSet
from agentrl.observability.viewer.server import create_app

STEPS = [
    {"step": 0, "val-core/x/reward/mean@1": 0.25},
    {"step": 1, "timing_s/step": 4.0, "timing_s/gen": 3.0, "critic/score/mean": 0.5, "health/alarm/short": 1.0},
    {
        "step": 2,
        "timing_s/step": 2.0,
        "timing_s/gen": 1.0,
        "timing_s/save_checkpoint": 0.5,
        "timing_s/agent_loop/tool_calls/mean": 9.0,
        "critic/score/mean": 0.75,
        "health/alarm/short": 0.0,
        "rollout/env_error_rate": 0.25,
        "rollout/stop_reason/timeout": 0.125,
        "reward_model/left_out": 2.0,
        "training/skipped_steps": 1.0,
    },
]


class Client:
    """Asks the application for JSON."""

    def __init__(self, runs: RunSet, access: Access) -> None:
        self.runs = runs
        transport = httpx.ASGITransport(create_app(runs, access))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1234")

    async def get(self, path: str, status: int = 200, **query: Any) -> Any:
        answer = await self.http.get(f"/api/{path}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    def refresh(self) -> None:
        """What the watcher's thread does."""
        for run in self.runs.all():
            for kind in ("train", "validation"):
                index = run.index(kind)
                if index is not None:
                    index.refresh()


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """A run `one` of two steps with dumps, and a run `two` without."""
    monkeypatch.chdir(tmp_path)
    one = write_run(Path("outputs/one"), STEPS, {"algorithm": {"gamma": 1.0, "lam": 0.9}})
    for step in (1, 2):
        write_dump(one / "rollouts", step, [record(number, step) for number in range(4)])
    write_dump(one / "validation", 2, [record(9, 2)])
    write_run(Path("outputs/two"), [], {"algorithm": {"gamma": 0.5, "new": {"a": 1}}, "trainer": {}})
    runs = RunSet([])
    monkeypatch.setattr("agentrl.observability.viewer.runs._FIRST_LOOK_S", 0)
    made = Client(runs, Access("127.0.0.1"))
    made.refresh()
    yield made
    await made.http.aclose()
    runs.close()


async def test_the_list_of_runs(client: Client) -> None:
    one, two = await client.get("runs")
    assert (one["id"], one["name"], one["path"], one["state"]) == ("one", "one", "outputs/one", "finished")
    assert (one["step"], one["total_steps"], one["reward"]) == (2, 2, 0.75)
    assert (one["has_rollouts"], one["has_validation"], one["problem"]) == (True, True, None)
    assert (two["state"], two["has_rollouts"], two["has_validation"]) == ("unknown", False, False)


async def test_a_run_that_begins_later_appears(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.observability.viewer.runs._NEW_RUNS_S", 0)
    write_run(Path("outputs/group/three"), STEPS[:1])
    assert [run["id"] for run in await client.get("runs")] == ["one", "two", "group-three"]
    assert (await client.get("runs/group-three/metrics"))["steps"] == [0]


async def test_curves_and_what_is_new_of_them(client: Client) -> None:
    curves = await client.get("runs/one/metrics")
    assert (curves["steps"], curves["seconds"]) == ([0, 1, 2], [0.0, 4.0, 6.0])
    assert curves["metrics"]["critic/score/mean"] == [None, 0.5, 0.75]
    assert curves["names"] == sorted({name for row in STEPS for name in row} - {"step"}) == sorted(curves["metrics"])
    with Path("outputs/one/metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3, "critic/score/mean": float("nan"), "timing_s/step": 1.0}) + "\n")
    new = await client.get("runs/one/metrics", since=1, names="critic/score/mean,none")
    assert (new["steps"], new["seconds"]) == ([2, 3], [6.0, 7.0])
    assert new["metrics"] == {"critic/score/mean": [0.75, None]}


async def test_damaged_metrics_are_shown_up_to_the_damage(client: Client) -> None:
    with Path("outputs/one/metrics.jsonl").open("a") as file:
        file.write('oops\n{"step": 4}\n')
    for _ in range(2):
        curves = await client.get("runs/one/metrics")
        assert curves["steps"] == [0, 1, 2]
        assert "metrics.jsonl, line 4: got 'oops'" in curves["problem"]


async def test_events_in_the_order_of_the_steps(client: Client) -> None:
    events = await client.get("runs/one/events")
    assert [(event["step"], event["kind"]) for event in events] == [
        (0, "validation"),
        (1, "alarm"),
        (2, "alarm_end"),
        (2, "failure"),
        (2, "failure"),
        (2, "skipped"),
        (2, "checkpoint"),
    ]
    assert events[3] == {
        "step": 2,
        "time": 6.0,
        "kind": "failure",
        "text": "25.0% of the trajectories failed: 12.5% as timeout",
    }
    assert events[4]["text"] == "the reward model could not score 2 trajectories"


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        ({"aborted": 0.25}, "25.0% of the trajectories failed: 25.0% as aborted"),
        (
            {"env_error": 0.125, "timeout": 0.125},
            "25.0% of the trajectories failed: 12.5% as timeout, 12.5% as env_error",
        ),
        ({"completed": 1.0}, "25.0% of the trajectories failed"),
    ],
)
def test_every_kind_of_failure_is_an_event(reasons: dict[str, float], text: str) -> None:
    row = {
        "step": 1,
        "rollout/env_error_rate": 0.25,
        **{f"rollout/stop_reason/{name}": x for name, x in reasons.items()},
    }
    (event,) = events_of([row])
    assert (event["kind"], event["text"]) == ("failure", text)
    assert events_of([{**row, "rollout/env_error_rate": 0.0}]) == []


async def test_how_a_failed_run_ended(client: Client) -> None:
    state = {"state": "failed", "step": 2, "total_steps": 9, "began": 1.0, "updated": 2.0, "error": "no engine"}
    Path("outputs/one/run_state.json").write_text(json.dumps(state))
    assert (await client.get("runs/one/events"))[-1] == {
        "step": 2,
        "time": 6.0,
        "kind": "end",
        "text": "failed: no engine",
    }
    assert (await client.get("runs"))[0]["error"] == "no engine"


async def test_where_the_time_went(client: Client) -> None:
    assert await client.get("runs/one/timing") == {
        "steps": [1, 2],
        "phases": {"gen": [3.0, 1.0], "save_checkpoint": [None, 0.5]},
        "other": [1.0, 0.5],
    }


async def test_the_configuration_and_its_difference(client: Client) -> None:
    config = await client.get("runs/one/config")
    assert config["algorithm"] == {"gamma": 1.0, "lam": 0.9}
    rows = (await client.http.get("/api/config_difference?run=one&run=two")).json()
    assert {row["key"]: row["values"] for row in rows if row["key"].startswith("algorithm")} == {
        "algorithm.gamma": [1.0, 0.5],
        "algorithm.lam": [0.9, None],
        "algorithm.new.a": [None, 1],
    }


async def test_headers_in_the_configuration_are_not_shown(client: Client) -> None:
    write_run(Path("outputs/two"), [], {"tools": [{"headers": {"Authorization": "secret"}}]})
    assert "secret" not in json.dumps(await client.get("runs/two/config"))


async def test_trajectories_by_filter(client: Client) -> None:
    found = await client.get("runs/one/trajectories", step=2, reward_min=0.5, sort="reward", order="desc", limit=1)
    assert (found["total"], found["indexed"], found["complete"], found["damaged"]) == (2, 8, True, 0)
    (row,) = found["rows"]
    assert (row["set"], row["step"], row["uid"], row["reward"]) == ("train", 2, "2-0", 1.0)


async def test_both_sets_have_numbers_of_their_own(client: Client) -> None:
    train = await client.get("runs/one/trajectories")
    validation = await client.get("runs/one/trajectories", set="validation")
    assert validation["total"] == 1
    ids = [row["id"] for row in [*train["rows"], *validation["rows"]]]
    assert len(set(ids)) == 9
    shown = await client.get(f"runs/one/trajectories/{ids[-1]}")
    assert (shown["row"], shown["neighbours"]) == (validation["rows"][0], {"previous": None, "next": None})


async def test_one_conversation(client: Client) -> None:
    rows = (await client.get("runs/one/trajectories", step=2))["rows"]
    shown = await client.get(f"runs/one/trajectories/{rows[1]['id']}")
    written = record(1, 2)
    assert shown["row"] == rows[1]
    assert (shown["messages"], shown["ground_truth"]) == (written["messages"], "2")
    assert shown["reward"] == {"score": 1.0, "parts": {"acc": 1}}
    assert shown["prompt"] == written["input"]
    tokens = shown["tokens"]
    assert (tokens["id"], tokens["mask"]) == (written["response_ids"], written["response_mask"])
    assert (tokens["text"], tokens["source"]) == (["<call>", "", "obs", "It is", ""], "segments")
    assert shown["response"] == "<call>obsIt is"
    assert "the run's tokenizer is not found" in tokens["note"]
    assert (tokens["advantage"], tokens["train_log_prob"], shown["timeline"]) == (None, None, None)
    assert shown["neighbours"] == {"previous": rows[0]["id"], "next": rows[2]["id"]}


async def test_what_training_knew_and_when_things_happened(client: Client) -> None:
    timeline = [{"name": "generate", "start": 0.0, "seconds": 0.5, "detail": "turn 1"}]
    more = {"advantages": [1.0] * 5, "train_log_probs": [-0.5, None, None, 0.0, 0.0], "timeline": timeline}
    write_dump(Path("outputs/one/rollouts"), 3, [record(0, 3, **more)])
    client.refresh()
    (row,) = (await client.get("runs/one/trajectories", step=3))["rows"]
    assert row["advantage"] == 1.0
    shown = await client.get(f"runs/one/trajectories/{row['id']}")
    assert shown["tokens"]["advantage"] == more["advantages"]
    assert shown["tokens"]["train_log_prob"] == more["train_log_probs"]
    assert shown["timeline"] == timeline


async def test_nothing_was_trained_on_where_the_step_left_a_trajectory_out(client: Client) -> None:
    write_dump(Path("outputs/one/rollouts"), 3, [record(0, 3, advantages=None), record(1, 3, advantages=[1.0] * 5)])
    client.refresh()
    rows = (await client.get("runs/one/trajectories", step=3))["rows"]
    masks = [(await client.get(f"runs/one/trajectories/{row['id']}"))["tokens"]["loss_mask"] for row in rows]
    assert sorted(masks) == [[0, 0, 0, 0, 0], record(1, 3)["loss_mask"]]


async def test_a_dump_of_verl_is_a_conversation_too(client: Client) -> None:
    write_dump(Path("outputs/one/rollouts"), 3, [{"input": "Q", "output": "A", "gts": "x", "score": 0.5, "step": 3}])
    client.refresh()
    (row,) = (await client.get("runs/one/trajectories", step=3))["rows"]
    shown = await client.get(f"runs/one/trajectories/{row['id']}")
    assert (shown["prompt"], shown["response"], shown["messages"]) == ("Q", "A", [])
    assert (shown["tokens"]["text"], shown["tokens"]["id"], shown["tokens"]["source"]) == ([], [], "none")


async def test_groups_facets_and_prompts(client: Client) -> None:
    groups = await client.get("runs/one/groups", step=1)
    assert groups["total"] == 2
    assert [len(group["rows"]) for group in groups["groups"]] == [2, 2]
    assert (await client.get("runs/one/facets"))["step_list"] == [1, 2]
    key = groups["groups"][0]["prompt_key"]
    assert [row["step"] for row in await client.get(f"runs/one/prompts/{key}")] == [1, 2]


async def test_live_a_step_appears(client: Client) -> None:
    write_dump(Path("outputs/one/rollouts"), 3, [record(0, 3)])
    client.refresh()
    assert (await client.get("runs/one/trajectories"))["total"] == 9


async def test_the_watcher_indexes_by_itself(client: Client) -> None:
    client.runs.watcher.start()
    write_dump(Path("outputs/two/validation"), 1, [record(0)])
    index = client.runs.named("two").index("validation")  # type: ignore[union-attr]
    assert index is not None
    index.wait(30)
    assert (await client.get("runs/two/trajectories", set="validation"))["total"] == 1


async def test_a_run_without_dumps_says_which_key_writes_them(client: Client) -> None:
    for kind, key in (("train", "rollout_data_dir"), ("validation", "validation_data_dir")):
        found = await client.get("runs/two/trajectories", set=kind)
        assert (found["total"], found["rows"], found["complete"]) == (0, [], True)
        assert f"set trainer.{key} to a folder" in found["problem"]
        assert (await client.get("runs/two/facets", set=kind))["steps"] is None
        assert await client.get("runs/two/groups", set=kind) == {"total": 0, "groups": []}
        assert await client.get("runs/two/prompts/x", set=kind) == []


async def test_a_damaged_configuration_leaves_the_rest(client: Client) -> None:
    Path("outputs/one/config.yaml").write_text("a: [")
    runs = RunSet([Path("outputs/one")])
    other = Client(runs, Access("127.0.0.1"))
    other.refresh()
    assert (await other.get("runs/outputs-one/trajectories"))["total"] == 8
    assert "config.yaml" in (await other.get("runs/outputs-one/config", 400))["error"]
    assert (await other.get("runs"))[0]["state"] == "unknown"
    runs.close()


async def test_a_record_that_no_answer_can_hold_is_told(client: Client) -> None:
    deep = json.dumps(record(0, 2)).removesuffix("}") + ', "gts": ' + "[" * 500 + "]" * 500 + "}\n"
    Path("outputs/one/rollouts/2.jsonl").write_text(deep)
    client.refresh()
    (row,) = (await client.get("runs/one/trajectories", step=2))["rows"]
    told = await client.get(f"runs/one/trajectories/{row['id']}", 400)
    assert "nested deeper than an answer can hold" in told["error"]


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("runs/three/metrics", 404, "got the run 'three', wanted one of one, two"),
        ("runs/one/trajectories/123456", 404, "got trajectory 123456, wanted one"),
        ("runs/one/trajectories/-1", 404, "got trajectory -1"),
        (f"runs/one/trajectories/{2**80}", 404, "got trajectory"),
        ("runs/one/trajectories/x", 400, "number: got 'x', wanted a valid integer"),
        ("runs/one/trajectories?set=test", 400, "set: got 'test', wanted 'train' or 'validation'"),
        ("runs/one/trajectories?reward_min=nan", 400, "reward_min: got 'nan', wanted a finite number"),
        (
            "runs/one/trajectories?step_min=999999999999",
            400,
            "step_min: got '999999999999', wanted less than 268435456",
        ),
        (
            "runs/one/trajectories?step_max=999999999999",
            400,
            "step_max: got '999999999999', wanted less than 268435456",
        ),
        ("runs/one/trajectories?limit=5000", 400, "limit: got '5000', wanted less than or equal to 1000"),
        ("runs/one/trajectories?rewardmin=1", 400, "got the parameter rewardmin, which this address does not have"),
        ("config_difference?run=one", 400, "run: got"),
        ("nothing", 404, "Not Found"),
    ],
)
async def test_a_bad_question_says_what_was_wanted(client: Client, path: str, status: int, error: str) -> None:
    assert error in (await client.http.get(f"/api/{path}")).json()["error"]
    assert (await client.http.get(f"/api/{path}")).status_code == status


@pytest.mark.parametrize("number", [2**28 - 1, 2**28, 2**53, 2**53 + 1, 2**63, 2**64, 10**400, "1e400", -1])
@pytest.mark.parametrize(
    "path",
    [
        *(f"trajectories?{name}_{end}" for name in ("step", "reward", "turns", "tokens") for end in ("min", "max")),
        *("trajectories?step", "trajectories?offset", "trajectories?text=a&offset", "metrics?since"),
        *("groups?step", "groups?offset", "groups?limit"),
    ],
)
async def test_no_number_is_too_much_for_the_server(client: Client, path: str, number: object) -> None:
    answer = await client.http.get(f"/api/runs/one/{path}={number}")
    assert answer.status_code in (200, 400)
    assert answer.status_code == 200 or "wanted" in answer.json()["error"]


async def test_names_of_runs_do_not_meet(tmp_path: Path) -> None:
    places = [write_run(tmp_path / name / "run", STEPS) for name in ("a b", "a+b", "c")]
    runs = RunSet([*places, places[0] / "global_step_2"])
    assert [run.address for run in runs.all()] == ["a-b-run", "a-b-run-2", "c-run"]


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one")
    assert [run.address for run in RunSet([tmp_path / "runs"]).all()] == ["one"], "a folder of runs shows them all"
    write_dump(tmp_path / "dumps", 1, [record(0)])
    (run,) = RunSet([tmp_path / "dumps"]).all()
    assert run.overview()["has_rollouts"], "a folder of dumps shows them"
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, error in (("empty", "not a run folder"), ("none", "does not exist"), ("file", "is a file")):
        with pytest.raises(UserInputError, match=error):
            RunSet([tmp_path / name])


def test_without_a_run_in_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserInputError, match="outputs does not exist"):
        RunSet([])
    Path("outputs").mkdir()
    with pytest.raises(UserInputError, match="outputs: got no run in it"):
        RunSet([])


async def test_an_index_that_is_damaged_meanwhile_is_made_again(client: Client) -> None:
    for number in range(400):
        write_dump(Path("outputs/one/rollouts"), 3 + number, [record(0, 3)])
    client.refresh()
    index = client.runs.named("one").index("train")  # type: ignore[union-attr]
    assert index is not None
    index.close()
    with Path("outputs/one/rollouts/.index.sqlite").open("r+b") as file:
        file.seek(65536)
        file.write(b"\xee" * 65536 * 3)
    error = (await client.get("runs/one/trajectories", 503))["error"]
    assert "ask again in a moment" in error
    client.refresh()
    found = await client.get("runs/one/trajectories")
    assert (found["total"], found["complete"]) == (408, True)

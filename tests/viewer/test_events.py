"""What happened when: resumed runs on the time line."""

from __future__ import annotations

import json
from pathlib import Path

from made_dumps import write_run

from agentrl.observability.run_state import RunState, State
from agentrl.observability.viewer.curves import events_of
from agentrl.observability.viewer.runs import RunSet


def test_resumes_are_events_in_the_order_of_the_steps() -> None:
    rows = [{"step": step, "timing_s/step": 2.0, "timing_s/save_checkpoint": 0.1} for step in (1, 2, 3)]
    events = events_of(rows, (0, 2, 2, 3))
    assert [(event["step"], event["kind"][0], event["time"]) for event in events] == [
        (0, "r", 0.0),
        (1, "c", 2.0),
        (2, "c", 4.0),
        (2, "r", 4.0),
        (2, "r", 4.0),
        (3, "c", 6.0),
        (3, "r", 6.0),
    ]
    assert events[0]["text"] == "resumed after step 0"


def test_they_are_those_of_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [{"step": 1}, {"step": 2}])
    state = {"state": "finished", "step": 2, "total_steps": 2, "began": 1.0, "updated": 2.0}
    (run / "run_state.json").write_text(json.dumps(state))
    (viewed,) = RunSet([run]).all()
    assert viewed.events() == [], "a run of an earlier version"
    (run / "run_state.json").write_text(json.dumps({**state, "resumed": [1]}))
    assert viewed.events() == [{"step": 1, "time": 0.0, "kind": "resume", "text": "resumed after step 1"}]
    assert RunState(State.RUNNING, 0, None, None, None).resumed == ()

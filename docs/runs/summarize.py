"""Write the summary of one run for the curves: `python docs/runs/summarize.py RUN NAME SEED 'COMMAND'`.

RUN is a folder with `metrics.jsonl` (`outputs/demo_search/run` of a demo). Prints JSON: `{"name", "seed", "command",
"curve": [{"step", "success", "tool_calls" or other metrics, "seconds"}], "seconds"}`. A point of the curve is a
validation on held-out rows; its seconds are those of the steps so far. The last seconds are those of the whole demo,
warm start included, where the folder above has a `summary.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NAMES = {"val-aux/tool_call_rate": "tool_calls"}


def curve_of(lines: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The points of a run's metrics, one for each validation."""
    points, seconds = [], 0.0
    for line in lines:
        seconds += line.get("timing_s/step", 0.0)
        success = [value for key, value in line.items() if key.startswith("val-core/") and key.endswith("/mean@1")]
        if not success:
            continue
        point = {"step": line["step"], "success": round(success[0], 4)}
        for key, value in line.items():
            if key.startswith("val-aux/") and key.endswith("/second/mean@1"):
                point["second_right"] = round(value, 4)
        if "second_right" not in point:
            point |= {short: round(line[key], 4) for key, short in NAMES.items() if key in line}
        points.append({**point, "seconds": round(seconds, 1)})
    return points


def main() -> None:
    """Print the summary."""
    run, name, seed, command = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curve, whole = curve_of(lines), run.parent / "summary.json"
    seconds = json.loads(whole.read_text(encoding="utf-8"))["seconds"] if whole.is_file() else curve[-1]["seconds"]
    print(json.dumps({"name": name, "seed": seed, "command": command, "curve": curve, "seconds": seconds}, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()

"""Time limits count processor time, and the clock where a program does not compute."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sandbox_service import Server, needs_language, needs_level, serve

WAITS = "import os\nif os.fork() == 0:\n    while sum(os.times()[:2]) < 0.3: pass\n    os._exit(0)\nos.wait()"
BUSY = "import time\nwhile time.process_time() < {}: pass\nprint('done')"


def test_a_right_program_does_not_fail_because_others_run() -> None:
    """Each needs half of its limit; so many at once take several times the limit by the clock."""
    programs = 8 * (os.cpu_count() or 1)
    with serve("--parallel", str(programs)) as server, ThreadPoolExecutor(programs) as pool:
        results = list(pool.map(lambda _: server.python(BUSY.format(0.4), run_timeout=0.8), range(programs)))
    assert [result["stdout"] for result in results] == ["done\n"] * programs
    assert all(0.35 < result["cpu_time"] < 0.8 for result in results)
    assert max(result["execution_time"] for result in results) > 1.6


def test_a_sleeping_program_ends_by_the_clock(server: Server) -> None:
    result = server.python("import time; time.sleep(60)", run_timeout=0.5)
    assert result["status"] == "TimeLimitExceeded"
    assert 1 <= result["execution_time"] < 10
    assert result["cpu_time"] < 0.5


def test_all_processes_count(server: Server) -> None:
    code = "import os, time\nfor _ in range(2): os.fork()\nwhile True: pass"
    result = server.python(code, run_timeout=1)
    assert result["status"] == "TimeLimitExceeded"
    assert result["cpu_time"] >= 1
    assert 0.25 < server.python(WAITS)["cpu_time"] < 1


def test_processor_time_without_forked_interpreters() -> None:
    needs_level("bubblewrap")
    with serve("--isolation", "bubblewrap", "--fresh-interpreters") as server:
        assert 0.25 < server.python(WAITS)["cpu_time"] < 1
        assert server.python("while True: pass", run_timeout=0.3)["cpu_time"] >= 0.3


def test_a_compiler_says_both_times(server: Server) -> None:
    needs_language("c")
    answer = server.run("int main() { return 0; }", "c")
    assert answer["compile_result"]["cpu_time"] > 0
    assert answer["compile_result"]["execution_time"] > 0
    assert answer["run_result"]["cpu_time"] is not None


def test_cells_have_the_same_limits(server: Server) -> None:
    session = server.http.post("/sessions", json={}).json()["session_id"]

    def run(code: str, **fields: Any) -> dict[str, Any]:
        answer = server.http.post(f"/sessions/{session}/run", json={"code": code, **fields}).json()
        result: dict[str, Any] = answer["run_result"]
        return result

    assert run("import time; x = 1; time.sleep(60)", run_timeout=0.3)["execution_time"] >= 0.6
    busy = run("while True: pass", run_timeout=0.5)
    assert (busy["status"], busy["return_code"]) == ("TimeLimitExceeded", None)
    assert 0.5 <= busy["cpu_time"] < 2
    after = run("print(x)")
    assert after["stdout"] == "1\n"
    assert after["cpu_time"] < 0.5
    server.http.delete(f"/sessions/{session}")


def test_how_long_a_request_may_wait() -> None:
    with serve("--parallel", "1", "--queue-seconds", "0.2") as server, ThreadPoolExecutor(2) as pool:
        body = {"code": "import time; time.sleep(1.5)", "language": "python"}
        answers = list(pool.map(lambda _: server.http.post("/run_code", json=body), range(2)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 1
    assert refused[0].json() == {"detail": "no place became free within 0.2 s"}

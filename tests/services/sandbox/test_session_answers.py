"""An answer of a session is that of its own code: nothing that code writes, or leaves running, changes a later one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from sandbox_service import Server

RESULT = '{"code": 0}'
FORGED = f"""
import os, stat
for fd in range(3, 100):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, b"%08d" % {len(RESULT)} + b'{RESULT}')
    except OSError: pass
"""
STOLEN = """
import json, os, sys
number = sys._getframe(1).f_locals["cell"]["number"]
answer = json.dumps({"code": 0, "number": number}).encode()
os.write(sys._getframe(2).f_locals["control"], b"%08d" % len(answer) + answer)
"""


class Session:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.path = f"/sessions/{server.http.post('/sessions', json={}).json()['session_id']}"

    def run(self, code: str, **fields: Any) -> dict[str, Any]:
        answer = self.server.http.post(f"{self.path}/run", json={"code": code, **fields})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["status"] == "Success") == (answer.json()["run_result"]["return_code"] == 0)
        return answer.json()["run_result"]  # type: ignore[no-any-return]


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    opened = Session(server)
    yield opened
    server.http.delete(opened.path)


def test_an_answer_that_code_writes_is_never_that_of_later_code(session: Session) -> None:
    forged = session.run(f"{FORGED}1 / 0")
    assert forged["return_code"] != 0
    for number in range(4):
        assert session.run("1 / 0")["return_code"] == 1
        assert session.run(f"print({number})")["stdout"] == f"{number}\n"


def test_code_that_answers_for_itself_loses_the_interpreter(session: Session) -> None:
    """Code may find the number of its own answer in its process. The number of later code has not been sent yet."""
    session.run(STOLEN)
    after = session.run("1 / 0")
    assert after["return_code"] == 1
    assert "it wrote answers of its own" in after["stderr"]
    session.run("1")
    assert session.run("1 / 0")["stderr"].startswith("Traceback")
    assert session.run("print(1)")["stdout"] == "1\n"


def test_output_of_what_is_left_running_is_nobody_elses(session: Session) -> None:
    leaks = "import time\nwhile True:\n    print('leak', flush=True)\n    time.sleep(0.001)"
    first = session.run(f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-Sc', {leaks!r}])\nprint('one')")
    assert "one\n" in first["stdout"]
    for _ in range(3):
        assert session.run("import time; time.sleep(0.2); print('two')")["stdout"] == "two\n"
    loud = "import os, threading\nos.system('while :; do echo loud; done &')\nprint('three')"
    assert "three\n" in session.run(loud)["stdout"]
    assert session.run("print('four')", run_timeout=20)["stdout"] == "four\n"


def test_processor_time_of_what_is_left_running(session: Session) -> None:
    began = session.run("import os\nif os.fork() == 0:\n    while True: pass", run_timeout=0.3)
    assert began["return_code"] == 0
    for pause_s in (1, 2, 4, 8, 16):  # each run allows it as much again; a busy machine gives it little
        time.sleep(pause_s)
        if "what it left running used too much processor time" in session.run("1", run_timeout=0.3)["stderr"]:
            return
    pytest.fail("it goes on")


def test_code_that_opens_all_files_it_may(session: Session) -> None:
    session.run("import os\nkept = []\ntry:\n    while True: kept.append(os.dup(0))\nexcept OSError: pass")
    for _ in range(3):
        assert session.run("print(len(kept) > 400)")["stdout"] == "True\n"
    session.run("for fd in kept: os.close(fd)")
    assert session.run("print(kept.clear())")["stdout"] == "None\n"

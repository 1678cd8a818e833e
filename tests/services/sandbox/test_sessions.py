"""Sessions, notebook cells and the judge, against a real service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sandbox_service import Server, needs_language, serve

from agentrl.tools.python import Python


class Session:
    def __init__(self, server: Server, **fields: Any) -> None:
        answer = server.http.post("/sessions", json=fields)
        assert answer.status_code == 200, answer.text
        self.server, self.path = server, f"/sessions/{answer.json()['session_id']}"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.http.delete(self.path)

    def run(self, code: str, **fields: Any) -> dict[str, Any]:
        answer = self.server.http.post(f"{self.path}/run", json={"code": code, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["run_result"]  # type: ignore[no-any-return]


def test_a_session_keeps_its_variables(server: Server) -> None:
    with Session(server) as one, Session(server) as other:
        assert one.run("x = 1")["stdout"] == ""
        assert one.run("def f():\n    return x + 41")["return_code"] == 0
        assert one.run("print(f()); f()")["stdout"] == "42\n"
        failed = one.run("print('before')\ndef g():\n    1 / 0\ng()")
        assert (failed["return_code"], failed["stdout"]) == (1, "before\n")
        assert failed["stderr"].startswith('Traceback (most recent call last):\n  File "<cell 4>", line 4, in <module>')
        assert "    1 / 0" in failed["stderr"]
        assert "NameError" in other.run("print(x)")["stderr"]
        assert one.run("print(x)")["stdout"] == "1\n"
    gone = server.http.post(f"{one.path}/run", json={"code": "1"})
    assert gone.status_code == 404
    assert server.http.delete(one.path).status_code == 404


def test_code_that_takes_too_long_keeps_the_variables(server: Server) -> None:
    with Session(server) as session:
        late = session.run("x = 7\nprint('a', flush=True)\nwhile True: pass", run_timeout=1)
        assert (late["status"], late["return_code"], late["stdout"]) == ("TimeLimitExceeded", None, "a\n")
        assert session.run("print(x)")["stdout"] == "7\n"


ENDS = [
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "import os; os._exit(0)",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "import os\nfor fd in range(3, 100):\n    try: os.write(fd, b'9' * 8)\n    except OSError: pass\nos._exit(3)",
    "import os\nfor fd in range(3, 100):\n    try: os.write(fd, b'00000003{{{')\n    except OSError: pass",
]
ENDED = "\nThe interpreter has ended.\nThe next code starts in a new one, without the variables and files so far.\n"


def test_code_that_ends_the_interpreter_is_its_own_doing(server: Server) -> None:
    def ends(code: str) -> None:
        with Session(server) as session:
            session.run("x = 1")
            result = session.run(code, run_timeout=0.3)
            assert result["stderr"].endswith(ENDED), code
            assert result["return_code"] != 0, code
            assert session.run("print('x' in globals())")["stdout"] == "False\n", code

    with ThreadPoolExecutor(len(ENDS)) as pool:
        assert list(pool.map(ends, ENDS)) == [None] * len(ENDS)


def test_an_interpreter_that_ends_between_two_runs(server: Server) -> None:
    """The next run starts in a new one, and must say so."""
    with Session(server) as session:
        began = "import signal; signal.setitimer(signal.ITIMER_REAL, 0.1); open('f', 'w').close()"
        assert session.run(began)["stderr"] == ""
        time.sleep(1)
        result = session.run("import os; print('signal' in globals(), os.listdir())\n1 / 0")
        assert result["stdout"] == "False []\n"
        lost = "This interpreter is new: the last one has ended, and its variables and files are lost.\n"
        assert result["stderr"].startswith(f"{lost}Traceback")
        assert session.run("print(1)")["stderr"] == ""


def test_a_session_that_is_stopped_between_two_runs(server: Server) -> None:
    with Session(server, memory_limit_MB=200) as session:
        code = "import subprocess, sys\ncode = 'import time; x = b\"x\" * (120 << 20); time.sleep(60)'"
        session.run(f"{code}\nfor _ in range(2): subprocess.Popen([sys.executable, '-S', '-c', code])")
        deadline = time.monotonic() + 20
        while not (told := session.run("1")["stderr"]) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert told.startswith("This interpreter is new: the last one has ended (it used more than 200 MB of memory),")


def test_a_fork_ends_with_its_code(server: Server) -> None:
    """In a session too; there it answered the next request in place of its parent."""
    with Session(server) as session:
        forked = session.run("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint(pid > 0)")
        assert forked["stdout"] == "False\nTrue\n"
        assert [session.run(f"print({n})")["stdout"] for n in range(3)] == ["0\n", "1\n", "2\n"]


def test_code_that_cannot_be_parsed(server: Server) -> None:
    with Session(server) as session:
        told = session.run("x = 1\n%time x")["stderr"]
        assert told == '  File "<cell 1>", line 2\n    %time x\n    ^\nSyntaxError: invalid syntax\n'
        own = session.run("import ast\nast.parse('%')")["stderr"]
        assert own.startswith('Traceback (most recent call last):\n  File "<cell 2>", line 2, in <module>')


SOURCES = {
    "a mark of byte order": "\ufeffprint(1)\n1 / 0",
    "half of a surrogate pair": "print(1)  # \ud800",
    "an encoding": "# -*- coding: latin-1 -*-\nprint(1, '\u00e9')\n1 / 0",
    "lines of a Mac": "print(1)\r1 / 0",
    "wrong syntax": "print(1\nx = = 2",
    "null bytes": "print(1)\0",
    "marks in a line": "x = '\u2028\x0c'; print(len(x))\n1 / 0",
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.usefixtures("namespaces")
def test_sources_are_what_they_are_in_a_run(server: Server, name: str) -> None:
    with Session(server) as session:
        answers = [
            server.http.post(path, content=json.dumps({"code": SOURCES[name], "language": "python"})).json()
            for path in ("/run_code", f"{session.path}/run")
        ]
    alone, in_session = (answer["run_result"] for answer in answers)
    assert in_session["stdout"] == alone["stdout"]
    assert in_session["stderr"].replace("<cell 1>", "/sandbox/main.py") == alone["stderr"]


@pytest.mark.parametrize(
    "code",
    [
        "import io, sys; sys.stderr = io.BytesIO(); 1 / 0",
        "import sys; sys.stderr = None; sys.exit('bye')",
        "import sys; del sys.stderr, sys.stdout; sys.exit('bye')",
        "import sys\nclass Out:\n    def flush(self): 1 / 0\nsys.stdout = sys.stderr = Out()\n1 / 0",
        "raise ValueError('x' * (40 << 20))",
        "import sys; sys.exit('x' * (40 << 20))",
        "import sys; sys.exit(10**5000)",
        "class E(SystemExit):\n    @property\n    def code(self): 1 / 0\nraise E",
    ],
)
def test_a_session_outlives_the_report_of_an_error(server: Server, code: str) -> None:
    with Session(server) as session:
        session.run("import sys; x, streams = 7, (sys.stdout, sys.stderr)")
        assert session.run(code)["return_code"] == 1
        assert session.run("import sys; sys.stdout, sys.stderr = streams; print(x)")["stdout"] == "7\n"


def test_what_an_interpreter_is_ended_with(server: Server) -> None:
    """As `python main.py` does it; in a session it goes on."""
    for code in ("'bye'", "('a', 1)", "2.5", "3", "True", "None", "-2", "259", "1 << 70"):
        alone = server.python(f"import sys; sys.exit({code})")
        with Session(server) as session:
            ended = session.run(f"import sys; sys.exit({code})")
        assert [ended[name] for name in ("return_code", "stderr")] == [alone["return_code"], alone["stderr"]], code


def test_a_session_needs_no_body(server: Server) -> None:
    answer = server.http.post("/sessions")
    assert answer.status_code == 200
    assert server.http.delete(f"/sessions/{answer.json()['session_id']}").status_code == 200


def test_memory_of_a_session(server: Server) -> None:
    with Session(server, memory_limit_MB=200) as session:
        assert "MemoryError" in session.run("x = bytearray(400 << 20)")["stderr"]
        assert session.run("print(1)")["stdout"] == "1\n"


def test_runs_of_a_session_that_is_ended(server: Server) -> None:
    """None goes on, none starts the interpreter again, and none is called a failure of its code."""
    path = Session(server).path

    def run(code: str) -> httpx.Response:
        return server.http.post(f"{path}/run", json={"code": code, "run_timeout": 60})

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, "open('began', 'w').close()\nimport time; time.sleep(60)")
        wait_until(lambda: list(server.folder.glob("run-*/work/began")))
        second = pool.submit(run, "print(1)")
        wait_until(lambda: "agentrl_sandbox_requests_in_flight 3.0" in server.http.get("/metrics").text)
        assert server.health["running"] == 1  # who waits for its session holds up nobody else
        assert server.http.delete(path).status_code == 200
        assert second.result().status_code == 404
        assert (first.result().json()["status"], first.result().json()["run_result"]) == ("SandboxError", None)


def wait_until(come: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not come():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A service with little room."""
    with serve("--parallel", "1", "--queue", "3", "--sessions", "6", "--session-ttl-s", "0.6") as server:
        yield server


def test_two_hundred_sessions_that_nobody_closes(small: Server) -> None:
    statuses = []
    for _ in range(200):
        answer = small.http.post("/sessions", json={})
        statuses.append(answer.status_code)
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
    assert {200, 429} == set(statuses)
    assert small.health["sessions"] <= 6
    assert small.python("print(1)")["stdout"] == "1\n"
    deadline = time.monotonic() + 10
    while small.health["sessions"] and time.monotonic() < deadline:
        time.sleep(0.02)
    small.must_be_clean()
    assert small.health["sessions"] == 0
    with Session(small) as session:
        assert session.run("print(2)")["stdout"] == "2\n"


async def test_the_python_tool_in_a_session(server: Server) -> None:
    tool = Python({"sandbox_url": server.url, "session": True, "run_timeout_s": 0.5})
    await tool.create()
    assert (await tool.execute({"code": "x = 20"})).text == "(it printed nothing)"
    assert (await tool.execute({"code": "print(x + 1)"})).text == "21"
    late = await tool.execute({"code": "while True: pass"})
    assert late.is_error
    assert "Stopped: it ran longer than 0.5 s." in late.text
    assert (await tool.execute({"code": "print(x)"})).text == "20"
    await tool.release()
    assert server.health["sessions"] == 0


def test_notebook_cells(server: Server) -> None:
    """As in SandboxFusion a cell that raises says so in its `error`, and the next ones run."""
    body = {"cells": ["x = 2\nprint('hi')\nx * 3", "x", "1 / 0", "print('goes on')"], "fetch_files": ["f"]}
    body["cells"].insert(1, "open('f', 'w').write('a'); None")
    answer = server.http.post("/run_jupyter", json=body).json()
    assert answer["status"] == "Success"
    assert [cell["stdout"] for cell in answer["cells"]] == ["hi\n", "", "", "", "goes on\n"]
    assert [cell["display"] for cell in answer["cells"]] == [[{"text/plain": "6"}], [], [{"text/plain": "2"}], [], []]
    assert [[error["ename"] for error in cell["error"]] for cell in answer["cells"]][3:] == [["ZeroDivisionError"], []]
    assert (answer["files"], answer["message"]) == ({"f": "YQ=="}, "")
    late = server.http.post("/run_jupyter", json={"cells": ["1", "while True: pass", "2"], "cell_timeout": 0.3}).json()
    assert (late["status"], len(late["cells"])) == ("Failed", 2)
    ended = server.http.post("/run_jupyter", json={"cells": ["import os; os._exit(0)", "2"]}).json()
    assert (ended["status"], len(ended["cells"]), ended["message"]) == ("Failed", 1, "cell 1 ended the interpreter")


def test_memory_of_notebook_cells(server: Server) -> None:
    body = {"cells": ["x = bytearray(400 << 20)"], "memory_limit_MB": 200}
    (cell,) = server.http.post("/run_jupyter", json=body).json()["cells"]
    assert [error["ename"] for error in cell["error"]] == ["MemoryError"]


def test_every_cell_that_fails_says_why(server: Server) -> None:
    def last(code: str, status: str = "Success") -> dict[str, Any]:
        answer = server.http.post("/run_jupyter", json={"cells": ["import os, sys", "sys.exit()", code]}).json()
        assert (answer["status"], len(answer["cells"])) == (status, 3)
        cell: dict[str, Any] = answer["cells"][2]
        return cell

    assert last("sys.exit(3)")["error"] == [{"ename": "SystemExit", "evalue": "3", "traceback": ["SystemExit: 3\n"]}]
    said = last("sys.exit('bye')")
    assert (said["error"][0]["evalue"], said["stderr"]) == ("bye", "bye\n")
    assert last("os._exit(0)", "Failed")["stderr"] == "\nThe interpreter has ended.\n"


def runs(server: Server, language: str, status: str) -> float:
    """How many `/metrics` has counted."""
    name = f'agentrl_sandbox_runs_total{{language="{language}",status="{status}"}} '
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_judge_says_how_each_test_went(server: Server) -> None:
    code = "import sys\nn = int(input())\nif n == 3: sys.exit(1)\nwhile n == 4: pass\nprint(n * n)"
    tests = [{"input": str(n), "output": str(n * n if n != 2 else 5)} for n in range(1, 5)]
    answer = server.judge(code, tests, timeout=1.5)
    verdicts = [test["verdict"] for test in answer["tests"]]
    assert verdicts == ["Passed", "WrongAnswer", "RuntimeError", "TimeLimitExceeded"]
    assert (answer["status"], answer["passed"], answer["total"]) == ("Failed", 1, 4)
    row = {
        "input": None,
        "output": None,
        "assert": "assert __import__('sys').stdin.read() == ''",
    }  # a row of parquet has all keys
    tests = [{"assert": "assert f(1) == 2"}, {"assert": "f(2)"}, row]
    all_good = server.judge("def f(x):\n    return x + 1", tests)
    assert (all_good["status"], all_good["passed"]) == ("Success", 3)
    lenient = server.judge("print('a  \\nb\\n\\n')", [{"output": "a\nb"}])
    assert lenient["status"] == "Success"


@pytest.mark.parametrize(
    ("language", "ends", "check", "output"),
    [
        ("python", "print('x', end=''); raise SystemExit", "assert False", "x"),
        ("python", "import os; os._exit(0)", "assert False", ""),
        ("bash", "printf x; exit 0", "false", "x"),
        ("nodejs", "process.stdout.write('x'); process.exit(0)", "require('assert')(false)", "x"),
    ],
)
def test_judge_fails_a_program_that_ends_before_its_check(
    server: Server, language: str, ends: str, check: str, output: str
) -> None:
    needs_language(language)
    before = runs(server, language, "Success")
    (result,) = server.judge(ends, [{"assert": check}], language=language)["tests"]
    assert runs(server, language, "Success") == before + 1
    assert (result["passed"], result["verdict"]) == (False, "WrongAnswer")
    assert result["run_result"]["stdout"] == output
    says = {"bash": "printf x", "python": "print('x', end='')", "nodejs": "process.stdout.write('x')"}[language]
    goes_on = server.judge(
        says, [{"assert": check.replace("False", "True").replace("false", "true")}], language=language
    )
    assert goes_on["status"] == "Success"
    assert goes_on["tests"][0]["run_result"]["stdout"] == "x"


def test_judge_compiles_once_and_runs_at_the_same_time(server: Server) -> None:
    needs_language("cpp")
    code = (
        '#include <cstdio>\n#include <unistd.h>\nint main() { int n; scanf("%d", &n); usleep(2e6); printf("%d", n); }'
    )
    started = time.monotonic()
    answer = server.judge(code, [{"input": str(n), "output": str(n)} for n in range(4)], language="cpp")
    assert (answer["status"], answer["passed"]) == ("Success", 4)
    assert time.monotonic() - started < 7.5
    broken = server.judge("int main() { nope }", [{"output": ""}], language="cpp")
    assert (broken["status"], broken["tests"]) == ("Failed", [])
    assert "nope" in broken["compile_result"]["stderr"]


def test_judge_stops_early(server: Server) -> None:
    tests = [{"output": "no"}, *[{"output": "yes"}] * 30]
    answer = server.judge("print('yes')", tests, stop_early=True)
    verdicts = [test["verdict"] for test in answer["tests"]]
    assert verdicts[0] == "WrongAnswer"
    assert "Skipped" in verdicts


def test_judge_refuses_what_is_no_test(server: Server) -> None:
    for tests in ([], [{"input": "1"}], [{"output": "1", "assert": "x"}]):
        assert server.http.post("/judge", json={"code": "1", "tests": tests}).status_code == 422


def test_overload_is_refused_and_never_a_wrong_answer(small: Server) -> None:
    def one(number: int) -> tuple[int, str]:
        body = {"code": f"import time; time.sleep(0.2); print({number})", "language": "python"}
        answer = small.http.post("/run_code", json=body)
        if answer.status_code == 429:
            return 429, answer.headers["retry-after"]
        return answer.status_code, answer.json()["run_result"]["stdout"]

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(one, range(12)))
    for number, (status, text) in enumerate(answers):
        assert (status, text) == (200, f"{number}\n") or (status == 429 and int(text) >= 1)
    assert 4 <= sum(status == 200 for status, _ in answers) < 12
    assert small.python("print(1)")["stdout"] == "1\n"

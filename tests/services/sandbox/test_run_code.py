"""`POST /run_code` as SandboxFusion answers it, against a real service."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from needs import python_of_all_users
from sandbox_service import Server, needs_language

from agentrl.clients import SandboxClient, ServiceClient

HELLO = {
    "python": "import sys; print('hello', sys.stdin.read())",
    "bash": "echo hello $(cat /dev/fd/0) >> /dev/stdout",
    "nodejs": "console.log('hello', require('fs').readFileSync('/dev/stdin', 'utf8'))",
    "cpp": "#include <iostream>\nint main() { std::string s; std::cin >> s; std::cout << \"hello \" << s << '\\n'; }",
    "c": '#include <stdio.h>\nint main() { char s[9]; scanf("%8s", s); printf("hello %s\\n", s); }',
    "perl": "print 'hello ', <STDIN>, \"\\n\"",
    "ruby": "puts 'hello ' + STDIN.read",
    "lua": "print('hello', io.read('a'))",
    "php": "<?php echo 'hello ' . stream_get_contents(STDIN) . PHP_EOL;",
}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_ping_and_languages(server: Server) -> None:
    assert server.http.get("/v1/ping").json() == "pong"
    languages = server.http.get("/languages").json()
    assert {"python", "bash"} <= set(languages)
    assert languages["python"].startswith("Python 3")
    assert server.health["languages"] == sorted(languages)


@pytest.mark.parametrize("language", HELLO)
def test_every_installed_language_runs(server: Server, language: str) -> None:
    needs_language(language)
    assert language in server.health["languages"]
    answer = server.run(HELLO[language], language, stdin="you")
    assert answer["status"] == "Success", answer
    assert answer["run_result"]["stdout"].split() == ["hello", "you"]
    assert (answer["compile_result"] is not None) == (language in ("cpp", "c"))


def test_the_answer_has_the_shape_of_the_protocol(server: Server) -> None:
    answer = server.run("print('x')")
    assert list(answer) == ["status", "message", "compile_result", "run_result", "executor_pod_name", "files"]
    assert (answer["status"], answer["message"], answer["compile_result"], answer["files"]) == ("Success", "", None, {})
    result = answer["run_result"]
    assert list(result) == ["status", "execution_time", "return_code", "stdout", "stderr", "cpu_time"]
    assert 0 < result.pop("execution_time") < 10
    assert 0 < result.pop("cpu_time") < 10
    assert result == {"status": "Finished", "return_code": 0, "stdout": "x\n", "stderr": ""}


@pytest.mark.parametrize(
    ("code", "return_code", "stderr"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('bye')", 1, "bye\n"),
        ("exit(4)", 4, ""),
        ("import os; os.kill(os.getpid(), 9)", 137, ""),
        ("import ctypes; ctypes.string_at(0)", 139, ""),
        ("def f(:", 1, '  File "/sandbox/main.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'),
        (
            "def f():\n    1 / 0\nf()",
            1,
            'Traceback (most recent call last):\n  File "/sandbox/main.py", line 3, in <module>\n    f()\n'
            '  File "/sandbox/main.py", line 2, in f\n    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero\n',
        ),
    ],
)
@pytest.mark.usefixtures("namespaces")
def test_code_that_fails_is_the_codes_doing(server: Server, code: str, return_code: int, stderr: str) -> None:
    answer = server.run(code)
    assert answer["status"] == "Failed"
    result = answer["run_result"]
    assert (result["status"], result["return_code"]) == ("Finished", return_code)
    assert result["stderr"].replace(server.folder.as_posix(), "") == stderr


def test_python_is_as_if_started_from_a_file(server: Server) -> None:
    if server.health["isolation"] == "rlimits" and server.python("import numpy")["return_code"]:
        pytest.skip(f"{python_of_all_users()}, which runs the code without namespaces, has no numpy")
    code = """
import sys, os, atexit, threading, pickle, multiprocessing, __main__
class Point: pass
assert __name__ == "__main__" and __main__.Point is Point and pickle.loads(pickle.dumps(Point)) is Point
assert sys.argv == ["main.py"] and os.path.basename(__file__) == "main.py" and sys.path[0] == os.getcwd()
assert os.listdir() == ["main.py"] or sorted(os.listdir()) == ["helper.py", "main.py"]
import helper, numpy
assert not any("launch" in name or "agentrl" in name for name in sys.modules), list(sys.modules)
threading.Thread(target=lambda: print("thread")).start()
atexit.register(print, "at exit")
def work(n): return n * n
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(work, [1, 2, 3]))
print(helper.value, "ü", file=sys.stderr)
print(eval("1+1"), input(), open(0).read() if False else "")
"""
    answer = server.run(code, stdin="line\n", files={"helper.py": b64(b"value = 5")})
    result = answer["run_result"]
    assert result["stderr"] == "5 ü\n"
    assert sorted(result["stdout"].split("\n")) == sorted(["thread", "[1, 4, 9]", "2 line ", "at exit", ""])
    assert result["stdout"].endswith("at exit\n")


def test_time_limit(server: Server) -> None:
    answer = server.run("print('before', flush=True)\nwhile True: pass", run_timeout=1)
    assert answer["status"] == "Failed"
    result = answer["run_result"]
    assert (result["status"], result["return_code"], result["stdout"]) == ("TimeLimitExceeded", None, "before\n")
    assert 1 <= result["cpu_time"] < 2  # by the clock it takes longer where others compute too
    assert result["execution_time"] >= 0.9


def test_compile_errors_and_time(server: Server) -> None:
    needs_language("cpp")
    answer = server.run("int main() { nope }", "cpp")
    assert (answer["status"], answer["run_result"]) == ("Failed", None)
    assert "nope" in answer["compile_result"]["stderr"]
    slow = server.run("#include <regex>\n#include <map>\nint main() {}", "cpp", compile_timeout=0.05)
    assert (slow["status"], slow["compile_result"]["status"]) == ("Failed", "TimeLimitExceeded")


def test_files_go_in_and_out(server: Server) -> None:
    data = bytes(range(256)) * 100
    code = """
import os
data = open("in/deep/data.bin", "rb").read()
os.makedirs("out")
open("out/reversed", "wb").write(data[::-1])
open("in/deep/data.bin", "ab").write(b"!")
"""
    answer = server.run(
        code,
        files={"in/deep/data.bin": b64(data), "nothing": None, "./plain": ""},
        fetch_files=["out/reversed", "in/deep/data.bin", "plain", "missing"],
    )
    assert answer["status"] == "Success", answer
    files = {path: base64.b64decode(text) for path, text in answer["files"].items()}
    assert files == {"out/reversed": data[::-1], "in/deep/data.bin": data + b"!", "plain": b""}
    assert answer["message"] == "fetch_files: missing: no such file"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"language": "cobol"}, "language: got 'cobol', wanted a known one."),
        ({"language": "pythn"}, "Did you mean 'python'?"),
        ({"run_timeout": 1e9}, "run_timeout: got 1e+09 s, wanted at most 300 s"),
        ({"run_timeout": -1}, "run_timeout: Input should be greater than 0 (got -1)"),
        ({"compile_timeout": 1e9}, "compile_timeout: got 1e+09 s, wanted at most 300 s"),
        ({"memory_limit_MB": 10**6}, "memory_limit_MB: got 1000000, wanted at most 4096"),
        ({"files": {"a": "%"}}, "files: 'a': the content is not base64"),
        ({"files": {"a": 5}}, "files: 'a': got int, wanted base64 text or null"),
        ({"files": {"a": "", "a/b": ""}}, "files: 'a/b' is given twice, or as a file and as a folder"),
        ({"code": None}, "code: Input should be a valid string"),
    ],
)
def test_a_request_that_cannot_be_served(server: Server, fields: dict[str, Any], says: str) -> None:
    answer = server.http.post("/run_code", json={"code": "1", "language": "python", **fields})
    assert answer.status_code == 422
    assert says in answer.json()["detail"]


@pytest.mark.parametrize("files", [{"a/" * 60 + "f": ""}, {f"f{n}": "" for n in range(5001)}])
def test_files_that_would_stop_the_run_are_refused(server: Server, files: dict[str, str]) -> None:
    answer = server.http.post("/run_code", json={"code": "1", "language": "python", "files": files})
    assert answer.status_code == 422
    assert "wanted at most" in answer.json()["detail"]


def test_memory_limit_of_a_request(server: Server) -> None:
    code = "x = bytearray(300 << 20); print(len(x))"
    assert server.python(code, memory_limit_MB=200)["stderr"].endswith("MemoryError\n")
    assert server.python(code, memory_limit_MB=600)["stdout"] == f"{300 << 20}\n"


def test_threads_that_keep_every_core_busy_have_the_whole_time(server: Server) -> None:
    code = "import os, resource; print(resource.getrlimit(resource.RLIMIT_CPU)[0] > 10 * os.cpu_count())"
    assert server.python(code, run_timeout=10)["stdout"] == "True\n"


@pytest.mark.usefixtures("namespaces")
def test_runs_see_nothing_of_each_other(server: Server) -> None:
    code = """
import os, time
before = set(os.listdir("/tmp"))  # where the interpreter lies there, the way to it
open("/tmp/mine", "x").close(); open("mine", "x").close()
time.sleep(0.2)
mine = set(os.listdir("/tmp")) - before
print(sorted(mine), sorted(os.listdir()), len([p for p in os.listdir("/proc") if p.isdigit()]))
"""
    with ThreadPoolExecutor(4) as pool:
        outputs = set(pool.map(lambda _: server.python(code)["stdout"], range(4)))
    assert outputs == {"['mine'] ['main.py', 'mine'] 2\n"}


async def test_the_client_of_the_tools_speaks_with_it(server: Server) -> None:
    service = ServiceClient(server.url)
    client = SandboxClient(service, run_timeout_s=0.3)
    good = await client.run("print(input())", "seven", {"f": b64(b"x")})
    assert (good.ok, good.stdout) == (True, "seven\n")
    late = await client.run("while True: pass")
    assert (late.ok, late.timed_out) == (False, True)
    await service.aclose()

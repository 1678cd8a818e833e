"""Runs are forks of an interpreter that is up: nothing about a program may show it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sandbox_service import APART, Server, children, is_zygote, needs_level, process_flags

from agentrl.services.sandbox import zygote_pool
from agentrl.services.sandbox.filesystem_layout import make_layout
from agentrl.services.sandbox.isolation_choice import choose_isolation
from agentrl.services.sandbox.launcher_process import LauncherProcess, make_run_folder
from agentrl.services.sandbox.zygote_pool import ZygotePool

UIDS = range(1_900_200, 1_900_210)
PROGRAMS = {
    "names": "import sys; print(sys.argv, __name__, __doc__, __package__, __spec__, sys.path[0] == sys.path[1])",
    "no exit code": "import sys; sys.exit()",
    "large exit code": "import sys; sys.exit(259)",
    "negative exit code": "import sys; sys.exit(-2)",
    "huge exit code": "import sys; sys.exit(1 << 70)",
    "true as exit code": "import sys; sys.exit(True)",
    "float as exit code": "import sys; sys.exit(2.5)",
    "two as exit code": "import sys; sys.exit(('a', 1))",
    "own exit": "class E(SystemExit):\n    code = 7\nraise E(3)",
    "exit at once": "import os; print('lost', end=''); os._exit(5)",
    "exit in a handler": "import atexit, sys\natexit.register(sys.exit, 4)\nprint(1)",
    "abort": "import os; os.abort()",
    "handlers in order": "import atexit\nfor n in range(3): atexit.register(print, n, end='')",
    "no handlers": "import atexit\natexit.register(print, 1)\natexit._clear()\nprint(2, end='')",
    "finalizers": """
import os, sys, weakref, helper
class Noisy:
    def __init__(self, name): self.name = name
    def __del__(self): print(self.name, end=' ')
global_one = Noisy('global'); helper.kept = Noisy('helper'); sys.kept = Noisy('sys')
loop = [Noisy('loop')]; loop.append(loop); del loop
os.kept = Noisy('os')
weakref.finalize(helper, print, 'finalize')
""",
    "an error in a finalizer": "class E:\n    def __del__(self): 1 / 0\nkept = E()",
    "output of C": "import ctypes; print('a', flush=True); ctypes.CDLL(None).printf(b'from C')",
    "stdout is gone": "import os; print('x'); os.close(1)",
    "stdout is closed": "import sys; sys.stdout.close()",
    "stdout is another": "import io, sys; sys.stdout = io.StringIO(); print('x'); sys.__stdout__.write('y')",
    "stdout is none": "import sys; print('x'); sys.stdout = None",
    "no newline": "import sys; sys.stdout.write('a'); sys.stderr.write('b')",
    "a thread goes on": "import threading as t, time\nt.Thread(target=lambda: (time.sleep(.1), print('late'))).start()",
    "a daemon thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "forks": """
import os, sys
if os.fork() == 0:
    print('child'); sys.exit(6)
print(os.waitstatus_to_exitcode(os.wait()[1]))
""",
    "spawned": """
import multiprocessing
def work(q): q.put(__name__)
if __name__ == '__main__':
    context = multiprocessing.get_context('spawn')
    q = context.Queue(); p = context.Process(target=work, args=(q,)); p.start(); print(q.get()); p.join()
""",
    "an error": "def f():\n try:\n  {}[1]\n except KeyError as e:\n  raise ValueError('ü') from e\nf()",
    "an own hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0])\n1 / 0",
    "a group of errors": "raise ExceptionGroup('g', [ValueError(1), KeyError(2)])",
    "wrong syntax": "print(1\nx = = 2",
    "end of input": "print(input(), sys := 1); input()",
    "input by lines": "import sys; print([line for line in sys.stdin], sys.stdin.seekable(), sys.stdin.encoding)",
    "signals": "import signal\nprint([(s, str(signal.getsignal(s))) for s in signal.valid_signals()])",
    "blocked signals": "import signal; print(signal.pthread_sigmask(0, []), signal.getitimer(0))",
    "descriptors": "import os\nprint(sorted(os.listdir('/proc/self/fd'))[:3], open('main.py').fileno())",
    "umask": "import os; print(os.umask(0), os.getcwd() == os.path.dirname(__file__))",
    "streams": "import sys\nfor s in sys.stdout, sys.stderr: print(s.encoding, s.errors, s.line_buffering, s.isatty())",
    "own modules": "import random, re, json.decoder as d, string\nprint(random.who, re.who, d.who, string.digits)",
    "own threads": "import threading as t; print(t.current_thread() is t.main_thread(), t.active_count())",
    "dataclass": "import dataclasses, sys\n@dataclasses.dataclass\nclass A:\n    x: int = 1\nprint(A(), A.__module__)",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A, vars()['__builtins__'])",
}
OWN_MODULES = {"random.py": "who = 'mine'", "re/__init__.py": "who = 'mine too'", "json/__init__.py": ""}
OWN_MODULES["json/decoder.py"] = "who = 'all mine'"


def files_of(name: str) -> dict[str, str]:
    return OWN_MODULES if name == "own modules" else {"helper.py": ""}


def comparable(folder: str, code: int, stdout: str, stderr: str) -> tuple[int, str, str]:
    return code, stdout, re.sub(" at 0x[0-9a-f]+", "", stderr.replace(f"{folder}/", "/"))


def in_the_sandbox(server: Server, name: str) -> tuple[int, str, str]:
    files = {path: base64.b64encode(text.encode()).decode() for path, text in files_of(name).items()}
    result = server.python(PROGRAMS[name], stdin="a\nb", files=files)
    return comparable("/sandbox", result["return_code"], result["stdout"], result["stderr"])


def in_a_plain_interpreter(folder: Path, name: str) -> tuple[int, str, str]:
    for path, text in {"main.py": PROGRAMS[name], **files_of(name)}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    done = subprocess.run(
        [sys.executable, "-S", "-B", "main.py"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
        input="a\nb",
        capture_output=True,
        text=True,
        check=False,
    )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return comparable(str(folder), code, done.stdout, done.stderr)


@pytest.mark.usefixtures("namespaces")
def test_programs_do_what_they_do_in_a_plain_interpreter(server: Server, tmp_path: Path) -> None:
    names = list(PROGRAMS)
    with ThreadPoolExecutor(4) as pool:
        forked = dict(zip(names, pool.map(lambda name: in_the_sandbox(server, name), names), strict=True))
        plain = pool.map(lambda name: in_a_plain_interpreter(tmp_path / name, name), names)
        for name, wanted in zip(names, plain, strict=True):
            assert forked[name] == wanted, name


def test_runs_draw_different_numbers(server: Server) -> None:
    code = "import os, random, uuid; print(random.random(), uuid.uuid4(), os.urandom(4), hash('text'), sep='\\n')"
    drawn = list(zip(*(server.python(code)["stdout"].split("\n") for _ in range(4)), strict=True))
    assert [len(set(values)) for values in drawn[:3]] == [4, 4, 4]
    assert len(set(drawn[3])) > 1


@pytest.mark.usefixtures("namespaces")
def test_what_a_fork_holds_of_the_machine(server: Server) -> None:
    code = """
import os, pty, socket
print(sorted(os.listdir("/sandbox")), os.listdir("/dev/shm"), os.listdir("/dev/pts"))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapBnd", "CapAmb", "CapInh"))])
print([line.split()[4] for line in open("/proc/self/mountinfo") if line.split()[4].startswith("/sandbox")])
listener = socket.create_server(("127.0.0.1", 0))
print(socket.create_connection(listener.getsockname()).getpeername() == listener.getsockname())
print(socket.create_server(("localhost", 0)).getsockname()[0])
print(os.getppid(), os.getsid(0), socket.gethostname(), len(pty.openpty()), os.listdir("/proc/1/task"))
for path in ("/proc/1/environ", "/proc/1/mem", "/proc/1/root/etc", "/proc/1/fd"):
    try: print(path, os.listdir(path) if os.path.isdir(path) else open(path, "rb+").read(1))
    except OSError as error: print(type(error).__name__)
"""
    result = server.python(code)
    nothing = "0" * 16
    assert result["stdout"].splitlines() == [
        "['main.py'] [] ['ptmx']",
        str([nothing] * 3),
        "['/sandbox']",
        "True",
        "127.0.0.1",
        "1 1 sandbox 2 ['1']",
        *["PermissionError"] * 3,
        "PermissionError" if os.geteuid() == 0 else "/proc/1/fd []",
    ], result["stderr"]


@pytest.mark.usefixtures("namespaces")
def test_zygotes_that_are_killed(server: Server) -> None:
    """Runs in progress go on, and those that come find others."""
    with ThreadPoolExecutor(4) as pool:
        slow = pool.submit(server.python, "import time; time.sleep(1); print('slow')")
        for _ in range(3):
            answers = [pool.submit(server.run, f"print({number})") for number in range(6)]
            for pid in filter(is_zygote, children(server.process.pid)):
                os.kill(pid, signal.SIGKILL)
            for number, answer in enumerate(future.result() for future in answers):
                assert answer["status"] == "Success", answer
                assert answer["run_result"]["stdout"] == f"{number}\n"
        assert slow.result()["stdout"] == "slow\n"
        assert {answer["stdout"] for answer in pool.map(server.python, ["print(2)"] * 6)} == {"2\n"}
    assert sum(map(is_zygote, children(server.process.pid))) == 2


def end_of(started: LauncherProcess) -> None:
    os.kill(started.pid, signal.SIGKILL)
    assert started.reap().code == -signal.SIGKILL
    close_ends(started)


def close_ends(started: LauncherProcess) -> None:
    started.control.close()
    for fd in (started.stdin, started.stdout, started.stderr):
        os.close(fd)


@pytest.mark.parametrize("level", APART)
async def test_a_sandbox_of_a_killed_zygote_that_ends_late(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody was told of it; it is waited for once it has ended, on a busy machine long after its zygote."""
    needs_level(level)
    tmp_path.chmod(0o711)
    monkeypatch.setattr(zygote_pool, "_LOST_S", 0.05)
    isolation = choose_isolation(tmp_path, make_layout(tmp_path, sys.executable, UIDS, 16), level, None)
    zygotes = ZygotePool(isolation, tmp_path)
    make_run_folder(tmp_path / "run-lost", None, True)
    lost = await zygotes.start(tmp_path / "run-lost")
    zygotes._children.clear()  # as if its zygote had been killed before it could tell
    for pid in filter(is_zygote, children(os.getpid())):
        os.kill(pid, signal.SIGKILL)
    for number in range(2):  # each zygote is found dead
        make_run_folder(tmp_path / f"run-{number}", None, True)
        started = await zygotes.start(tmp_path / f"run-{number}")
        end_of(started)
    await asyncio.sleep(0.2)
    assert lost.pid in children(os.getpid())
    os.kill(lost.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while lost.pid in children(os.getpid()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    close_ends(lost)
    await zygotes.close()


@pytest.mark.parametrize("level", APART)
async def test_a_zygote_is_exchanged_after_some_forks(tmp_path: Path, level: str) -> None:
    needs_level(level)
    tmp_path.chmod(0o711)
    flags = process_flags()
    isolation = choose_isolation(tmp_path, make_layout(tmp_path, sys.executable, UIDS, 16), level, None)
    assert isolation.forks
    zygotes = ZygotePool(isolation, tmp_path, forks=2)
    seen: set[int] = set()
    deadline = time.monotonic() + 20
    for number in itertools.count():
        if len(seen) > 2 or time.monotonic() > deadline:
            break
        folder = tmp_path / f"run-{number}"
        make_run_folder(folder, None, True)
        started = await zygotes.start(folder)
        seen |= set(filter(is_zygote, children(os.getpid())))
        end_of(started)
        await asyncio.sleep(0.02)
    await zygotes.close()
    assert process_flags() == flags
    assert len(seen) > 2
    assert not list(filter(is_zygote, children(os.getpid())))


@pytest.mark.parametrize("level", APART)
async def test_a_busy_server_passes_nothing_else_on(tmp_path: Path, level: str) -> None:
    """With much open, what a zygote is given has a high number; its sandboxes must not get hold of it."""
    needs_level(level)
    tmp_path.chmod(0o711)
    isolation = choose_isolation(tmp_path, make_layout(tmp_path, sys.executable, UIDS, 16), level, None)
    zygotes = ZygotePool(isolation, tmp_path)
    much = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
    try:
        make_run_folder(tmp_path / "run-1", None, True)
        started = await zygotes.start(tmp_path / "run-1")
        assert started.control.recv(1) == b"R"
        (zygote,) = filter(is_zygote, children(os.getpid()))
        (launcher,) = children(started.pid)
        for pid in (zygote, launcher):
            end = time.monotonic() + 5  # the zygote closes its copies of what it was sent after the launcher is ready
            while (held := sorted(os.listdir(f"/proc/{pid}/fd"))) != ["0", "1", "2", "3"] and time.monotonic() < end:
                await asyncio.sleep(0.01)
            assert held == ["0", "1", "2", "3"]
    finally:
        for fd in much:
            os.close(fd)
        await zygotes.close()
    os.kill(started.pid, signal.SIGKILL)
    started.reap()
    started.control.close()
    for fd in (started.stdin, started.stdout, started.stderr):
        os.close(fd)


@pytest.mark.parametrize("level", APART)
async def test_a_zygote_that_does_not_come_up(tmp_path: Path, level: str) -> None:
    needs_level(level)
    before = set(children(os.getpid()))
    isolation = choose_isolation(tmp_path, make_layout(tmp_path, sys.executable, UIDS, 16), level, None)
    broken = replace(isolation, layout=replace(isolation.layout, guest=tmp_path))
    with pytest.raises(OSError, match=r"the zygote did not start: .*zygote\.py"):
        await ZygotePool(broken, tmp_path).start(tmp_path / "run-1")
    assert set(children(os.getpid())) == before  # no zombie either

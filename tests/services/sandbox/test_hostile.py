"""Code that means harm. After each test the machine must be clean and the service must serve."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sandbox_service import Server

LIMIT_S = 3.0
FORK_BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.001)
"""
IGNORES_SIGTERM = """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
print("here", flush=True)
while True: pass
"""
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.01)
    os._exit(0)
print("parent")
"""


def test_a_fork_bomb(server: Server) -> None:
    started = time.monotonic()
    result = server.python(FORK_BOMB, run_timeout=0.7)
    assert result["status"] == "TimeLimitExceeded"
    assert time.monotonic() - started < 10


def test_others_are_served_while_a_fork_bomb_runs(server: Server) -> None:
    with ThreadPoolExecutor(2) as pool:
        bomb = pool.submit(server.python, ":(){ :|:& };:", language="bash", run_timeout=1.5)
        assert server.python("print(1)")["stdout"] == "1\n"
        assert bomb.result()["status"] in ("TimeLimitExceeded", "Finished")


@pytest.mark.parametrize(
    "code",
    [
        "x = [' ' * 1000]\nwhile True: x += x",
        "import mmap\nkept = []\nwhile True: kept.append(mmap.mmap(-1, 64 << 20)); kept[-1].write(b'x' * (64 << 20))",
    ],
)
def test_a_memory_bomb(server: Server, code: str) -> None:
    answer = server.run(code, memory_limit_MB=200, run_timeout=LIMIT_S)
    assert answer["status"] == "Failed"
    assert answer["run_result"]["status"] == "Finished"
    assert answer["run_result"]["return_code"] != 0


@pytest.mark.parametrize("call", ["memfd_create(b'x', 0)", "shmget(0, 1 << 20, 0o1666)"])
def test_memory_that_belongs_to_no_process(server: Server, call: str) -> None:
    code = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.{call}, ctypes.get_errno())"
    assert server.python(code)["stdout"] == "-1 1\n"


def test_as_many_threads_as_processes(server: Server) -> None:
    """Each allocates, as threads do."""
    code = """
import threading
kept, all_there = [], threading.Barrier(61)
def work():
    kept.append([bytes(5000) for _ in range(20)]); all_there.wait()
threads = [threading.Thread(target=work) for _ in range(60)]
for thread in threads: thread.start()
all_there.wait()
print(len(kept))
"""
    assert server.python(code)["stdout"] == "60\n"


def test_cells_share_the_limit_of_output(server: Server) -> None:
    cell = "import sys; sys.stdout.write('x' * (3 << 20)); sys.stderr.write('y' * (3 << 20)); 'z' * (3 << 20)"
    cells = server.http.post("/run_jupyter", json={"cells": [cell] * 5}).json()["cells"]
    assert len(cells) == 5
    shown = [cell["display"][0]["text/plain"] for cell in cells]
    assert sum(map(len, shown)) < (8 << 20) + 5 * 100
    for texts in ([cell["stdout"] for cell in cells], [cell["stderr"] for cell in cells]):
        assert sum(map(len, texts)) < (8 << 20) + 5 * 100
        assert "[output cut: " in texts[-1]


def test_memory_of_many_processes_counts_together(server: Server) -> None:
    code = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        kept = bytearray(os.urandom(1 << 20)) * 100
        time.sleep(20)
time.sleep(20)
"""
    result = server.python(code, memory_limit_MB=300, run_timeout=10)
    assert result["status"] == "Finished", result
    assert "it used more than 300 MB of memory" in result["stderr"]


def test_a_gigabyte_of_output(server: Server) -> None:
    code = "import os\nblock = b'x' * (1 << 20)\nfor _ in range(1024): os.write(1, block)\nos.write(2, b'end')"
    result = server.python(code, run_timeout=20)
    assert (result["status"], result["return_code"], result["stderr"]) == ("Finished", 0, "end")
    kept = 8 << 20
    assert result["stdout"][:kept] == "x" * kept
    assert result["stdout"][kept:] == f"\n[output cut: {(1 << 30) - kept} more bytes were dropped]\n"


def test_output_of_180_kilobytes_is_whole(server: Server) -> None:
    result = server.python("import sys\nsys.stdout.write('y' * 180_000)\nsys.stderr.write('z' * 180_000)")
    assert (result["stdout"], result["stderr"]) == ("y" * 180_000, "z" * 180_000)


def test_a_gigabyte_in_a_file(server: Server) -> None:
    code = "f = open('big', 'wb')\nfor _ in range(1024): f.write(b'x' * (1 << 20))"
    result = server.python(code, run_timeout=10)
    assert "File too large" in result["stderr"]
    sparse = server.python("open('big', 'wb').truncate(1 << 30)")
    assert "File too large" in sparse["stderr"]


def test_a_gigabyte_in_many_files(server: Server) -> None:
    code = "for n in range(100):\n  with open(f'{n}', 'wb') as f: f.write(b'x' * (32 << 20))"
    result = server.python(code + "\nimport time; time.sleep(20)", run_timeout=15)
    assert "it wrote more than 256 MB of files" in result["stderr"]
    assert result["return_code"] != 0


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_memory_file_systems_are_bounded(server: Server, folder: str) -> None:
    if server.health["isolation"] == "rlimits":
        folder = "."
    code = f"for n in range(100):\n  with open('{folder}/' + str(n), 'wb') as f: f.write(b'x' * (32 << 20))"
    result = server.python(code, run_timeout=15)
    assert result["return_code"] != 0


def test_a_very_deep_folder(server: Server) -> None:
    code = "import os\nwhile True:\n  os.mkdir('d'); os.chdir('d')"
    result = server.python(code, run_timeout=2)
    assert result["status"] in ("Finished", "TimeLimitExceeded")


def test_a_loop_that_ignores_every_signal(server: Server) -> None:
    result = server.python(IGNORES_SIGTERM, run_timeout=0.5)
    assert (result["status"], result["stdout"]) == ("TimeLimitExceeded", "here\n")


def test_a_child_that_becomes_a_daemon(server: Server) -> None:
    result = server.python(DAEMON)
    assert (result["status"], result["return_code"], result["stdout"]) == ("Finished", 0, "parent\n")
    assert result["execution_time"] < 10


@pytest.mark.usefixtures("namespaces")
def test_the_servers_environment_and_files(server: Server) -> None:
    secret = server.folder.parent / f"agentrl-secret-{os.getpid()}"
    secret.write_text("sesame")
    secret.chmod(0o600)
    code = f"""
import glob, os
seen = [str(dict(os.environ))]
for path in glob.glob("/proc/[0-9]*/environ") + ["/proc/{server.process.pid}/environ", {str(secret)!r}, "/etc/shadow"]:
    try:
        seen.append(open(path, errors="replace").read())
    except OSError:
        pass
for root, folders, files in os.walk({os.fspath(Path.home())!r}):
    folders[:] = [f for f in folders if os.path.join(root, f) not in {[sys.base_prefix, sys.prefix]}]
    seen += [f for f in files if f == "id_rsa" or f.endswith("history")]
print("sesame" in str(seen), "root:$" in str(seen), os.path.exists({str(Path(__file__).parents[3])!r} + "/README.md"))
"""
    try:
        result = server.python(code)
    finally:
        secret.unlink()
    assert result["stdout"] == "False False False\n", result


@pytest.mark.parametrize("path", ["/etc/x", "/usr/bin/x", "/x", "/sandbox/../x", "/dev/x", "/proc/sys/kernel/hostname"])
def test_nothing_is_written_outside(server: Server, path: str) -> None:
    result = server.python(f"open({path!r}, 'w').write('x')")
    assert result["return_code"] == 1
    assert result["stderr"].splitlines()[-1].startswith(("PermissionError", "OSError", "FileNotFoundError"))


def test_rights_cannot_be_had_back(server: Server) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(os.getuid() == 0, os.geteuid() == 0)
for call in (lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: os.chroot("/"), lambda: os.nice(-5)):
    try: call(); print("could")
    except OSError: pass
for flags in (0x10000000, 0x20000, 0x40000000):
    print(libc.unshare(flags), end=" ")
print(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.ptrace(16, 1, 0, 0))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm", "NoNewPrivs"))])
"""
    result = server.python(code)
    nothing = "0" * 16
    assert result["stdout"] == f"False False\n-1 -1 -1 -1 -1\n['{nothing}', '{nothing}', '1']\n", result


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../up", "", "a\0b", "x" * 300, "."])
def test_paths_that_leave_the_folder(server: Server, path: str) -> None:
    for fields in ({"files": {path: ""}}, {"fetch_files": [path]}):
        answer = server.http.post("/run_code", json={"code": "1", "language": "python", **fields})
        assert answer.status_code == 422, fields
        assert "wanted" in answer.json()["detail"]


def test_links_are_not_followed(server: Server) -> None:
    secret = server.folder.parent / f"agentrl-linked-{os.getpid()}"
    secret.write_text("sesame")
    code = f"""
import os
os.symlink({str(secret)!r}, "file"); os.symlink("/etc", "folder"); os.symlink("main.py", "near"); os.mkfifo("pipe")
os.mkdir("real"); os.symlink("../../../../../etc", "real/up")
"""
    paths = ["file", "folder/passwd", "near", "pipe", "real/up/passwd", "real"]
    try:
        answer = server.run(code, fetch_files=paths)
    finally:
        secret.unlink()
    assert (answer["status"], answer["files"]) == ("Success", {})
    assert all(f"fetch_files: {path}: " in answer["message"] for path in paths)


def test_files_that_grow_on_the_way_out(server: Server) -> None:
    code = "for n in range(3):\n  with open(f'f{n}', 'wb') as f: f.truncate(33 << 20)"
    answer = server.run(code, fetch_files=["f0", "f1", "f2"])
    assert list(answer["files"]) == ["f0"]
    assert answer["message"].count("bytes are over the limit") == 2


def test_a_zip_bomb(server: Server) -> None:
    code = """
import io, zipfile
made = io.BytesIO()
with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as z: z.writestr("zeros", bytes(100 << 20))
print(len(made.getvalue()) < 200_000)
zipfile.ZipFile(made).extractall()
"""
    result = server.python(code, run_timeout=15)
    assert result["stdout"] == "True\n"
    assert "File too large" in result["stderr"]


@pytest.mark.parametrize("address", ["('127.0.0.1', PORT)", "('1.1.1.1', 53)", "('169.254.169.254', 80)"])
def test_no_network(server: Server, address: str) -> None:
    port = server.url.rpartition(":")[2]
    code = f"import socket\nsocket.create_connection({address.replace('PORT', port)}, 1)\nprint('connected')"
    result = server.python(code)
    assert (result["stdout"], result["return_code"]) == ("", 1)
    for family in ("AF_VSOCK", "AF_PACKET"):
        assert server.python(f"import socket; socket.socket(socket.{family}, 3)")["return_code"] == 1


def test_killing_whom_it_can(server: Server) -> None:
    code = f"""
import os, signal
for pid in (os.getppid(), 1, {server.process.pid}, -1):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
print("alive")
"""
    result = server.python(code)
    assert result["status"] == "Finished"
    assert server.process.poll() is None


def test_huge_arguments(server: Server) -> None:
    result = server.python("import subprocess\nsubprocess.run(['/bin/true', 'x' * (4 << 20)])")
    assert "Argument list too long" in result["stderr"]
    code = f"x = {'1' * 1000} * 0\n" + "#" * (3 << 20) + "\nprint(x)"
    assert server.python(code)["stdout"] == "0\n"


def test_null_bytes_and_invalid_text(server: Server) -> None:
    assert "null bytes" in server.python("print(1)\0")["stderr"]
    assert server.python("print(len(input()))", stdin="a\0b")["stdout"] == "3\n"
    result = server.python("import os; os.write(1, b'a\\xff\\xfeb\\x00')")
    assert (result["stdout"], result["return_code"]) == ("a\ufffd\ufffdb\0", 0)
    body = b'{"code": "print(1)#\\ud800", "language": "python"}'
    answer = server.http.post("/run_code", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 422)
    for path in ("a\udc80", "b\ud800"):
        for fields in ({"files": {path: ""}}, {"fetch_files": [path]}):
            fields |= {"code": "1", "language": "python"}
            assert server.http.post("/run_code", content=json.dumps(fields)).status_code == 422, fields
    cells = ["class A:\n  def __repr__(self): return '(' + chr(0xd83d) + ')'\nA()", "raise ValueError(chr(0xd83d))"]
    notebook = server.http.post("/run_jupyter", content=json.dumps({"cells": cells})).json()["cells"]
    assert notebook[0]["display"] == [{"text/plain": "(?)"}]
    assert notebook[1]["error"][0]["evalue"] == "?"


def test_closing_the_pipes_and_a_child_that_keeps_them(server: Server) -> None:
    assert server.python("import os; os.close(0); os.close(1); os.close(2)", stdin="x" * 10**6)["return_code"] == 0
    started = time.monotonic()
    result = server.python("import subprocess; subprocess.Popen(['sleep', '30']); print('done', flush=True)")
    assert (result["stdout"], result["return_code"]) == ("done\n", 0)
    assert time.monotonic() - started < 20


def test_a_body_that_is_too_large(server: Server) -> None:
    for body in (bytes(102 << 20), (bytes(1 << 20) for _ in range(102))):  # of a length that is told, or not
        assert server.http.post("/run_code", content=body).status_code == 413

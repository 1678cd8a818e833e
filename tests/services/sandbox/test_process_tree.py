"""How much memory the processes of a run hold together."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentrl.services.sandbox.process_tree import descendants, resident_bytes

MIB = 1 << 20
HELD = 40
HOLD = f"import ctypes, os, signal, sys\nheld = bytearray(os.urandom(1 << 20)) * {HELD}\n"
END = "\nassert child > 0\nprint(flush=True)\nsys.stdin.readline()\nos.kill(child, 9)\nos.waitpid(child, 0)"
IN_ITS_MEMORY = """
libc, stack = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 20)
top = (ctypes.addressof(stack) + (1 << 20)) & ~15
share_memory, death_signal = 0x100, 17
child = libc.clone(libc.pause, ctypes.c_void_p(top), share_memory | death_signal, None)
"""
FORK = """
child = os.fork()
if not child:
    WRITE
    print(flush=True)
    signal.pause()  # until the parent kills it
"""


@pytest.mark.parametrize(
    ("makes_a_child", "lines", "times"),
    [
        pytest.param(IN_ITS_MEMORY, 1, 1, id="as between vfork and exec"),
        pytest.param(FORK.replace("WRITE", "pass"), 2, 1, id="fork"),
        pytest.param(FORK.replace("WRITE", "held[:] = held.upper()"), 2, 2, id="fork that writes"),
    ],
)
def test_memory_of_a_process_and_its_child(makes_a_child: str, lines: int, times: int) -> None:
    command = [sys.executable, "-c", HOLD + makes_a_child + END]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        pids = [process.pid, *descendants(process.pid)]
        assert len(pids) == 2
        assert resident_bytes(pids, enough=1 << 40) > 2 * HELD * MIB, "each counts"
        held = resident_bytes(pids, enough=0)
        assert HELD * times <= held / MIB < HELD * times + HELD / 2
        process.communicate(b"\n")

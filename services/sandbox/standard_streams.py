"""Pipes of a running program: its output, read to the end and kept up to a limit, and its input."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os

_CHUNK = 256 * 1024
_PIPE_BYTES = 1024 * 1024
_F_SETPIPE_SZ = 1031


class OutputReader:
    """Reads one output pipe. What exceeds the limit goes to the null device without passing through this process.

    Args:
        fd: reading end; closed at the end.
        limit: bytes kept until the next `take`.
    """

    def __init__(self, fd: int, limit: int) -> None:
        self._fd, self._limit = fd, limit
        self._kept, self._total = [b""], 0
        self.size = 0
        """Bytes that are kept now."""
        self._null: int | None = None
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        """Nobody holds the writing end any more."""
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # a user's share of pipe memory is used up: a small pipe does too
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
        self._loop.add_reader(fd, self.pull)

    def pull(self, chunks: int = 1) -> None:
        """Read available output, at most `chunks` chunks."""
        for _ in range(chunks):
            if self.ended.is_set():
                return
            try:
                size = self._read()
            except BlockingIOError:
                return
            except OSError:
                size = 0
            self._total += size
            if size == 0:
                self.close()

    def take(self) -> bytes:
        """What came since the last `take`; says in its last line how much was cut off."""
        data, cut = b"".join(self._kept), self._total - self.size
        self._kept, self.size, self._total = [b""], 0, 0
        if cut:
            data += f"\n[output cut: {cut} more bytes were dropped]\n".encode()
        return data

    def drop(self) -> None:
        """Keep nothing from now on; who still writes is not held up."""
        self._kept, self.size, self._limit = [b""], 0, 0

    def close(self) -> None:
        """Stop reading."""
        if self.ended.is_set():
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        if self._null is not None:
            os.close(self._null)
        self.ended.set()

    def _read(self) -> int:
        room = self._limit - self.size
        if room > 0:
            chunk = os.read(self._fd, min(room, _CHUNK))
            self._kept.append(chunk)
            self.size += len(chunk)
            return len(chunk)
        if self._null is None:
            self._null = os.open(os.devnull, os.O_WRONLY)
        return os.splice(self._fd, self._null, _PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK)


class InputWriter:
    """Writes a program's input as fast as it reads; closes the pipe after it.

    Args:
        fd: writing end; closed at the end.
        data: what to write.
    """

    def __init__(self, fd: int, data: bytes) -> None:
        self._fd, self._data, self._at = fd, data, 0
        self._loop = asyncio.get_running_loop()
        self._open = True
        os.set_blocking(fd, False)
        self._loop.add_writer(fd, self._push)
        self._push()

    def close(self) -> None:
        """Stop writing."""
        if self._open:
            self._open = False
            self._loop.remove_writer(self._fd)
            os.close(self._fd)

    def _push(self) -> None:
        try:
            while self._at < len(self._data):
                self._at += os.write(self._fd, memoryview(self._data)[self._at : self._at + _CHUNK])
        except BlockingIOError:
            return
        except OSError:
            pass  # the program reads no more
        self.close()

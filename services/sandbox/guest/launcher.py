"""The first program inside a sandbox: waits for one job, gives up its rights, then becomes the job.

Usage: `python -S launcher.py FD`. On the control socket FD it writes `R` (ready), reads one job and the seccomp program
that follows it, and writes `S` in the moment before the job's code starts; `E` and a text say that it could not start.
So a failure before the `S` is one of the sandbox, and whatever comes after it is the job's own doing.
Imports stay few: each costs milliseconds per run.
"""

from __future__ import annotations

import os
import sys

_HEADER, _LINE = 8, 3
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType
    from typing import Any


def receive(control: int) -> dict[str, Any] | None:
    """The next message from the server: a Python literal behind eight digits of length; None at the end."""
    size = _read(control, _HEADER)
    if not size:
        return None
    job: dict[str, Any] = eval(_read(control, int(size)), {"__builtins__": {}})  # the server wrote it with repr
    return job


def restrict(job: dict[str, Any], program: bytes, linux_calls: Any) -> None:
    """Set limits, then user and group, for a limit may need the rights; go to the job's folder; then load the filter.

    Args:
        job: see `serve_job`.
        program: the seccomp program; empty: none.
        linux_calls: the module of that name.
    """
    import resource

    for name, wanted in job["limits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(number, (value, value))
    uid = job["uid"]
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.umask(0o022)
    os.chdir(job["folder"])
    os.environ["PWD"] = job["folder"]
    if job["landlock"]:
        linux_calls.restrict_with_landlock(job["landlock"], job["paths"])
    if program:
        linux_calls.load_filter(program)


def forget_shadowed(extra: Iterable[str]) -> None:
    """Where one of the job's own files has the name of an extra module, `import` must find that file: forget them."""
    own = {name.partition(".")[0] for name in os.listdir(".")}
    if any(name.partition(".")[0] in own for name in extra):
        for name in extra:
            sys.modules.pop(name, None)


def prepare_python(job: dict[str, Any], folder: str) -> ModuleType:
    """Give this interpreter the search path and the names that a plain `python main.py` has; return `__main__`."""
    import _sitebuiltins
    import builtins

    for name, value in (
        ("exit", _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")),
        ("quit", _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")),
        ("help", _sitebuiltins._Helper()),
    ):
        setattr(builtins, name, value)
    sys.path[:] = [folder, *job["path"]]
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def run_main(job: dict[str, Any], control: int, tested_program: Any = None) -> int:
    """Run `main.py` in this interpreter as `python main.py` would; return the exit code.

    Args:
        job: the job.
        control: the control socket; closed before the code runs, unless its functions are to be called afterwards.
        tested_program: the module of that name, which lets them be called.
    """
    folder = os.getcwd()
    file = folder + "/main.py"
    main = prepare_python(job, folder)
    main.__file__ = file
    if tested_program is not None:  # its `if __name__ == "__main__":` would read input that nobody gives
        main.__name__ = "main"
        sys.modules["main"] = main
    sys.argv[:] = ["main.py"]
    with open(file, "rb") as stream:
        source = stream.read()
    os.write(control, b"S")
    os.set_inheritable(control, False)
    if tested_program is None:
        os.close(control)
    try:
        exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None  # without this function's own
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return 1
    return 0 if tested_program is None else int(tested_program.answer_calls(main, control))


def run_command(job: dict[str, Any], control: int) -> None:
    """Become the job's program; one whose functions are to be called keeps the control socket, as descriptor 3."""
    if job.get("serves") and control != _LINE:
        os.dup2(control, _LINE)
        os.close(control)
        control = _LINE
    os.set_inheritable(control, bool(job.get("serves")))
    os.write(control, b"S")
    try:
        os.execv(job["argv"][0], job["argv"])
    except OSError as error:
        os.write(control, f"E{job['argv'][0]}: {error.strerror}".encode())
        os._exit(126)


def main() -> int:
    """Wait for a job and do it."""
    return serve_job(int(sys.argv[1]), __import__("linux_calls"))  # the file beside this one


def serve_job(
    control: int, linux_calls: Any, loaded: Mapping[str, Any] | None = None, extra: Iterable[str] = ()
) -> int:
    """Wait for a job and do it.

    Args:
        control: the control socket.
        linux_calls: the module of that name.
        loaded: modules beside this one that are loaded already, by name.
        extra: modules that are loaded here and not in a plain interpreter.
    """
    os.write(control, b"R")
    job = receive(control)
    if job is None:
        os._exit(0)
    name = {"session": "session_repl", "check": "check_run"}.get(job["kind"], "tested_program")
    guest = None
    if job["kind"] in ("session", "check") or (job["kind"] == "main" and job.get("serves")):
        guest = (loaded or {}).get(name) or __import__(name)  # before the rights to read these files are gone
    program = _read(control, job["filter_bytes"])
    sys.path[:] = sys.path[1:]
    restrict(job, program, linux_calls)
    forget_shadowed(extra)
    if job["kind"] == "main":
        return run_main(job, control, guest)
    if job["kind"] == "command":
        run_command(job, control)
    assert guest is not None
    if job["kind"] == "check":
        guest.run_check(job, control, prepare_python)
    return int(guest.run(job, control, receive, prepare_python))


def _read(control: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(control, size)
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    sys.exit(main())

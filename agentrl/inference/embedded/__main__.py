"""`python -m agentrl.inference.embedded --model DIR --port P`: run an embedded engine server."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from agentrl.errors import ConfigError, UserInputError
from agentrl.hub import model_folder
from agentrl.inference.embedded.options import DTYPES, RUNNERS, EngineOptions
from agentrl.inference.embedded.tool_calls import NAMES

PARENT_CHECK_S = 0.5


def parse_options(arguments: Sequence[str] | None = None) -> EngineOptions:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.inference.embedded", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="Hugging Face folder, or a name of the hub")
    add("--tokenizer-path", help="folder of the tokenizer; default: the model's")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--max-running-requests", type=int, default=128, help="requests that decode together")
    add("--max-context-length", type=int, help="tokens of prompt and answer together; default: the model's")
    add("--prefill-chunk", type=int, default=2048, help="prompt tokens of one step")
    add("--threads", type=int, help="CPU threads; default: depends on the model's size, 1 with --deterministic")
    add("--engines-here", type=int, default=1, help="engines that share this machine's cores")
    add("--dtype", choices=DTYPES, default="auto")
    add("--device", default="auto", help="cpu, cuda, cuda:N or auto")
    add("--deterministic", action="store_true", help="a request's numbers do not depend on other requests; slower")
    add("--seed", type=int, default=0, help="seed for requests without sampling_seed")
    add("--weight-version", default="default", help="name of the initial weights")
    add("--kv-cache-gb", type=float, help="KV cache in GB; default: a quarter of the free memory, on a GPU half of it")
    add("--no-native", dest="native", action="store_false", help="torch operations only, no compiled C")
    add("--runner", choices=RUNNERS, default="embedded", help="agentrl's own decoder, or transformers' generate")
    add("--trust-remote-code", action="store_true", help="with --runner hf: run code of the model folder")
    add("--tool-call-parser", choices=NAMES, help="format of tool calls in chat completions; default: left as text")
    add("--die-with-parent", action="store_true", help="end when the parent process ends")
    given = parser.parse_args(arguments)
    for name in (
        "max_running_requests",
        "max_context_length",
        "prefill_chunk",
        "threads",
        "engines_here",
        "kv_cache_gb",
    ):
        value = getattr(given, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')}: got {value}, wanted a positive number")
    if not 0 <= given.port <= 65535:
        parser.error(f"--port: got {given.port}, wanted 0 (any free one) to 65535")
    return EngineOptions(**vars(given))


def _with_folders(options: EngineOptions) -> EngineOptions:
    """The options with folders in place of names of the hub, before torch is asked to load them.

    Raises:
        ConfigError: there is no such model; names the option and the nearest folder.
    """

    def folder(option: str, path: str, *, weights: bool) -> str:
        try:
            return str(model_folder(path, weights=weights))
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from error

    tokenizer = options.tokenizer_path
    return replace(
        options,
        model=folder("--model", options.model, weights=True),
        tokenizer_path=None if tokenizer is None else folder("--tokenizer-path", tokenizer, weights=False),
    )


def die_with_parent() -> None:
    """End this process soon after its parent has ended, however the parent ended.

    Linux's PR_SET_PDEATHSIG would not do: it fires when the *thread* that started the child ends.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server; returns the exit code."""
    options = parse_options(arguments)
    if options.die_with_parent:
        die_with_parent()
    from agentrl.inference.embedded.server import run_engine_server

    try:
        return run_engine_server(_with_folders(options))
    except UserInputError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

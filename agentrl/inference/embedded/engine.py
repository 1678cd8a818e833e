"""The engine: one thread that owns the model and runs its steps; everything else talks to it through a queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import torch

from agentrl.chat.vision import load_vision
from agentrl.errors import UserInputError
from agentrl.inference.embedded.decoder import Decoder
from agentrl.inference.embedded.kv_cache import KVCache
from agentrl.inference.embedded.memory import WEIGHTS, Occupation
from agentrl.inference.embedded.model_spec import ModelSpec, load_spec
from agentrl.inference.embedded.options import EngineOptions
from agentrl.inference.embedded.request import GenerationRequest, Progress
from agentrl.inference.embedded.scheduler import Scheduler
from agentrl.inference.embedded.slots import SlotTable
from agentrl.inference.embedded.text import Tokenizer

if TYPE_CHECKING:
    from agentrl.inference.hf.batches import BatchQueue
    from agentrl.inference.hf.model import HFModel, HFSpec

logger = logging.getLogger(__name__)
T = TypeVar("T")
Listener = Callable[[list[Progress]], None]
WEIGHTS_PER_THREAD = 5_000_000
"""Weights per CPU thread: with fewer, threads wait for each other longer than they save (measured: a second thread
makes a step of 3 M weights a third slower, and one of 11 M a third faster)."""
PAUSE_MODES = ("abort", "in_place", "retract")


class Engine:
    """A model that answers requests.

    Args:
        options: see `EngineOptions`.
        listener: called from the engine's thread, at most once per step, with the requests that ended and the streaming
            requests that got a token.

    Raises:
        UserInputError: the model folder cannot be used.
    """

    def __init__(self, options: EngineOptions, listener: Listener) -> None:
        self.options, self.listener = options, listener
        self.tokenizer = Tokenizer(options.tokenizer_path or options.model)
        self.paused = False
        self.signs = 0
        """Grows with each step and each call that the thread has answered: it is alive."""
        self.adapter: str | None = None
        """The LoRA adapter that is merged into the weights."""
        self.failed: str | None = None
        """The error that ended the thread; None if there was none."""
        self.on_failure: Callable[[], None] = lambda: None
        self.scheduler, self.spec, self.context = self._load()
        self.occupation = Occupation(self.scheduler)
        """What of its memory the engine has released."""
        shown = isinstance(self.spec, ModelSpec) and self.spec.pictures is not None
        self.pictures = load_vision(options.model) if shown else None
        """How the model sees pictures; None: it reads text only, or is run by transformers' `generate`."""
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = self._ended = False
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def _load(self) -> tuple[Scheduler | BatchQueue, ModelSpec | HFSpec, int]:
        """The model with its queue, its facts, and the longest context."""
        options = self.options
        if options.runner == "hf":
            from agentrl.inference.hf.batches import BatchQueue
            from agentrl.inference.hf.model import HFModel

            model = HFModel(options)
            context = options.context(model.spec.max_positions)
            queue = BatchQueue(
                model,
                max_running=options.max_running_requests,
                max_tokens=_cache_budget(options) // model.cache_bytes(),
                weight_version=options.weight_version,
                tick=self._between_tokens,
            )
            return queue, model.spec, context
        spec = load_spec(options.model)
        context = options.context(spec.max_positions)
        return _scheduler(options, spec, context), spec, context

    @property
    def weight_version(self) -> str:
        """Name of the weights in use."""
        return self.scheduler.weight_version

    @property
    def held(self) -> bool:
        """Whether requests wait: the engine is paused, or has released memory."""
        return self.paused or bool(self.occupation.released)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Abort what runs and end the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        else:
            self._end_all()

    def submit(self, requests: list[GenerationRequest]) -> None:
        """Queue requests; the listener is called as they progress."""
        self._post(lambda: self.scheduler.waiting.extend(requests))

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in the engine's thread between two steps."""
        # A `UserInputError` (a bad weights folder) goes to the caller only. Any other error also ends the thread: the
        # model may be half-updated.
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
                self.signs += 1
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, UserInputError):
                    raise

        self._post(run)
        return future

    def abort(self, rid: str | None) -> Future[int]:
        """End the requests whose id starts with `rid`, or all; the result is their number."""
        return self.call(lambda: self._abort(rid, "Abort in waiting queue or while running: asked for by the client"))

    def abort_one(self, request: GenerationRequest) -> None:
        """End one request if it is still running."""
        self._post(lambda: self._tell(self.scheduler.abort_one(request, "the client went away")))

    def pause(self, mode: str) -> Future[None]:
        """Stop stepping. `abort` ends what runs, `in_place` keeps its cache, `retract` computes it again afterwards."""

        def pause() -> None:
            if mode == "abort":
                self._abort(None, "the engine was paused in abort mode")
            elif mode == "retract":
                self.scheduler.retract()
            self.paused = True

        return self.call(pause)

    def resume(self) -> Future[None]:
        """Continue after a pause."""

        def resume() -> None:
            self.paused = False

        return self.call(resume)

    def flush_cache(self) -> Future[None]:
        """Forget the prefix cache."""
        return self.call(self.scheduler.flush)

    def update_weights(
        self, load: Callable[[Decoder | HFModel], None], *, version: str | None, flush: bool, abort_all: bool = False
    ) -> Future[int]:
        """Replace weights between two steps; running requests continue with the new ones.

        Args:
            load: fills the decoder's weights; a `UserInputError` from it leaves the old ones in place.
            version: name of the new weights; None: the name stays.
            flush: forget keys and values computed with the old weights.
            abort_all: end all requests first.

        Returns:
            A future of the number of requests that were held by a pause.
        """

        def update() -> int:
            if WEIGHTS in self.occupation.released:
                raise UserInputError("the weights are released: resume them before an update")
            if abort_all:
                self._abort(None, "aborted for a weight update")
            load(self.scheduler.model)
            if version is not None:
                self.scheduler.weight_version = version
            if flush:
                self.scheduler.flush()
            return len(self.scheduler.running) + len(self.scheduler.waiting) if self.paused else 0

        return self.call(update)

    def _abort(self, rid: str | None, message: str) -> int:
        ended = self.scheduler.abort(rid, message)
        self._tell(ended)
        return len(ended)

    def step(self) -> None:
        """Run one step and call the listener. Only for the engine's thread, or if it was never started."""
        self._tell(self.scheduler.step())

    def _between_tokens(self, requests: list[GenerationRequest]) -> bool:
        """Report tokens, do what was posted, wait while paused; False: stop. For queues whose step is a whole batch."""
        self._tell(requests)
        self.drain()
        # A batch that has lost all requests (a pause that retracts or aborts) is left, so that its memory is free.
        while self.held and self.scheduler.running and not self._stopping:
            self._wake.wait()
            self._wake.clear()
            self.drain()
        return not self._stopping

    def _tell(self, requests: list[GenerationRequest]) -> None:
        """Tell the listener about requests that ended and about new tokens of those that stream."""
        self.signs += bool(requests)
        heard = [Progress(r, len(r.ids), r.finish) for r in requests if r.stream or r.finish is not None]
        if heard:
            self.listener(heard)

    def _post(self, work: Callable[[], None]) -> None:
        self._inbox.append(work)
        self._wake.set()
        # The thread may have ended since the caller looked: whoever posts last answers, so no future stays open.
        if self._ended:
            self._end_all()

    def _end_all(self) -> None:
        """Answer everything that is posted after the last step."""
        self._ended = True
        with self._ending:
            self.drain()
            self._abort(None, self.failed or "the engine is shutting down")

    def _run(self) -> None:
        if self.scheduler.model.device.type == "cpu":
            torch.set_num_threads(self.options.threads or fitting_threads(self.options, self.spec))
        try:
            while not self._stopping:
                self.drain()
                if self.held or not self.scheduler.busy:
                    self._wake.wait()
                    self._wake.clear()
                    continue
                self.step()
        except BaseException as error:
            self.failed = f"{type(error).__name__}: {error}"
            # Nothing above a thread sees its error: log it, and report it in /health and in every open request.
            logger.critical("the engine's thread ended: %s", self.failed, exc_info=True)
        finally:
            self._end_all()
            if self.failed is not None:
                self.on_failure()

    def drain(self) -> None:
        """Run what was posted. Only for the engine's thread, or if it was never started."""
        while self._inbox:
            self._inbox.popleft()()


def _scheduler(options: EngineOptions, spec: ModelSpec, context: int) -> Scheduler:
    """Load the model and lay out its cache."""
    device, dtype = options.torch_device(), options.torch_dtype()
    model = Decoder.load(spec, options.model, context, dtype, device, native=options.native)
    cache = KVCache(spec, dtype, device)
    running = 1 if options.deterministic else options.max_running_requests
    slots = 1 if options.deterministic else running + running // 2
    table = SlotTable(cache, slots, context, _cache_budget(options), reuse=not options.deterministic)
    return Scheduler(
        model, table, max_running=running, prefill_chunk=options.prefill_chunk, weight_version=options.weight_version
    )


def _cache_budget(options: EngineOptions) -> int:
    """Bytes of the KV cache."""
    return int(options.kv_cache_gb * 1e9) if options.kv_cache_gb else _free_memory(options.torch_device())


def _free_memory(device: torch.device) -> int:
    """Bytes that the cache may take: a quarter of what is free on the machine, half of it on a GPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    import psutil

    return int(psutil.virtual_memory().available) // 4


def fitting_threads(options: EngineOptions, spec: ModelSpec | HFSpec) -> int:
    """CPU threads for a model of this size: 1 for the smallest, all cores from a few tens of millions of weights.

    All cores are those that other engines of the machine leave: with 8 cores and 2 engines, 4.
    """
    if options.deterministic:
        return 1
    cores = max(1, torch.get_num_threads() // options.engines_here)
    return min(cores, max(1, round(spec.multiplied_weights / WEIGHTS_PER_THREAD)))

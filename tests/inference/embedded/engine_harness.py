"""An engine that tests step by hand, so that they decide when requests join."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from agentrl.inference.embedded.engine import Engine
from agentrl.inference.embedded.options import EngineOptions
from agentrl.inference.embedded.protocol import parse_generate, render_answer
from agentrl.inference.embedded.request import GenerationRequest, Progress

FAMILIES = {
    "qwen2": {},
    "qwen3": {},
    "llama": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "llama3_rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "linear_rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    "one_head": {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16},
}


class Harness:
    """An engine without its thread."""

    def __init__(self, model: Path, **options: Any) -> None:
        self.ended: dict[int, Progress] = {}
        self.heard: list[Progress] = []
        self.engine = Engine(
            EngineOptions(**{"model": str(model), "device": "cpu", "weight_version": "0", **options}), self._hear
        )
        self.scheduler: Any = self.engine.scheduler
        self.table = getattr(self.scheduler, "table", None)  # the hf runner has none
        self._calls = 0

    def _hear(self, heard: list[Progress]) -> None:
        self.heard += heard
        self.ended |= {id(p.request): p for p in heard if p.finish is not None}

    def submit(self, prompt: list[int], **body: Any) -> GenerationRequest:
        """Queue a request; sampling fields are given as keywords, greedy is the default."""
        outer = {
            k: body.pop(k)
            for k in ("rid", "stream", "logprob_start_len", "top_logprobs_num", "image_data")
            if k in body
        }
        params = {"temperature": 0.0, "max_new_tokens": 12, "ignore_eos": True} | body
        call = parse_generate(
            {"input_ids": prompt, "return_logprob": True, "sampling_params": params, **outer},
            self.engine,
            number=self._calls,
        )
        self._calls += 1
        self.engine.submit(call.requests)
        self.engine.drain()
        return call.requests[0]

    def do(self, future: Future[Any]) -> Any:
        """Let the engine do what was posted."""
        self.engine.drain()
        return future.result(timeout=0)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.engine.drain()
            if not self.engine.paused:
                self.engine.step()

    def run(self) -> None:
        for _ in range(10_000):
            if not self.scheduler.busy or self.engine.paused:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def result(self, request: GenerationRequest) -> dict[str, Any]:
        return render_answer(self.ended[id(request)], self.engine, return_logprob=True)

    def generate(self, prompt: list[int], **body: Any) -> dict[str, Any]:
        request = self.submit(prompt, **body)
        self.run()
        return self.result(request)

"""What every engine must do, as checks through the client that training uses.

A check gets an `EngineCase`: a client, the folder of the model that the engine serves, and another model of the same
shape that it can load. Wanted numbers come from transformers' forward pass. Checks leave the engine as they found it,
but for its weights: `weight_contracts` come last.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
from torch import Tensor

from agentrl.errors import EngineRequestError
from agentrl.inference.client import EngineClient
from agentrl.inference.protocol import UNKNOWN_VERSION
from agentrl.types import GenerationOutput, JsonDict

GREEDY: JsonDict = {"temperature": 0.0, "ignore_eos": True}
TOLERANCE = 1e-4
_WAIT_S = 120.0
SPARE = 10
"""A request this much longer than the context is refused by every engine: SGLang gets 8 more than it may use."""
_RUNNING = re.compile(r"^(?:sglang:num_running_reqs|vllm:num_requests_running)(?:\{.*\})? ([0-9.e+]+)$", re.MULTILINE)


@dataclass(slots=True)
class EngineCase:
    """An engine to check.

    Attributes:
        client: talks to it.
        model: folder of the weights that it serves.
        other: folder of other weights for the same model.
        letter: id of a token that is text, and not part of a special token.
        text: what that token decodes to.
        eos: the model's own end-of-turn id.
        context: most tokens of a request.
        version: weight version that it serves; see `look`.
        longest: tokens of an answer that is to be interrupted; None: as many as the context has room for.
    """

    client: EngineClient
    model: Path
    other: Path
    letter: int
    text: str
    eos: int
    context: int
    version: int = UNKNOWN_VERSION
    longest: int | None = None
    _nets: dict[Path, Any] = field(default_factory=dict)

    @property
    def long(self) -> int:
        """Tokens of an answer to a prompt of two that takes a while."""
        return self.longest or self.context - 2

    async def look(self) -> None:
        """Take the version that the engine serves now for the one that it should serve."""
        self.version = await self.client.weight_version()

    async def generate(self, prompt: list[int], count: int = 8, rid: str | None = None, **params: Any) -> Any:
        """Sample; the answer has one log-prob and one version per id."""
        output = await self.client.generate(prompt, {"max_new_tokens": count, **params}, rid)
        assert len(output.token_ids) == len(output.log_probs) == len(output.weight_versions)
        return output

    def logits(self, folder: Path, ids: list[int]) -> Tensor:
        """Float32 logits of a forward pass, `(len(ids), vocab)`."""
        from transformers import AutoModelForCausalLM

        if folder not in self._nets:
            self._nets[folder] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            logits: Tensor = self._nets[folder](torch.tensor([ids])).logits[0]
        return logits

    def check(
        self, prompt: list[int], output: GenerationOutput, *, temperature: float = 1.0, folder: Path | None = None
    ) -> None:
        """Log-probs are those of the scaled logits, to `TOLERANCE`."""
        logits = self.logits(folder or self.model, prompt + output.token_ids)[len(prompt) - 1 : -1]
        wanted = (logits / temperature).log_softmax(dim=-1).gather(1, torch.tensor(output.token_ids)[:, None])
        torch.testing.assert_close(torch.tensor(output.log_probs)[:, None], wanted, atol=TOLERANCE, rtol=0)

    def check_greedy(self, prompt: list[int], output: GenerationOutput, folder: Path | None = None) -> None:
        """The ids are the most likely ones, with their log-probs."""
        logits = self.logits(folder or self.model, prompt + output.token_ids)[len(prompt) - 1 : -1]
        assert logits.argmax(dim=-1).tolist() == output.token_ids
        self.check(prompt, output, folder=folder)

    async def running(self) -> float:
        """Requests that decode now, by the engine's own figures."""
        async with httpx.AsyncClient(base_url=self.client.address, trust_env=False, timeout=30) as http:
            page = await http.get("/metrics")
            if page.status_code == 200:
                return sum(map(float, _RUNNING.findall(page.text)))
            loads = (await http.get("/v1/loads")).json()["loads"]  # SGLang has the page only with --enable-metrics
        return float(sum(load["num_running_reqs"] for load in loads))

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something has happened."""
        async with asyncio.timeout(_WAIT_S):
            while not await condition():
                await asyncio.sleep(0.02)


EngineCheck = Callable[[EngineCase], Awaitable[None]]


def _prompts(count: int, seed: int = 0) -> list[list[int]]:
    rnd = random.Random(seed)
    return [[rnd.randrange(256) for _ in range(rnd.randint(1, 60))] for _ in range(count)]


async def greedy_ids_and_log_probs(case: EngineCase) -> None:
    """Alone and in company, greedy ids and their log-probs are those of a forward pass."""
    prompts = _prompts(12)
    outputs = await asyncio.gather(*(case.generate(prompt, 12, **GREEDY) for prompt in prompts))
    for prompt, output in zip(prompts, outputs, strict=True):
        case.check_greedy(prompt, output)
        assert (output.finish_reason, output.prompt_tokens) == ("length", len(prompt))
        assert output.weight_versions == [case.version] * 12


async def log_probs_of_the_temperature(case: EngineCase) -> None:
    """Log-probs of sampled ids are those of the logits divided by the temperature, in one batch with others."""
    temperatures = [0.5, 1.0, 1.7, 1.0]
    prompts = _prompts(len(temperatures), seed=1)
    calls = (case.generate(p, 12, temperature=t, ignore_eos=True) for p, t in zip(prompts, temperatures, strict=True))
    for prompt, temperature, output in zip(prompts, temperatures, await asyncio.gather(*calls), strict=True):
        case.check(prompt, output, temperature=temperature)


async def turns_continue(case: EngineCase) -> None:
    """A later turn, with what an earlier one sampled in its prompt, gives the numbers of a forward pass."""
    prompt = _prompts(1, seed=2)[0] + [7] * 150
    for _ in range(3):
        output = await case.generate(prompt, 6, **GREEDY)
        case.check_greedy(prompt, output)
        prompt = prompt + output.token_ids + [5, 6]


async def seeds_repeat(case: EngineCase) -> None:
    """A seed decides what is sampled; without one, requests differ."""
    prompt = [1, 2, 3]
    hot: JsonDict = {"temperature": 1.0, "ignore_eos": True}
    seeded = await asyncio.gather(*(case.generate(prompt, 12, sampling_seed=s, **hot) for s in (5, 5, 6, -1, -1)))
    ids = [output.token_ids for output in seeded]
    assert ids[0] == ids[1]
    assert ids[3] == ids[4]
    assert len({tuple(each) for each in ids}) == 3
    free = await asyncio.gather(*(case.generate(prompt, 12, **hot) for _ in range(4)))
    assert len({tuple(output.token_ids) for output in free}) == 4


async def samples_are_truncated(case: EngineCase) -> None:
    """`top_k`, `top_p` and `min_p` leave only the tokens that they should."""
    prompt = [9, 8, 7]
    probs = case.logits(case.model, prompt)[-1].softmax(dim=-1)
    order = probs.argsort(descending=True).tolist()
    within = (probs[order].cumsum(0) - probs[order] < 0.3).tolist()
    allowed: dict[str, tuple[Any, set[int]]] = {
        "top_k": (3, set(order[:3])),
        "top_p": (0.3, {token for token, kept in zip(order, within, strict=True) if kept}),
        "min_p": (0.5, set(torch.nonzero(probs >= 0.5 * probs.max())[:, 0].tolist())),
    }
    for name, (value, tokens) in allowed.items():
        outputs = await asyncio.gather(
            *(case.generate(prompt, 1, temperature=1.0, **dict[str, Any]({name: value})) for _ in range(12))
        )
        assert {output.token_ids[0] for output in outputs} <= tokens, name
    one = await case.generate(prompt, 6, temperature=1.0, top_k=1, ignore_eos=True)
    case_greedy = await case.generate(prompt, 6, **GREEDY)
    assert one.token_ids == case_greedy.token_ids


async def stop_ids_end_a_turn(case: EngineCase) -> None:
    """A stop id is the last id of the answer and is named; so is the model's own, unless it is to be ignored."""
    prompt = [4, 5, 6]
    ids = (await case.generate(prompt, 8, **GREEDY)).token_ids
    place = next(i for i in range(1, 8) if ids[i] not in ids[:i])
    # Without `ignore_eos`, with which SGLang ignores these ids too.
    output = await case.generate(prompt, 8, temperature=0.0, stop_token_ids=[ids[place]])
    assert (output.token_ids, output.finish_reason, output.matched) == (ids[: place + 1], "stop", ids[place])
    forced: JsonDict = {"temperature": 1.0, "logit_bias": {str(case.eos): 100.0}}
    output = await case.generate(prompt, 8, **forced)
    assert (output.token_ids, output.finish_reason, output.matched) == ([case.eos], "stop", case.eos)
    output = await case.generate(prompt, 3, **forced, ignore_eos=True)
    assert (output.token_ids, output.finish_reason) == ([case.eos] * 3, "length")


async def stop_strings_end_a_turn(case: EngineCase) -> None:
    """The ids run through the whole stop string, also where it spans several."""
    letters: JsonDict = {"temperature": 1.0, "logit_bias": {str(case.letter): 100.0}}
    output = await case.generate([4, 5, 6], 8, **letters, stop=[case.text * 3])
    assert (output.token_ids, output.finish_reason, output.matched) == ([case.letter] * 3, "stop", case.text * 3)


async def penalties_and_least_length(case: EngineCase) -> None:
    """`min_new_tokens` keeps stop ids away; a frequency penalty makes tokens rarer."""
    bias: JsonDict = {"temperature": 0.0, "logit_bias": {str(case.eos): 100.0}}
    output = await case.generate([4, 5, 6], 8, **bias, min_new_tokens=4)
    assert output.token_ids[-1] == case.eos
    assert len(output.token_ids) == 5
    strong: JsonDict = {**GREEDY, "logit_bias": {str(case.letter): 3.0}}
    plain = (await case.generate([4, 5, 6], 16, **strong)).token_ids
    fined = (await case.generate([4, 5, 6], 16, **strong, frequency_penalty=2.0, presence_penalty=2.0)).token_ids
    assert len(set(fined)) >= len(set(plain))


async def bad_requests_are_refused(case: EngineCase) -> None:
    """Each gets an `EngineRequestError` at once, and the engine lives on."""
    bad: list[tuple[list[int], JsonDict]] = [
        ([], {}),
        ([1, case.client.vocab_size], {}),
        ([1], {"stop_token_ids": [case.client.vocab_size]}),
        ([1], {"temperature": -1.0}),
        ([1], {"top_p": 2.0}),
        ([1], {"temprature": 1.0}),
        ([1] * (case.context + SPARE), {}),
    ]
    for prompt, params in bad:
        try:
            await case.generate(prompt, 2, **params)
        except EngineRequestError:
            continue
        raise AssertionError(f"{prompt[:3]} with {params} is not refused")
    assert await case.client.health()
    case.check_greedy([1], await case.generate([1], 2, **GREEDY))


async def aborted_by_id(case: EngineCase) -> None:
    """An abort ends one request, which keeps what it has sampled; an unknown id does nothing."""
    await case.client.abort("no such request")
    for _ in range(5):  # a tiny model may have ended before the abort comes
        task = asyncio.create_task(case.generate([1, 2], case.long, rid="mine", temperature=1.0, ignore_eos=True))
        await case.until(lambda task=task: _runs_or_ended(case, task))  # type: ignore[misc]
        await case.client.abort("mine")
        output = await task
        if output.finish_reason == "abort":
            assert len(output.token_ids) < case.long
            return
    raise AssertionError("no request was aborted")


async def an_abort_does_not_end_a_retry(case: EngineCase) -> None:
    """The client names the second try of `mine` so that the abort of the first leaves it alone."""
    count = case.long
    task = asyncio.create_task(case.generate([1, 2], count, rid="2.mine", temperature=1.0, ignore_eos=True))
    await case.until(lambda: _runs_or_ended(case, task))
    await case.client.abort("mine")
    output = await task
    assert (output.finish_reason, len(output.token_ids)) == ("length", count)


async def the_whole_context_is_used(case: EngineCase) -> None:
    """Prompts may fill the context but for one token, and answers the rest of it."""
    for prompt in (case.context - 1, case.context - 5, case.context - case.long):
        output = await case.generate([7] * prompt, case.context - prompt, temperature=1.0, ignore_eos=True)
        assert (len(output.token_ids), output.finish_reason) == (case.context - prompt, "length")


async def cancelled_by_its_caller(case: EngineCase) -> None:
    """A caller that gives up leaves nothing running on the engine."""
    tasks = [
        asyncio.create_task(case.generate([1, number], case.long, temperature=1.0, ignore_eos=True))
        for number in range(6)
    ]
    await case.until(lambda: _runs_or_ended(case, tasks[0]))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    async def idle() -> bool:
        # Some engines write their figures only while they work.
        await case.generate([1], 1, **GREEDY)
        return await case.running() == 0

    await case.until(idle)


async def _runs_or_ended(case: EngineCase, task: asyncio.Task[Any]) -> bool:
    return task.done() or await case.running() > 0


async def pause_holds(case: EngineCase) -> None:
    """While paused nothing ends and health is good; after `resume` everything goes on, with the same numbers."""
    await case.client.pause("in_place")
    tasks = [asyncio.create_task(case.generate(prompt, 6, **GREEDY)) for prompt in ([1, 2], [3])]
    done, _ = await asyncio.wait(tasks, timeout=0.5)
    assert not done
    assert await case.client.health()
    assert await case.client.weight_version() == case.version
    await case.client.resume()
    for prompt, task in zip(([1, 2], [3]), tasks, strict=True):
        case.check_greedy(prompt, await task)


async def pause_in_abort_mode(case: EngineCase) -> None:
    """Running requests end as aborted; after `resume` new ones run."""
    for _ in range(5):
        task = asyncio.create_task(case.generate([1, 2], case.long, temperature=1.0, ignore_eos=True))
        await case.until(lambda task=task: _runs_or_ended(case, task))  # type: ignore[misc]
        await case.client.pause("abort")
        await case.client.resume()
        if (await task).finish_reason == "abort":
            break
    else:
        raise AssertionError("no request was aborted")
    case.check_greedy([1], await case.generate([1], 2, **GREEDY))


async def new_weights_are_used(case: EngineCase) -> None:
    """After an update ids, log-probs and versions are the new weights', also behind a prefix that was cached."""
    prompt = [11] * 200
    case.check_greedy(prompt, await case.generate(prompt, 4, **GREEDY))
    for folder, version in ((case.other, case.version + 1), (case.model, case.version + 2)):
        await case.client.update_weights_from_disk(str(folder), version)
        assert await case.client.weight_version() == version
        output = await case.generate(prompt, 4, **GREEDY)
        case.check_greedy(prompt, output, folder)
        assert output.weight_versions == [version] * 4
    case.version += 2


async def weights_change_under_a_request(case: EngineCase) -> None:
    """A request that runs meanwhile goes on; each of its tokens has the version that sampled it, and none goes back."""
    count = case.long
    task = asyncio.create_task(case.generate([1, 2], count, temperature=1.0, ignore_eos=True))
    await case.until(lambda: _runs_or_ended(case, task))
    await case.client.pause("in_place")  # the client retracts what runs before it sends weights
    await case.client.update_weights_from_disk(str(case.model), case.version + 1)
    await case.client.resume()
    output = await task
    assert len(output.token_ids) == count
    assert output.weight_versions == sorted(output.weight_versions)
    assert set(output.weight_versions) <= {case.version, case.version + 1}
    case.version += 1


async def bad_weights_change_nothing(case: EngineCase) -> None:
    """A folder without weights is refused; the engine goes on with the old ones."""
    try:
        await case.client.update_weights_from_disk(str(case.model / "nothing"), case.version + 1)
    except EngineRequestError:
        pass
    else:
        raise AssertionError("a folder without weights is not refused")
    assert await case.client.weight_version() == case.version
    case.check_greedy([1], await case.generate([1], 2, **GREEDY))


ENGINE_CONTRACTS: tuple[EngineCheck, ...] = (
    greedy_ids_and_log_probs,
    log_probs_of_the_temperature,
    turns_continue,
    seeds_repeat,
    samples_are_truncated,
    stop_ids_end_a_turn,
    stop_strings_end_a_turn,
    penalties_and_least_length,
    bad_requests_are_refused,
    aborted_by_id,
    an_abort_does_not_end_a_retry,
    the_whole_context_is_used,
    cancelled_by_its_caller,
    pause_holds,
    pause_in_abort_mode,
    bad_weights_change_nothing,
    weights_change_under_a_request,
    new_weights_are_used,
)
"""Every check, in an order in which each may follow the one before it."""

NEEDS_SEEDS: tuple[EngineCheck, ...] = (seeds_repeat,)
"""Not for SGLang: without its deterministic mode the same seed may sample something else."""

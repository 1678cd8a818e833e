"""The part that all loops share: one trajectory, its messages, its turn limits and its clock.

A loop decides what happens next; `Conversation` keeps tokens, messages and counts consistent, so no loop can misalign
them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from agentrl.errors import DataError
from agentrl.interfaces import LoopContext
from agentrl.pictures import content_of, pictures_in
from agentrl.types import (
    IS_ERROR,
    AgentLoopOutput,
    InteractionResponse,
    JsonDict,
    Message,
    ParsedTurn,
    StopReason,
    ToolCall,
    ToolResponse,
    TrajectoryFacts,
    without_error_marks,
)


class Conversation:
    """One conversation from its prompt to its stop reason.

    Args:
        context: the services of this trajectory.
        messages: the prompt.
        sampling_params: as `AgentLoopBase.run` gets them.
        tools: schemas that the chat template shows.
        index: the row's number, for error messages.
        prompt_ids: ids of the prompt, if the loop renders it itself.

    Raises:
        DataError: the rendered prompt is longer than the limit.
    """

    def __init__(
        self,
        context: LoopContext,
        messages: Sequence[Message],
        sampling_params: JsonDict,
        tools: Sequence[JsonDict] | None = None,
        *,
        index: int | None = None,
        prompt_ids: list[int] | None = None,
    ) -> None:
        if prompt_ids is None:
            prompt_ids = context.renderer.render_prompt(messages, tools)
        if len(prompt_ids) > context.limits.prompt_length:
            wanted = f"at most {context.limits.prompt_length}"
            raise DataError("dataset", index, "prompt", f"a rendered prompt of {len(prompt_ids)} tokens", wanted)
        self.messages = list(messages)
        self.stop_reason: StopReason | None = None
        self.turn_scores: list[float] = []
        self._context = context
        self._tools = tools
        self._trajectory = context.new_trajectory(prompt_ids)
        self._sampling_params = dict(sampling_params)
        self._sampled_ids: list[int] = []
        self._assistant_turns = self._user_turns = 0
        self._tool_rewards: list[float] = []
        self._score_turns: list[int] = []
        self._reward_turns: list[int] = []
        self._tool_metrics: dict[str, float] = {}
        self._num_tool_calls = self._num_tool_errors = 0
        self._tool_errors: list[int] = []
        self._generate_s = self._tools_s = 0.0
        self._stop_tool: JsonDict | None = None

    async def generate(self, stop: Sequence[str] = ()) -> str:
        """Sample one assistant turn and return its text; sets `stop_reason` if nothing may follow it.

        The turn's token budget and deadline are not decided here: `context.generate` knows the run's limits.

        Args:
            stop: strings that end this turn, besides those of the sampling parameters.
        """
        params = self._sampling_params
        if stop:
            params = {**params, "stop": [*(params.get("stop") or ()), *stop]}
        started = time.perf_counter()
        try:
            output = await self._context.generate(self._trajectory.context_ids, params)
        finally:
            self._generate_s += time.perf_counter() - started
        self._trajectory.append_completion(output)
        if output.finish_reason == "abort":
            self.stop_reason = StopReason.ABORTED
        elif not output.token_ids:
            self.stop_reason = StopReason.EMPTY
        elif output.finish_reason == "length":
            self.stop_reason = StopReason.LENGTH
        elif self._trajectory.is_ended:
            self.stop_reason = StopReason.COMPLETED
        self._sampled_ids = output.token_ids
        if not output.token_ids:
            return ""
        self._assistant_turns += 1
        text = self._context.renderer.decode(output.token_ids)
        self.messages.append({"role": "assistant", "content": text})
        return text

    @property
    def out_of_turns(self) -> bool:
        """True if neither another user turn nor another assistant turn may follow."""
        limits = self._context.limits
        users, assistants = limits.max_user_turns, limits.max_assistant_turns
        return (users is not None and self._user_turns >= users) or (
            assistants is not None and self._assistant_turns >= assistants
        )

    async def call_tools(self, turn: ParsedTurn) -> list[Message]:
        """Run a turn's calls and answer each of its mistakes; empty, with `stop_reason`, if the conversation ends.

        Each answer has `is_error`, which `observe` and `observe_text` take out again: no template sees it.
        """
        limits = self._context.limits
        most, over = limits.max_tool_calls, self.out_of_turns
        left = len(turn.tool_calls) if most is None else most - self._num_tool_calls
        answers_by_tool = any(call.name in limits.stop_tools for call in turn.tool_calls)
        if (over and not answers_by_tool) or (turn.tool_calls and left <= 0):
            self.stop_reason = StopReason.MAX_TURNS if over else StopReason.MAX_TOOL_CALLS
            return []
        started = time.perf_counter()
        try:
            responses = await self._context.tools.execute(
                turn.tool_calls[:left], messages=self.messages, turn=self._assistant_turns
            )
        finally:
            self._tools_s += time.perf_counter() - started
        self._num_tool_calls += min(len(responses), limits.max_parallel_calls or len(responses))
        spent = f"Not run: this conversation may make at most {most} tool calls, and all of them are used."
        responses += [ToolResponse(text=spent, is_error=True) for _ in turn.tool_calls[left:]]
        self._count(responses, len(turn.errors))
        if self._ran_stop_tool(turn.tool_calls, responses):
            return []
        if over:
            self.stop_reason = StopReason.MAX_TURNS
            return []
        answers = [_tool_message(call, response) for call, response in zip(turn.tool_calls, responses, strict=True)]
        return answers + [{"role": "tool", "name": "error", "content": error, IS_ERROR: True} for error in turn.errors]

    async def ask_interaction(self) -> InteractionResponse | None:
        """Let the row's interaction answer and score the last turn; None if the row has no interaction."""
        interaction = self._context.interaction
        if interaction is None:
            return None
        response = await interaction.generate_response([dict(message) for message in self.messages])
        if response.score is not None:
            self.turn_scores.append(float(response.score))
            self._score_turns.append(self._assistant_turns - 1)
        return response

    def observe(self, messages: Sequence[Message]) -> None:
        """Append the messages that the model reads next; sets `stop_reason` if they do not fit."""
        shown = without_error_marks(messages)
        self._append(self._context.renderer.delta(shown, sampled_ids=self._sampled_ids, tools=self._tools), messages)

    def observe_text(self, text: str, message: Message) -> None:
        """Append text within the model's own turn, like `observe`; `message` is its entry in the log."""
        self._append(self._context.renderer.encode_text(text), [message])

    def count_mistakes(self, number: int) -> None:
        """Count calls that could not be read and that the loop answers itself."""
        self._num_tool_errors += number

    @property
    def ended_its_turn(self) -> bool:
        """True if the last sampled token ends a turn of the chat template: text can then only follow as a message."""
        return self._sampled_ids[-1:] != [] and self._sampled_ids[-1] in self._context.renderer.stop_token_ids

    async def finish(self, **extra: object) -> AgentLoopOutput:
        """The finished trajectory. `extra` is added to its `extra_fields`."""
        context, trajectory = self._context, self._trajectory
        facts = TrajectoryFacts(
            messages=self.messages,
            turn_scores=self.turn_scores,
            turn_score_turns=self._score_turns,
            tool_rewards=self._tool_rewards,
            tool_reward_turns=self._reward_turns,
            num_tool_calls=self._num_tool_calls,
            tool_errors=self._tool_errors,
            tool_scores=await context.tools.calc_rewards(),
            interaction_score=None if context.interaction is None else await context.interaction.calculate_score(),
            stop_tool=self._stop_tool,
            other=dict(extra),
        )
        return AgentLoopOutput(
            prompt_ids=trajectory.prompt_ids,
            response_ids=trajectory.response_ids,
            response_mask=trajectory.response_mask,
            response_logprobs=trajectory.rollout_log_probs,
            weight_versions=trajectory.weight_versions,
            num_turns=_count_turns(self.messages),
            stop_reason=self.stop_reason or StopReason.COMPLETED,
            metrics={
                "generate_sequences": self._generate_s,
                "tool_calls": self._tools_s,
                "num_tool_calls": self._num_tool_calls,
                "num_tool_errors": self._num_tool_errors,
                **self._tool_metrics,
            },
            extra_fields=facts.as_fields(),
        )

    def _append(self, ids: list[int], messages: Sequence[Message]) -> None:
        if not self._trajectory.append_observation(ids, pictures_in(messages)):
            self.stop_reason = StopReason.LENGTH
            return
        self._user_turns += 1
        before = len(self.messages)
        self._tool_errors += [before + place for place, message in enumerate(messages) if message.get(IS_ERROR)]
        self.messages.extend(without_error_marks(messages))

    def _ran_stop_tool(self, calls: Sequence[ToolCall], responses: Sequence[ToolResponse]) -> bool:
        """Whether a tool ran that ends the trajectory; what it was asked and said goes to the reward function."""
        for call, response in zip(calls, responses, strict=True):
            if call.name in self._context.limits.stop_tools and not response.is_error:
                self.stop_reason = StopReason.STOP_TOOL
                self._stop_tool = {"name": call.name, "arguments": call.arguments, "response": response.text}
                return True
        return False

    def _count(self, responses: Sequence[ToolResponse], malformed: int) -> None:
        self._num_tool_errors += malformed + sum(response.is_error for response in responses)
        for response in responses:
            if response.reward is not None:
                self._tool_rewards.append(float(response.reward))
                self._reward_turns.append(self._assistant_turns - 1)
            for name, value in response.metrics.items():
                key = f"tool/{name}"
                self._tool_metrics[key] = self._tool_metrics.get(key, 0.0) + float(value)


def _tool_message(call: ToolCall, response: ToolResponse) -> Message:
    return {
        "role": "tool",
        "name": call.name,
        "tool_call_id": call.id,
        "content": content_of(response.text, response.image),
        IS_ERROR: response.is_error,
    }


def _count_turns(messages: Sequence[Message]) -> int:
    """User and assistant messages; the tool messages of one round count as one user message."""
    turns, before = 0, ""
    for message in messages:
        role = str(message["role"])
        turns += role in ("user", "assistant") or (role == "tool" and before != "tool")
        before = role
    return turns

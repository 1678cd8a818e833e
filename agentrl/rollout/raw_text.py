"""The agent loop of `agentrl generate` for prompts that are texts: the model continues them without a template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from agentrl.chat.renderer import ChatRenderer
from agentrl.config.job_run import RAW_TEXT_LOOP
from agentrl.interfaces import AgentLoopBase, Renderer
from agentrl.plugins import register
from agentrl.types import AgentLoopOutput, JsonDict, Message, Sample, StopReason


@register(RAW_TEXT_LOOP)
class RawTextLoop(AgentLoopBase):
    """Samples one continuation of the prompt's text."""

    uses_tools: ClassVar[bool] = False
    uses_interaction: ClassVar[bool] = False

    @classmethod
    def render_prompt(
        cls, renderer: Renderer, messages: Sequence[Message], tools: Sequence[JsonDict], **options: Any
    ) -> list[int]:
        """The tokenizer's own ids of the text: special tokens in it count, and it starts as every text does."""
        tokenizer = cast(ChatRenderer, renderer).tokenizer
        text = str(messages[0]["content"])
        starts = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=not starts)
        return ids

    async def run(self, sampling_params: JsonDict, sample: Sample) -> AgentLoopOutput:
        """Sample, stop."""
        trajectory = self.context.new_trajectory(self.render_prompt(self.context.renderer, sample.prompt, []))
        output = await self.context.generate(trajectory.context_ids, sampling_params)
        trajectory.append_completion(output)
        reasons = {"abort": StopReason.ABORTED, "length": StopReason.LENGTH}
        return AgentLoopOutput(
            prompt_ids=trajectory.prompt_ids,
            response_ids=trajectory.response_ids,
            response_mask=trajectory.response_mask,
            response_logprobs=trajectory.rollout_log_probs,
            weight_versions=trajectory.weight_versions,
            num_turns=2,
            stop_reason=reasons.get(output.finish_reason, StopReason.COMPLETED),
        )

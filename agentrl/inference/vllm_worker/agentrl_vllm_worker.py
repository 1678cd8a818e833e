"""Loaded by the workers of a vLLM server on a CPU (`--worker-extension-cls`), in vLLM's Python: imports no agentrl.

On a CPU vLLM 0.32 packs the weight of the head when it loads a model. When weights are loaded again, a head that is
tied to the embedding is not packed again: ids would be sampled by the old head and the new layers. Here the head
multiplies by the weight as it is.
"""

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod


def _use_the_present_weight(method: object, layer: torch.nn.Module) -> None:
    vars(layer)["cpu_linear"] = torch.nn.functional.linear  # the function that vLLM calls with the layer's weight


UnquantizedEmbeddingMethod.process_weights_after_loading = _use_the_present_weight


class PresentHead:
    """Adds no calls: vLLM imports this module to find it."""

"""The folder that vLLM's Python gets on its path: `agentrl_vllm_worker` runs there, without agentrl."""

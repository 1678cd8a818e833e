"""The jobs around training: `agentrl generate` writes responses, `agentrl eval` scores and compares them."""

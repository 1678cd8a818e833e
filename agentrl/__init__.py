"""agentrl: reinforcement learning for language-model agents, with exact tokens."""

__version__ = "0.1.0"

"""Run recipes, tool, interaction and agent-loop YAML, chat templates: the data that comes with agentrl."""

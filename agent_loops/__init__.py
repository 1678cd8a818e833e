"""Built-in agent loops. Each is found by its entry-point name: `single_turn_agent`, `tool_agent`, `react_agent`."""

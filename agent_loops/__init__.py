"""Built-in agent loops, found by entry-point names.

These are single_turn_agent, tool_agent, react_agent, search_r1_agent, langgraph_agent and math_expression.
"""

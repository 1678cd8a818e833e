"""Built-in agent loops, found by entry-point names: single_turn_, tool_, react_, search_r1_ and langgraph_agent."""

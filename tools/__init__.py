"""Built-in tools, found by their entry-point names: `calculator`, `calc_gsm8k_reward`, `search`, `python`, `mcp`."""

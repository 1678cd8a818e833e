"""Built-in tools. Each is found by its entry-point name: `calculator`, `calc_gsm8k_reward`, `search`."""

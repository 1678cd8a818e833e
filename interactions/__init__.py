"""Built-in interactions, found by their entry-point names: `gsm8k`, `code_feedback`, `user_simulator`."""

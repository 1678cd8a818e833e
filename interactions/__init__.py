"""Built-in interactions. Each is found by its entry-point name: `gsm8k`."""

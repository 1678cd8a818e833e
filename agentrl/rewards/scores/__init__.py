"""Score functions: what the assistant wrote and the ground truth in, a number (or a dict with `score`) out."""

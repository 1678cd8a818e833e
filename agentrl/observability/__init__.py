"""What a run reports to its user: trackers (console, jsonl, tensorboard) and the token-level rollout log."""

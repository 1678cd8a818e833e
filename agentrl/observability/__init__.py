"""What a run tells its user: trackers (console, jsonl, tensorboard) and the token-level rollout log."""

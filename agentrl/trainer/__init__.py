"""Training: `run.run_training` sets a run up, `ppo.RayPPOTrainer.fit` is its loop."""

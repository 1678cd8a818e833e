"""The workers that run trajectories: `scheduling` hands out jobs to `local` or `ray_pool`."""

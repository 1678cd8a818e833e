"""What runs trajectories: `scheduling` hands jobs out, `local` and `ray_pool` are the workers behind it."""

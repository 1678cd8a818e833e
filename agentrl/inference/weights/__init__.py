"""Weights on their way into engines: what buckets hold, and the group and the memory through which they travel."""

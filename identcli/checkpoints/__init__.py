"""Real checkpoints: count, audit and rebalance, one tensor at a time."""

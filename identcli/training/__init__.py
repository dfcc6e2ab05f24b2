"""Optimizers by name, the learning-rate schedule, rebalancing, and the loop."""

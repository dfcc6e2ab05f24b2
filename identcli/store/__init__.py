"""The run folder: config, status, metrics, events, checkpoints; each reader beside its writer."""

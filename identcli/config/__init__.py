"""The schema of a run's config, and the only files that know Hydra."""

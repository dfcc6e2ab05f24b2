"""One run and many runs, from a validated config to a run folder."""

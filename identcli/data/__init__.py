"""Corpora, their vocabulary, and batches that are a function of (seed, step)."""

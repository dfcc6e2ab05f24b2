"""Figures from what is stored, and from nothing else."""

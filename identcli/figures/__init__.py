"""Figures from what is stored, and from nothing else."""

from identcli.figures.catalogue import FIGURES, Drawn, draw

__all__ = ["FIGURES", "Drawn", "draw"]

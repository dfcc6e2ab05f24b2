"""Carrying gradients and optimizer moments along a move (theory 14).

Gradients are contragredient to weights: with (A, B) -> (S A, S⁻ᵀ B) a gradient goes (g_A, g_B) -> (S⁻ᵀ g_A, S g_B).
"""

from identcli.symmetry.act import Move, act
from identcli.symmetry.pair import Pair


def transport(step: Move, gradient: Pair) -> Pair:
    """Gradients, or first moments (averages of gradients), at the moved point. Exact."""
    return act(Move(step.S_inverse_T, step.S), gradient)


def transport_squares(step: Move, squares: Pair) -> Pair:
    """Second moments (averages of squared gradients) through the elementwise square of the same map.

    Approximate: exact only for a diagonal S or for gradient rows that are uncorrelated, since Adam keeps no products
    of different rows. Never negative, and never a zero under a kept first moment: that would make the next update
    explode.
    """
    return act(Move(step.S_inverse_T.square(), step.S.square()), squares)

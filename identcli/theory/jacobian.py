"""Functional dimension of an attention layer: the rank of the Jacobian from parameters to outputs on many inputs."""

import torch
from torch import Tensor

from identcli.architecture.pairs import Attention
from identcli.models.attention import PLAIN, Variant, attention
from identcli.symmetry.rank import Rank, numerical_rank
from identcli.theory.trial import Roles, Trial


def layer_jacobian(
    trial: Trial, facts: Attention, roles: Roles, variant: Variant = PLAIN, positions: int = 4
) -> Tensor:
    """Derivatives (n, p) of n numbers by all p parameters, in the order of `roles`.

    Each number is a random linear form of the layer's output on an input of its own, so that one backward pass over a
    batch of copies of the parameters gives all rows. n = 2p: half as many give the same rank, so sampling hides none.
    """
    n = 2 * sum(role.numel() for role in roles.values())
    copies = {name: role.expand(n, *role.shape).clone().requires_grad_() for name, role in roles.items()}
    y = attention(facts, copies, trial.normal(n, positions, facts.embedding), variant)
    (y * trial.normal(*y.shape)).sum().backward()
    return torch.cat([_gradient(copy).flatten(1) for copy in copies.values()], dim=1)


def _gradient(copy: Tensor) -> Tensor:
    return torch.zeros_like(copy) if copy.grad is None else copy.grad


def layer_rank(trial: Trial, facts: Attention, roles: Roles, variant: Variant = PLAIN, positions: int = 4) -> Rank:
    """Numerical rank of `layer_jacobian`; its nullity is the number of unidentified parameters."""
    return numerical_rank(layer_jacobian(trial, facts, roles, variant, positions))


def nullity(trial: Trial, facts: Attention, variant: Variant = PLAIN, positions: int = 4) -> int:
    """Unidentified parameters of a random layer with these facts; −1 when the singular values show no gap."""
    rank = layer_rank(trial, facts, trial.roles(facts), variant, positions)
    return rank.nullity if rank.decided else -1

"""Attention written out head by head and position by position: the slow twin that says what a layer computes.

It shares nothing with the package but the facts of the architecture and the names of the roles.
"""

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from cases import normal, random_roles
from identcli.architecture.pairs import Attention

LENGTH = 4  # positions: 0 turns nothing, and three more turn by different angles


def rotated(vector: Tensor, position: int, rotary: int, style: str) -> Tensor:
    """Rotary positions as published models apply them to a query or key (D), on its first `rotary` entries.

    half: x cos + [−x₂, x₁] sin with x₁, x₂ the two halves (GPT-NeoX, Llama). interleaved: the same with
    neighbours (GPT-J). Angles position · 100^(−2j/rotary); the small base keeps the slowest one visible.
    """
    half = rotary // 2
    angles = position * 100.0 ** (-torch.arange(half, dtype=torch.float64) / max(half, 1))
    turned, rest = vector[:rotary], vector[rotary:]
    if style == "half":
        cos, sin = torch.cat([angles.cos()] * 2), torch.cat([angles.sin()] * 2)
        partner = torch.cat([-turned[half:], turned[:half]])
    else:
        cos, sin = angles.cos().repeat_interleave(2), angles.sin().repeat_interleave(2)
        partner = torch.stack([-turned[1::2], turned[0::2]], dim=1).flatten()
    return torch.cat([turned * cos + partner * sin, rest])


@cache
def rotation(size: int, position: int, rotary: int, style: str) -> Tensor:
    """The matrix (D, D) of `rotated`."""
    columns = torch.eye(size, dtype=torch.float64)
    return torch.stack([rotated(column, position, rotary, style) for column in columns], dim=1)


def attention_layer(facts: Attention, roles: Mapping[str, Tensor], layer: int, xs: Tensor) -> Tensor:
    """Σ_h W_Oᵀ Σ_s softmax_s(R_t q_t · R_s k_s / √D) (W_V x_s + b_V) of causal attention; xs and result (T, E)."""

    def affine(letter: str, head: int) -> Tensor:
        rows = xs @ roles[f"W_{letter}"][layer, head].T
        return rows + roles[f"b_{letter}"][layer, head] if f"b_{letter}" in roles else rows

    turns = [rotation(facts.qk_size, t, facts.rotary, facts.rotary_style) for t in range(len(xs))]
    outputs = [torch.zeros_like(x) for x in xs]
    for head in range(facts.heads):
        shared = head // (facts.heads // facts.kv_groups)
        queries = [R @ q for R, q in zip(turns, affine("Q", head), strict=True)]
        keys = torch.stack([R @ k for R, k in zip(turns, affine("K", shared), strict=True)])
        values = affine("V", shared)
        for t, query in enumerate(queries):
            scores = keys[: t + 1] @ query / facts.qk_size**0.5
            odds = (scores - scores.max()).exp()
            mixed = odds @ values[: t + 1] / odds.sum()
            outputs[t] = outputs[t] + mixed @ roles["W_O"][layer, head]
    return torch.stack(outputs)


def model(facts: Attention, roles: Mapping[str, Tensor], seed: int = 77) -> Tensor:
    """Outputs (T, E) of all layers on one random sequence, each layer adding to its input."""
    xs = normal(LENGTH, facts.embedding, seed=seed)
    for layer in range(facts.layers):
        xs = xs + attention_layer(facts, roles, layer, xs)
    return xs


def relative_change(after: Tensor, before: Tensor) -> float:
    """Largest change of an output over the largest output."""
    return float((after - before).abs().max() / before.abs().max())


def loss_gradient(facts: Attention, roles: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Autograd's gradient, role by role, of ½ ‖outputs − random targets‖²."""
    leaves = {role: value.detach().clone().requires_grad_() for role, value in roles.items()}
    targets = normal(LENGTH, facts.embedding, seed=78)
    loss = (model(facts, leaves) - targets).square().sum() / 2
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@cache
def first_gradient(facts: Attention) -> dict[str, Tensor]:
    """`loss_gradient` at `random_roles(facts)`; every test starts there."""
    return loss_gradient(facts, random_roles(facts))


@cache
def first_outputs(facts: Attention) -> Tensor:
    """`model` at `random_roles(facts)`."""
    return model(facts, random_roles(facts))

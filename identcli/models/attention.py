"""One attention layer of any published kind, written for reading: the slow twin that faster code is held against.

Axes: … any batch, of inputs or of weights; H query heads, G kv groups, m = H/G; D query-key and C value head size;
E embedding; T positions.

    q = W_Q x + b_Q,  k = W_K x + b_K,  v = W_V x + b_V
    P = softmax over the keys of  qᵀk / √D,   y = b_O + Σ_h P_h v_h W_O^h
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from identcli.architecture.groups import RotaryStyle
from identcli.architecture.pairs import Attention


@dataclass(frozen=True)
class Variant:
    """What a layer does beside the plain formula. Its parameters are roles too, named here.

    base: of the rotary frequencies base^(−2j/rotary), j = 0, 1, …
    softcap: scores s become cap·tanh(s/cap). sink: one more logit per head, role `sink` (H), that takes mass and gives
    no value. score_bias (H, T, T): added to the scores (ALiBi, T5). keep (…, H, T, T): a fixed dropout mask on P.
    qk_norm: q and k of each head divided by their root mean square, times the gains `g_Q`, `g_K` (D), before rotation.
    norm: the input x first passes LayerNorm or RMSNorm with gain `g_x` (E) and, where that role exists, shift `b_x`.
    """

    causal: bool = True
    base: float = 10_000.0
    softcap: float | None = None
    sink: bool = False
    score_bias: Tensor | None = None
    keep: Tensor | None = None
    qk_norm: bool = False
    norm: Literal["layer", "rms"] | None = None
    eps: float = 0.0


PLAIN = Variant()


def attention(facts: Attention, roles: Mapping[str, Tensor], x: Tensor, variant: Variant = PLAIN) -> Tensor:
    """Output (…, T, E) of one layer for inputs x (…, T, E).

    Roles, each with the same leading axes as x or none: W_Q (H, D, E), W_K (G, D, E), W_V (G, C, E), W_O (H, C, E), the
    transpose of each head's output matrix; b_Q (H, D), b_K (G, D), b_V (G, C), b_O (E), each of them optional.
    """
    if variant.norm is not None:
        x = _normed_input(roles, x, variant)
    v = _linear(roles["W_V"], roles.get("b_V"), x)
    shared = facts.heads // facts.kv_groups
    y = probabilities(facts, roles, x, variant) @ v.repeat_interleave(shared, dim=-3)
    out = torch.einsum("...htc,...hce->...te", y, roles["W_O"])
    return out if "b_O" not in roles else out + roles["b_O"].unsqueeze(-2)


def probabilities(facts: Attention, roles: Mapping[str, Tensor], x: Tensor, variant: Variant = PLAIN) -> Tensor:
    """P (…, H, T queries, T keys) for the inputs of the projections; its rows sum to 1 unless `sink` or `keep`."""
    s = scores(facts, roles, x, variant)
    T = s.shape[-1]
    if variant.causal:
        s = s.masked_fill(torch.ones(T, T, dtype=torch.bool, device=s.device).triu(1), -torch.inf)
    if variant.sink:
        sink = roles["sink"][..., None, None].expand(*s.shape[:-1], 1)
        P = torch.cat([s, sink], dim=-1).softmax(dim=-1)[..., :T]
    else:
        P = s.softmax(dim=-1)
    return P if variant.keep is None else P * variant.keep


def scores(facts: Attention, roles: Mapping[str, Tensor], x: Tensor, variant: Variant = PLAIN) -> Tensor:
    """The logits (…, H, T queries, T keys) before mask and sink."""
    q = _linear(roles["W_Q"], roles.get("b_Q"), x)
    k = _linear(roles["W_K"], roles.get("b_K"), x)
    if variant.qk_norm:
        q, k = _rms_norm(q, variant.eps) * _gain(roles["g_Q"]), _rms_norm(k, variant.eps) * _gain(roles["g_K"])
    if facts.rotary:
        turns = rotations(x.shape[-2], facts.qk_size, facts.rotary, facts.rotary_style, variant.base, x.dtype)
        q = torch.einsum("tij,...htj->...hti", turns, q)
        k = torch.einsum("tij,...htj->...hti", turns, k)
    s = q @ k.repeat_interleave(facts.heads // facts.kv_groups, dim=-3).mT / facts.qk_size**0.5
    if variant.softcap is not None:
        s = variant.softcap * torch.tanh(s / variant.softcap)
    return s if variant.score_bias is None else s + variant.score_bias


def rotations(
    positions: int, size: int, rotary: int, style: RotaryStyle, base: float, dtype: torch.dtype = torch.float64
) -> Tensor:
    """R_t (positions, D, D): pair j of the first `rotary` rows turned by t · base^(−2j/rotary), the other rows kept."""
    turns = torch.eye(size, dtype=dtype).repeat(positions, 1, 1)
    half = rotary // 2
    j = torch.arange(half)
    first, second = (j, j + half) if style == "half" else (2 * j, 2 * j + 1)
    angle = torch.arange(positions, dtype=dtype)[:, None] * base ** (-2 * j.to(dtype) / max(rotary, 1))
    turns[:, first, first] = turns[:, second, second] = angle.cos()
    turns[:, second, first], turns[:, first, second] = angle.sin(), -angle.sin()
    return turns


def _linear(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """(…, heads, rows, E) and x (…, T, E) to (…, heads, T, rows)."""
    projected = torch.einsum("...hde,...te->...htd", weight, x)
    return projected if bias is None else projected + bias.unsqueeze(-2)


def _rms_norm(z: Tensor, eps: float) -> Tensor:
    return z / (z.square().mean(-1, keepdim=True) + eps).sqrt()


def _gain(gain: Tensor) -> Tensor:
    """(…, D) as a factor of (…, heads, T, D)."""
    return gain[..., None, None, :]


def _normed_input(roles: Mapping[str, Tensor], x: Tensor, variant: Variant) -> Tensor:
    centred = x - x.mean(-1, keepdim=True) if variant.norm == "layer" else x
    normed = _rms_norm(centred, variant.eps) * roles["g_x"].unsqueeze(-2)
    return normed if "b_x" not in roles else normed + roles["b_x"].unsqueeze(-2)

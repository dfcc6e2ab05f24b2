"""Causal attention at the speed of a CPU, where torch's fused kernel is not the fastest: with dropout, which it can't
take, and for sequences of a hundred positions, for which its blocks are too fine.

With dropout attention goes through one sequence and one block of queries at a time (each thread its own), so that
scores stay in the cache and keys of the future are never computed; torch would move matrices of (B, H, T, T) through
memory. Without it all short sequences go at once, and the probabilities are kept for the way back. The functions are
torch's.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from identcli.models.dropout import draw, mask, pays, seeds, threshold
from identcli.symmetry.threads import side_by_side

QUERIES = 128  # rows of scores at a time: with the keys of one sequence some hundred KB a head
SHORT = 128  # positions; a longer sequence is the fused kernel's


def causal_attention(qkv: Tensor, heads: int, p: float = 0.0) -> Tensor:
    """softmax(q kᵀ / √D, over the positions up to one's own) · v for each head, with dropout `p` on the softmax.

    qkv (B, T, 3E): all heads' queries, then keys, then values, E = heads · D. Returns (B, T, E), heads side by side.
    """
    if pays(qkv):
        if p > 0:
            return _Dropping.apply(qkv, heads, p)
        if qkv.shape[1] <= SHORT and qkv.requires_grad and torch.is_grad_enabled():
            return _Short.apply(qkv, heads)
    q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=2))
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)  # (B, H, T, D)
    return y.transpose(1, 2).flatten(2)


class _Short(torch.autograd.Function):
    """S = q kᵀ / √D, P = softmax S, y = P v for all sequences and heads at once. From dy:

    dv = Pᵀ dy,  dP = dy vᵀ,  dS = P∘(dP − Σ_keys dP∘P),  dq = dS k / √D,  dk = dSᵀ q / √D.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int) -> Tensor:
        batch, length, width = qkv.shape
        size = width // (3 * heads)
        parts = _sequences(qkv, heads).transpose(0, 1).reshape(3, batch * heads, length, size)
        q, k, v = parts
        P = torch.baddbmm(_future(length, qkv.dtype), q, k.mT, alpha=1 / math.sqrt(size))
        torch.softmax(P, -1, out=P)
        ctx.save_for_backward(parts, P)
        return torch.bmm(P, v).view(batch, heads, length, size).transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        parts, P = ctx.saved_tensors
        q, k, v = parts
        batch, length, width = gradient.shape
        heads, size = len(q) // batch, v.shape[-1]
        dy = gradient.unflatten(2, (heads, size)).transpose(1, 2).reshape(v.shape)
        result = torch.empty_like(parts)
        dq, dk, dv = result
        torch.bmm(P.mT, dy, out=dv)
        dS = torch.ops.aten._softmax_backward_data(torch.bmm(dy, v.mT), P, -1, P.dtype).div_(math.sqrt(size))
        torch.bmm(dS, k, out=dq)
        torch.bmm(dS.mT, q, out=dk)
        apart = result.view(3, batch, heads, length, size)
        return apart.permute(1, 3, 0, 2, 4).reshape(batch, length, 3 * width), None


class _Dropping(torch.autograd.Function):
    """S = q kᵀ with q over √D, P = softmax S, M the mask of 0 and 1, c = 1 / (share kept), y = c (P∘M) v. From dy:

    dv = (P∘M)ᵀ c·dy,  dP = M∘(c·dy vᵀ),  dS = P∘(dP − Σ_keys dP∘P),  dq = dS k,  dk = dSᵀ q.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, p: float) -> Tensor:
        batch, length, width = qkv.shape
        y = qkv.new_empty(batch, length, heads, width // (3 * heads))
        least, scale = threshold(p)
        of, future = _sequences(qkv, heads), _future(QUERIES, qkv.dtype)
        scores = sum(heads * (rows.stop - rows.start) * rows.stop for rows in _blocks(length))
        probabilities = qkv.new_empty(batch, scores)
        started_by = seeds(batch)

        def one(b: int) -> Tensor:
            bits = draw(scores, started_by[b])
            q, k, v = of[b]
            q = q / math.sqrt(q.shape[-1])
            for rows, P, drawn_here in _of_blocks(heads, length, probabilities[b], bits):
                _softmax(q[:, rows], k[:, : rows.stop], future, P)
                kept = mask(drawn_here, least, P).mul_(P)
                y[b, rows] = torch.bmm(kept, v[:, : rows.stop]).transpose(0, 1)
            return bits

        drawn = side_by_side(one, range(batch))
        ctx.save_for_backward(qkv, probabilities, *drawn)
        ctx.heads, ctx.p = heads, p
        return y.mul_(scale).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        qkv, probabilities, *drawn = ctx.saved_tensors
        batch, length, _ = qkv.shape
        result = torch.empty_like(qkv)
        least, scale = threshold(ctx.p)
        of, d_of = _sequences(qkv, ctx.heads), _sequences(result, ctx.heads)
        dy_of = gradient.mul(scale).unflatten(2, (ctx.heads, -1)).transpose(1, 2)

        def one(b: int) -> None:
            (q, k, v), (dq, dk, dv), dy = of[b], d_of[b], dy_of[b]
            root = math.sqrt(q.shape[-1])
            q = q / root
            k_sum, v_sum = None, None
            # From the last block, which reaches all keys, to the first.
            for rows, P, drawn_here in reversed(list(_of_blocks(ctx.heads, length, probabilities[b], drawn[b]))):
                past = slice(rows.stop)
                M = mask(drawn_here, least, P)
                dP = torch.bmm(dy[:, rows], v[:, past].mT).mul_(M)
                dS = torch.ops.aten._softmax_backward_data(dP, P, -1, P.dtype)
                dq[:, rows] = torch.bmm(dS, k[:, past]).div_(root)
                to_k, to_v = torch.bmm(dS.mT, q[:, rows]), torch.bmm(M.mul_(P).mT, dy[:, rows])
                if k_sum is None or v_sum is None:
                    k_sum, v_sum = to_k, to_v
                else:
                    k_sum[:, past] += to_k
                    v_sum[:, past] += to_v
            dk.copy_(k_sum)
            dv.copy_(v_sum)

        side_by_side(one, range(batch))
        return result, None, None


def _sequences(qkv: Tensor, heads: int) -> Tensor:
    """(B, T, 3E) as (B, 3, H, T, D): q, k and v of every sequence, without a copy."""
    return qkv.unflatten(2, (3, heads, -1)).permute(0, 2, 3, 1, 4)


def _blocks(length: int) -> list[slice]:
    """The positions, a block of queries at a time."""
    return [slice(start, min(start + QUERIES, length)) for start in range(0, length, QUERIES)]


def _of_blocks(heads: int, length: int, *flat: Tensor) -> Iterator[tuple[Any, ...]]:
    """Each block of R queries with its part (H, R, K) of each of the tensors, K the keys up to its last query."""
    start = 0
    for rows in _blocks(length):
        shape = (heads, rows.stop - rows.start, rows.stop)
        yield rows, *(one[start : start + math.prod(shape)].view(shape) for one in flat)
        start += math.prod(shape)


@lru_cache(maxsize=2)
def _future(length: int, dtype: torch.dtype) -> Tensor:
    """−∞ for the keys after the query, among so many positions; 0 for the others. Not to be written to."""
    return torch.full((length, length), -math.inf, dtype=dtype, device="cpu").triu(1)


def _softmax(q: Tensor, k: Tensor, future: Tensor, out: Tensor) -> None:
    """Causal softmax (H, R, K) of R queries over K keys, of which the last R are at the queries' own positions."""
    count = q.shape[1]
    torch.bmm(q, k.mT, out=out)
    out[:, :, -count:] += future[:count, :count]
    torch.softmax(out, -1, out=out)

"""Dropout at the speed of the machine: on a CPU torch draws its masks one by one on one core, and attention with
dropout leaves the fused kernel and moves matrices of (B, H, T, T) through memory.

Here a mask is two random bytes an entry, kept and not the floats made of them; attention goes through one sequence and
one block of queries at a time (each thread its own), so that scores stay in the cache and keys of the future are never
computed. The functions are torch's, the random numbers others.

Two bytes give the probability in steps of 2⁻¹⁶: it is `p` to 8e-6, and what is kept is scaled by the exact share.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from identcli.symmetry.threads import side_by_side

LEVELS = 1 << 16
QUERIES = 128  # rows of scores at a time: with the keys of one sequence some hundred KB a head


class Dropout(nn.Module):
    """In training each entry is 0 with probability p, else divided by 1 − p; the identity otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return _Drop.apply(x, self.p) if _pays(x) else F.dropout(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def causal_attention(qkv: Tensor, heads: int, p: float = 0.0) -> Tensor:
    """softmax(q kᵀ / √D, over the positions up to one's own) · v for each head, with dropout `p` on the softmax.

    qkv (B, T, 3E): all heads' queries, then keys, then values, E = heads · D. Returns (B, T, E), heads side by side.
    """
    if p > 0 and _pays(qkv):
        return _Attention.apply(qkv, heads, p)
    q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=2))
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)  # (B, H, T, D)
    return y.transpose(1, 2).flatten(2)


def _pays(x: Tensor) -> bool:
    """Accelerators and compilers have kernels of their own, and low precision wants torch's care with sums."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling()


def _draw(shape: torch.Size | tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """Uniform int16, 64 bits at a time; from torch's global generator, if no other is given."""
    count = math.prod(shape)
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return bits.view(torch.int16)[:count].view(shape)


def _threshold(p: float) -> tuple[int, float]:
    """The least int16 that is kept, and 1 / (share kept)."""
    dropped = min(round(p * LEVELS), LEVELS - 1)
    return dropped - LEVELS // 2, LEVELS / (LEVELS - dropped)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.p = p
        drawn = _draw(x.shape)
        ctx.save_for_backward(drawn)
        return _kept(drawn, p, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (drawn,) = ctx.saved_tensors
        return _kept(drawn, ctx.p, gradient), None


def _kept(drawn: Tensor, p: float, x: Tensor) -> Tensor:
    least, scale = _threshold(p)
    return _mask(drawn, least, x).mul_(scale).mul_(x)


def _mask(drawn: Tensor, least: int, like: Tensor) -> Tensor:
    """1 where it is kept, else 0: straight as floats, since torch multiplies a float by a bool three times slower."""
    return torch.ge(drawn, least, out=torch.empty_like(like))


class _Attention(torch.autograd.Function):
    """S = q kᵀ with q over √D, P = softmax S, M the mask of 0 and 1, c = 1 / (share kept), y = c (P∘M) v. From dy:

    dv = (P∘M)ᵀ c·dy,  dP = M∘(c·dy vᵀ),  dS = P∘(dP − Σ_keys dP∘P),  dq = dS k,  dk = dSᵀ q.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, p: float) -> Tensor:
        batch, length, width = qkv.shape
        y = qkv.new_empty(batch, length, heads, width // (3 * heads))
        least, scale = _threshold(p)
        of, future = _sequences(qkv, heads), _future(qkv)
        scores = sum(heads * (rows.stop - rows.start) * rows.stop for rows in _blocks(length))
        probabilities = qkv.new_empty(batch, scores)
        # One number for each sequence from torch's own generator: what a thread draws can't depend on its luck.
        seeds = torch.randint(1 << 62, (batch,)).tolist()

        def one(b: int) -> Tensor:
            bits = _draw((scores,), torch.Generator().manual_seed(seeds[b]))
            q, k, v = of[b]
            q = q / math.sqrt(q.shape[-1])
            for rows, P, drawn_here in _of_blocks(heads, length, probabilities[b], bits):
                _softmax(q[:, rows], k[:, : rows.stop], future, P)
                kept = _mask(drawn_here, least, P).mul_(P)
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
        least, scale = _threshold(ctx.p)
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
                M = _mask(drawn_here, least, P)
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


def _future(like: Tensor) -> Tensor:
    """−∞ for the keys after the query, among the positions of one block; 0 for the others."""
    return like.new_full((QUERIES, QUERIES), -math.inf).triu(1)


def _softmax(q: Tensor, k: Tensor, future: Tensor, out: Tensor) -> None:
    """Causal softmax (H, R, K) of R queries over K keys, of which the last R are at the queries' own positions."""
    count = q.shape[1]
    torch.bmm(q, k.mT, out=out)
    out[:, :, -count:] += future[:count, :count]
    torch.softmax(out, -1, out=out)

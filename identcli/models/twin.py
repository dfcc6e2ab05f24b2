"""A twin: any described architecture as one function of its tensors, in float64, small enough for a full
Jacobian.

It knows the architecture only from its description, and leaves out what a weight could hold or what is mere
bookkeeping: factors of 1/√D or √E, dropout, caches, dtypes.

Shapes: every tensor has its layers in front, `params["decoder.0.self.W_Q"]` is (L, H·D, E); the stream is
(batch, positions, E), heads are (batch, heads, positions, D).
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from identcli.architecture.description import (
    Architecture,
    Audio,
    Block,
    Latent,
    Mlp,
    Norm,
    Patches,
    Stack,
    Tokens,
)
from identcli.architecture.groups import RotaryStyle
from identcli.architecture.pairs import Attention
from identcli.architecture.tensors import tensors

Params = Mapping[str, Tensor]
# One tuple a stack: token ids and type ids, patches, or frames.
Inputs = list[tuple[Tensor, ...]]
# A layer's tensors by their last names: get("W_Q") is that of this layer, None when the layer has none.
Get = Callable[[str], Tensor | None]

# Far apart from each other and from 0 within a handful of positions, so that the twin's rank shows what an
# exact symmetry is: the low frequencies of real models are nearly unrotated over a short text.
ROTARY_BASE = 10.0
# Within the range of the twin's activations, as 7 and 50 are within that of the real ones: a limit that no unit
# ever reaches, like a cap far above all scores, would leave a symmetry that the model doesn't have.
CLAMP = 1.5
SOFTCAP = 4.0


def random_parameters(architecture: Architecture, seed: int) -> dict[str, Tensor]:
    """Generic weights: nothing is 0, 1 or equal by chance, as an initialisation would have it (theory 11)."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for tensor in tensors(architecture):
        x = torch.randn((tensor.copies, *tensor.shape), generator=generator, dtype=torch.float64)
        if tensor.name.endswith("gain"):
            x = (1 + 0.3 * x).abs() + 0.2
        elif tensor.name.endswith((".b", "bias")) or ".b_" in tensor.name:
            # Small enough that every ReLU is on for some inputs and off for others.
            x = 0.3 * x
        elif ".W" in tensor.name:
            # 1.5 keeps the softmax away from uniform without saturating it.
            x = 1.5 * x / tensor.shape[-1] ** 0.5
        made[tensor.name] = x
    return made


def random_inputs(architecture: Architecture, batch: int, length: int, seed: int) -> Inputs:
    """Random tokens, patches or frames for every stack."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    made: Inputs = []
    for stack in architecture.stacks:
        inputs = stack.inputs
        if isinstance(inputs, Patches):
            made.append((normal(batch, inputs.count, inputs.pixels),))
        elif isinstance(inputs, Audio):
            made.append((normal(batch, inputs.channels, 2 * inputs.positions),))
        else:
            ids = torch.randint(inputs.vocab, (batch, length), generator=generator)
            types = torch.randint(max(inputs.types, 1), (batch, length), generator=generator)
            made.append((ids, types))
    return made


def outputs(architecture: Architecture, params: Params, inputs: Inputs, eps: float, log_probs: bool) -> Tensor:
    """(batch, positions, V) logits or their log-softmax; without a head the hidden states (and what is pooled)."""
    x: Tensor | None = None
    for stack, given in zip(architecture.stacks, inputs, strict=True):
        x = _stack(architecture, stack, params, given, x, eps)
    assert x is not None
    if architecture.pooler:
        pooled = torch.tanh(x[:, :1] @ params["pooler.W"][0].T + params["pooler.b"][0])
        return torch.cat([x, pooled], dim=1)
    head = architecture.head
    if head is None:
        return x
    logits = x @ params[f"{architecture.stack.name}.tokens" if head.tied else "head.W"][0].T
    if head.bias:
        logits = logits + params["head.b"][0]
    if head.softcap:
        logits = SOFTCAP * torch.tanh(logits / SOFTCAP)
    return F.log_softmax(logits, dim=-1) if log_probs else logits


def _stack(
    architecture: Architecture,
    stack: Stack,
    params: Params,
    given: tuple[Tensor, ...],
    memory: Tensor | None,
    eps: float,
) -> Tensor:
    x = _embed(architecture, stack, params, given, eps)
    relative = _getter(params, stack.name, 0)("relative_bias")
    bias = _score_bias(stack, relative, x.shape[1])
    for index, block in enumerate(stack.blocks):
        for layer in range(block.attention.layers):
            x = _layer(block, _getter(params, f"{stack.name}.{index}", layer), x, memory, bias, eps)
    if stack.final_norm:
        x = _norm(stack.final_norm, _getter(params, f"{stack.name}.final_norm", 0), x, eps)
    return x


def _getter(params: Params, prefix: str, layer: int) -> Get:
    def get(name: str) -> Tensor | None:
        found = params.get(f"{prefix}.{name}")
        return None if found is None else found[layer]

    return get


def _below(get: Get, name: str) -> Get:
    return lambda last: get(f"{name}.{last}")


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _linear(get: Get, x: Tensor, name: str) -> Tensor:
    """x Wᵀ + b, with the bias when there is one."""
    weight, bias = _given(get(f"W_{name}")), get(f"b_{name}")
    return x @ weight.T if bias is None else x @ weight.T + bias


def _norm(norm: Norm, get: Get, x: Tensor, eps: float) -> Tensor:
    if norm.centred:
        x = x - x.mean(-1, keepdim=True)
    x = _rms(x, get("gain"), eps)
    bias = get("bias")
    return x if bias is None else x + bias


def _rms(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    x = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    return x if gain is None else x * gain


# --- inputs
# -------------------------------------------------------------------------------------------------------


def _embed(architecture: Architecture, stack: Stack, params: Params, given: tuple[Tensor, ...], eps: float) -> Tensor:
    get = _getter(params, stack.name, 0)
    inputs = stack.inputs
    if isinstance(inputs, Tokens):
        owner = architecture.stack.name if architecture.shared_table else stack.name
        x = params[f"{owner}.tokens"][0][given[0]]
        positions, types = get("positions"), get("types")
        if positions is not None:
            x = x + positions[inputs.unread : inputs.unread + x.shape[1]]
        if types is not None:
            x = x + types[given[1]]
    elif isinstance(inputs, Patches):
        x = given[0] @ _given(get("patches.W")).T + _given(get("patches.b"))
        token = _given(get("class_token")).expand(x.shape[0], 1, -1)
        x = torch.cat([token, x], dim=1) + _given(get("positions"))
    else:
        x = given[0]
        for step, stride in (("conv_1", 1), ("conv_2", 2)):
            weight, bias = _given(get(f"{step}.W")), get(f"{step}.b")
            x = F.gelu(F.conv1d(x, weight, bias, stride=stride, padding=1))
        x = x.transpose(1, 2) + _given(get("sinusoids"))
    if stack.embedding_norm:
        x = _norm(stack.embedding_norm, _getter(params, f"{stack.name}.embedding_norm", 0), x, eps)
    return x


# --- one layer
# ----------------------------------------------------------------------------------------------------


def _layer(block: Block, get: Get, x: Tensor, memory: Tensor | None, bias: Tensor, eps: float) -> Tensor:
    def norm(index: int, y: Tensor) -> Tensor:
        return _norm(block.norm, _below(get, f"norm_{index}"), y, eps)

    def attend(y: Tensor) -> Tensor:
        if block.latent:
            return _latent_attention(block, block.latent, _below(get, "self"), y, bias, eps)
        return _attention(block, block.attention, _below(get, "self"), y, y, bias, eps)

    def cross(y: Tensor) -> Tensor:
        assert block.cross is not None
        assert memory is not None
        return _attention(block, block.cross, _below(get, "cross"), y, memory, None, eps)

    def mlp(y: Tensor) -> Tensor:
        return _mlp(block.mlp, _below(get, "mlp"), y)

    if block.parallel == "one norm":
        y = norm(0, x)
        return x + attend(y) + mlp(y)
    if block.parallel == "two norms":
        return x + attend(norm(0, x)) + mlp(norm(1, x))
    for index, branch in enumerate([attend, cross, mlp] if block.cross else [attend, mlp]):
        if block.placement == "pre":
            x = x + branch(norm(index, x))
        elif block.placement == "post":
            x = norm(index, x + branch(x))
        elif block.placement == "output":
            x = x + norm(index, branch(x))
        else:
            x = x + norm(2 * index + 1, branch(norm(2 * index, x)))
    return x


def _attention(
    block: Block, a: Attention, get: Get, x: Tensor, memory: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """Queries from x, keys and values from `memory`; without a score bias (cross attention) nothing is rotated."""
    q, k, v = _linear(get, x, "Q"), _linear(get, memory, "K"), _linear(get, memory, "V")
    if block.qk_norm and block.qk_norm.over == "concat":
        q, k = _rms(q, get("q_gain"), eps), _rms(k, get("k_gain"), eps)
    q, k, v = _heads(q, a.qk_size), _heads(k, a.qk_size), _heads(v, a.v_size)
    if block.qk_norm and block.qk_norm.over == "head":
        q, k = _rms(q, get("q_gain"), eps), _rms(k, get("k_gain"), eps)
    if a.rotary and bias is not None:
        q, k = _rotate(q, a.rotary, a.rotary_style), _rotate(k, a.rotary, a.rotary_style)
    return _linear(get, _mix(block, q, k, v, bias, get("sinks")), "O")


def _latent_attention(block: Block, latent: Latent, get: Get, x: Tensor, bias: Tensor, eps: float) -> Tensor:
    """DeepSeek's: queries, keys and values from normed latents, and one rotated key for all heads."""
    a = block.attention
    c_q = _linear(get, x, "DQ") if latent.q else x
    c_kv = _linear(get, x, "DKV")
    if latent.norms:
        c_q = _rms(c_q, get("q_gain"), eps) if latent.q else c_q
        c_kv = _rms(c_kv, get("kv_gain"), eps)
    q = _heads(_linear(get, c_q, "UQ"), a.qk_size)
    k, v = _heads(_linear(get, c_kv, "UK"), latent.plain), _heads(_linear(get, c_kv, "UV"), a.v_size)
    # Rotated rows first, as everywhere here.
    turned = _rotate(_heads(_linear(get, x, "KR"), a.rotary), a.rotary, a.rotary_style)
    k = torch.cat([turned.expand(-1, a.heads, -1, -1), k], dim=-1)
    return _linear(get, _mix(block, _rotate(q, a.rotary, a.rotary_style), k, v, bias, None), "O")


def _mix(block: Block, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None) -> Tensor:
    """softmax(q kᵀ/√D + bias) v, heads side by side again; a sink takes a share of each row and gives nothing."""
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if block.softcap:
        scores = SOFTCAP * torch.tanh(scores / SOFTCAP)
    if bias is not None:
        scores = scores + bias
    if sinks is not None:
        extra = sinks[:, None, None].expand(*scores.shape[:3], 1)
        share = torch.softmax(torch.cat([scores, extra], dim=-1), dim=-1)[..., :-1]
    else:
        share = torch.softmax(scores, dim=-1)
    return (share @ v).transpose(1, 2).flatten(-2)


def _score_bias(stack: Stack, relative: Tensor | None, length: int) -> Tensor:
    """(heads or 1, n, m): −∞ on what is masked, ALiBi's slopes, or a learned bias per bucket of the distance."""
    row, column = torch.arange(length)[:, None], torch.arange(length)[None, :]
    bias = torch.zeros(1, length, length, dtype=torch.float64)
    if stack.alibi:
        heads = stack.blocks[0].attention.heads
        slopes = 2.0 ** -torch.arange(1, heads + 1, dtype=torch.float64)
        bias = slopes[:, None, None] * (column - row)
    if relative is not None:
        buckets = relative.shape[0]
        distance = row - column if stack.causal else row - column + buckets // 2
        bias = bias + relative[distance.clamp(0, buckets - 1)].permute(2, 0, 1)
    if stack.causal:
        bias = bias.masked_fill(column > row, float("-inf"))
    return bias


def _rotate(x: Tensor, rotary: int, style: RotaryStyle) -> Tensor:
    """The first `rotary` columns of every head turned by position × frequency, in pairs of the given style."""
    half = rotary // 2
    frequencies = ROTARY_BASE ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    turned, rest = x[..., :rotary], x[..., rotary:]
    if style == "half":
        a, b = turned[..., :half], turned[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)
    a, b = turned[..., 0::2], turned[..., 1::2]
    return torch.cat([torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2), rest], dim=-1)


def _heads(x: Tensor, size: int) -> Tensor:
    """(batch, positions, heads · size) → (batch, heads, positions, size)."""
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


# --- MLP
# ----------------------------------------------------------------------------------------------------------


def _mlp(mlp: Mlp, get: Get, x: Tensor) -> Tensor:
    if not mlp.experts:
        return _branch(mlp, get, x)
    logits = x @ _given(get("router.W")).T
    bias = get("router.b")
    logits = logits if bias is None else logits + bias
    # Which experts are chosen is locally constant; only their weights have a derivative.
    chosen = logits >= logits.topk(mlp.experts.active, dim=-1).values[..., -1:]
    if mlp.experts.router == "softmax":
        weights = torch.softmax(logits.masked_fill(~chosen, float("-inf")), dim=-1)
    else:
        weights = torch.sigmoid(logits) * chosen
        weights = weights / weights.sum(-1, keepdim=True)
    every = _branch(mlp, _below(get, "experts"), x.unsqueeze(-3))
    out = (weights.transpose(-1, -2).unsqueeze(-1) * every).sum(-3)
    return out + _branch(mlp, _below(get, "shared"), x) if mlp.experts.shared else out


def _branch(mlp: Mlp, get: Get, x: Tensor) -> Tensor:
    """One MLP, or all experts at once when the weights have them in front: x is then (batch, 1, positions, E)."""
    up = _wide(get, x, "up")
    if not mlp.gated:
        return _wide(get, torch.relu(up) if mlp.activation == "relu" else F.gelu(up), "down")
    gate = _wide(get, x, "gate")
    if mlp.activation == "clamped":
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
        return _wide(get, (up + 1) * gate * torch.sigmoid(1.702 * gate), "down")
    return _wide(get, (F.gelu(gate) if mlp.activation == "gelu" else F.silu(gate)) * up, "down")


def _wide(get: Get, x: Tensor, name: str) -> Tensor:
    weight, bias = _given(get(f"W_{name}")), get(f"b_{name}")
    out = x @ weight.transpose(-1, -2)
    return out if bias is None else out + (bias if bias.ndim == 1 else bias.unsqueeze(-2))

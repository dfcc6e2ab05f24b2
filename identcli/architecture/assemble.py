"""From the facts of a model type to its description."""

from collections.abc import Mapping
from typing import Any

from identcli.architecture.description import (
    Activation,
    Architecture,
    Audio,
    Block,
    Experts,
    Head,
    Latent,
    Mlp,
    Norm,
    Patches,
    QKNorm,
    Stack,
    Tokens,
)
from identcli.architecture.errors import UserError
from identcli.architecture.pairs import Attention

Facts = Mapping[str, Any]

# All that matters of an activation is whether a unit can be scaled through it.
SMOOTH = ("gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "quick_gelu", "silu", "swish", "tanh")


def assemble(name: str, kind: str, facts: Facts) -> Architecture:
    """The description of a model of the given type. Raises UserError for what contradicts itself or isn't described."""
    if facts.get("layer_qk_norm"):
        raise UserError("a LayerNorm on queries and keys: its families have not been examined")
    if "before" in facts and not facts["before"]:
        raise UserError("do_layer_norm_before = false: post-norm OPT (350m) is not described")
    if facts.get("projected") not in (None, facts["width"]):
        raise UserError(f"word_embed_proj_dim {facts['projected']} beside width {facts['width']}: not described")
    if kind in ("t5", "whisper"):
        return _encoder_decoder(name, kind, facts)
    norm = _norm(facts)
    stack = Stack(
        "encoder" if not facts.get("causal", True) else "decoder",
        _inputs(facts),
        _blocks(facts, norm),
        causal=facts.get("causal", True),
        embedding_norm=norm if facts.get("embedding_norm") else None,
        final_norm=None if facts.get("placement") == "post" else norm,
        alibi=bool(facts.get("alibi")),
    )
    head = None
    if facts.get("head", True):
        head = Head(facts["tied"], facts.get("head_bias", False) and not facts["tied"], bool(facts.get("head_softcap")))
    return Architecture(name, (stack,), head, facts.get("pooler", False))


def _norm(facts: Facts) -> Norm:
    return Norm(facts["norm"], bias=facts.get("norm_bias", False))


def _inputs(facts: Facts) -> Tokens | Patches:
    if "image" in facts:
        image, patch = facts["image"], facts["patch"]
        if not patch or image % patch:
            raise UserError(f"image size {image} is not a multiple of patch size {patch}")
        return Patches(patch * patch * facts["channels"], (image // patch) ** 2)
    positions, padded = facts.get("positions", 0), facts.get("padded_positions", 0)
    return Tokens(facts["vocab"], positions - padded, facts.get("unread", 0) + padded, facts.get("types", 0))


def _attention(facts: Facts, layers: int) -> Attention:
    width, heads, groups = facts["width"], facts["heads"], facts["kv_groups"]
    if heads < 1 or groups < 1 or heads % groups:
        raise UserError(f"{heads} heads can't be shared out over {groups} kv groups")
    if facts.get("head_size") is None and "nope_size" not in facts and width % heads:
        raise UserError(f"width {width} is not a multiple of {heads} heads")
    size = facts["nope_size"] + facts["rope_size"] if "nope_size" in facts else facts.get("head_size", width // heads)
    if not size or size < 1:
        raise UserError(f"head size {size}: must be at least 1")
    rotary = facts.get("rope_size", facts.get("rotary", int(facts.get("rotary_share", 0) * size)))
    if facts.get("alibi"):
        rotary = 0
    if rotary % 2 or rotary > size:
        raise UserError(f"rotary size {rotary} of a head of {size}: positions rotate pairs, so it must be even and fit")
    biases = {key: bool(facts[key]) for key in ("q_bias", "k_bias", "v_bias", "o_bias")}
    return Attention(
        layers=layers,
        heads=heads,
        kv_groups=groups,
        embedding=width,
        qk_size=size,
        v_size=facts.get("v_size", size),
        rotary=rotary,
        rotary_style=facts.get("rotary_style", "half"),
        **biases,
    )


def _activation(facts: Facts) -> tuple[Activation, bool]:
    """The kind of activation, and whether a gate goes with it."""
    said, gated = str(facts["activation"]), bool(facts.get("gated"))
    if said.startswith("gated-"):
        said, gated = said.removeprefix("gated-"), True
    if said in ("relu", "clamped"):
        return ("relu" if said == "relu" else "clamped"), gated
    if said not in SMOOTH:
        known = ", ".join(("relu", *SMOOTH))
        raise UserError(f"activation {said!r}: not known whether hidden units can be scaled through it; known: {known}")
    return ("gelu" if "gelu" in said else "silu"), gated


def _mlp(facts: Facts, inner: int, experts: Experts | None = None) -> Mlp:
    activation, gated = _activation(facts)
    return Mlp(inner, activation, gated, bool(facts.get("up_bias")), bool(facts.get("down_bias")), experts)


def _experts(facts: Facts) -> Experts | None:
    if not facts.get("experts"):
        return None
    width = facts["expert_width"]
    return Experts(
        number=facts["experts"],
        active=facts["active_experts"],
        width=width,
        shared=(facts.get("shared_experts") or 0) * width,
        router=facts.get("router", "softmax"),
        router_bias=facts.get("router_bias", False),
    )


def _blocks(facts: Facts, norm: Norm) -> tuple[Block, ...]:
    """Runs of equal layers: dense ones and those with experts, in their order."""
    experts, layers = _experts(facts), facts["layers"]
    if layers < 1:
        raise UserError(f"{layers} layers: must be at least 1")
    sparse = [experts is not None and _is_sparse(facts, layer) for layer in range(layers)]
    runs: list[tuple[bool, int]] = []
    for one in sparse:
        if runs and runs[-1][0] == one:
            runs[-1] = (one, runs[-1][1] + 1)
        else:
            runs.append((one, 1))
    return tuple(_block(facts, norm, count, experts if one else None) for one, count in runs)


def _is_sparse(facts: Facts, layer: int) -> bool:
    """Whether the layer has experts. Types with `dense_layers` count from 0, the others from 1."""
    every = facts.get("moe_every", 1)
    if layer in (facts.get("dense_list") or ()):
        return False
    if "dense_layers" in facts:
        return layer >= facts["dense_layers"] and layer % every == 0
    return (layer + 1) % every == 0


def _block(facts: Facts, norm: Norm, layers: int, experts: Experts | None) -> Block:
    parallel = "no"
    if facts.get("parallel"):
        norms = facts.get("parallel_norms", 2) or (2 if facts.get("new_decoder") else 1)
        parallel = "one norm" if norms == 1 else "two norms"
    latent = None
    if "kv_rank" in facts:
        latent = Latent(facts["q_rank"] or 0, facts["kv_rank"], facts["nope_size"])
    return Block(
        attention=_attention(facts, layers),
        mlp=_mlp(facts, facts["inner"], experts),
        norm=norm,
        placement=facts.get("placement", "pre"),
        parallel=parallel,  # type: ignore[arg-type]
        qk_norm=QKNorm(facts["qk_norm"]) if facts.get("qk_norm") else None,
        latent=latent,
        sinks=facts.get("sinks", False),
        softcap=bool(facts.get("softcap")),
    )


def _encoder_decoder(name: str, kind: str, facts: Facts) -> Architecture:
    """T5: one token table for both, relative biases. Whisper: frames in, learned positions in the decoder."""
    norm, layers = _norm(facts), facts["decoder_layers"]
    below = {key.removeprefix("decoder_"): value for key, value in facts.items() if key.startswith("decoder_")}
    # Whisper's decoder may have other heads and another inner width than its encoder.
    reads = {**facts, **below}
    if "heads" in below:
        reads["kv_groups"] = below["heads"]
    first = Block(_attention(facts, facts["layers"]), _mlp(facts, facts["inner"]), norm)
    own, cross = _attention(reads, layers), _attention(reads, layers)
    second = Block(own, _mlp(facts, reads["inner"]), norm, cross=cross)
    if kind == "t5":
        tokens, buckets = Tokens(facts["vocab"]), facts["buckets"]
        encoder = Stack("encoder", tokens, (first,), causal=False, final_norm=norm, relative_buckets=buckets)
        decoder = Stack("decoder", tokens, (second,), final_norm=norm, relative_buckets=buckets)
    else:
        frames = Audio(facts["channels"], facts["frames"])
        encoder = Stack("encoder", frames, (first,), causal=False, final_norm=norm)
        decoder = Stack("decoder", Tokens(facts["vocab"], facts["positions"]), (second,), final_norm=norm)
    return Architecture(name, (encoder, decoder), Head(facts["tied"]), shared_table=kind == "t5")

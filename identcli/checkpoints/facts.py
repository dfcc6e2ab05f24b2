"""What a config says of the attention layers of a checkpoint, before its tensors are looked at."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from identcli.architecture.attention_only import ATTENTION_ONLY
from identcli.architecture.description import Block, Latent, QKNorm
from identcli.architecture.errors import UserError
from identcli.architecture.huggingface import from_config
from identcli.architecture.model_types import ALIASES, MODEL_TYPES, SYNONYMS, Derived, Size
from identcli.architecture.pairs import Attention

# The facts of a model type that decide its attention. Whatever else a config leaves out needn't stop an audit.
_NEEDED = (
    *("width", "layers", "heads", "kv_groups", "head_size", "v_size", "nope_size", "rope_size", "q_rank", "kv_rank"),
    *("rotary", "rotary_share", "multi_query", "new_decoder", "alibi", "decoder_layers", "decoder_heads"),
)
# Keys of what the count refuses to describe and an audit doesn't need: activations, and norms that it sees for itself.
_UNUSED = (
    *("hidden_act", "activation_function", "hidden_activation", "feed_forward_proj", "activation", "qk_layernorm"),
    *("use_qk_norm", "word_embed_proj_dim", "do_layer_norm_before"),
)
_INNER = ("text_config", "vision_config", "thinker_config", "llm_config", "language_config")


@dataclass(frozen=True)
class Facts:
    """The attention layers of one stack. stack: its name where there are several ("encoder", "decoder", "vision").

    model_type: whose layouts fit. cross: the second attention of each layer, which reads the encoder.
    """

    stack: str
    model_type: str
    attention: Attention
    cross: Attention | None = None
    qk_norm: QKNorm | None = None
    latent: Latent | None = None
    sinks: bool = False


def from_huggingface(config: Mapping[str, Any], at: Path, assume: Collection[str] = ()) -> list[Facts]:
    """The stacks that a config.json describes; `at` begins every message. UserError for an unknown model_type."""
    vision = _vision(config, at)
    outer = str(config.get("model_type", ""))
    if outer in ATTENTION_ONLY:
        return [_attention_only(config, outer, at, "vision" if "vision" in outer else ""), *vision]
    text = config.get("text_config")
    if isinstance(text, Mapping) and text.get("model_type") in ATTENTION_ONLY:
        return [_attention_only(text, str(text["model_type"]), at), *vision]
    if not any(_type(part) in MODEL_TYPES for part in _levels(config)):
        said = [str(part["model_type"]) for part in _levels(config) if "model_type" in part]
        if said:
            raise UserError(
                f"{at}: model_type {said[0]!r} is not known: say how its attention is stored with --layout and --heads"
            )
    architecture = from_config(_without_the_rest(config), at.parent.name, assume, at)
    kind = next((_type(part) for part in _levels(config) if _type(part) in MODEL_TYPES), "")
    found = [_facts(stack.name, kind, stack.blocks) for stack in architecture.stacks]
    if kind.startswith("deepseek") and config.get("rope_interleave") is False:
        found = [replace(f, attention=replace(f.attention, rotary_style="half")) for f in found]
    if config.get("add_cross_attention"):
        found = [replace(f, cross=f.attention) for f in found]
    if len(architecture.stacks) == 1:
        found = [replace(found[0], stack="text" if vision else "")]
    return [*found, *vision]


def _facts(stack: str, kind: str, blocks: tuple[Block, ...]) -> Facts:
    first = blocks[0]
    for block in blocks[1:]:
        if replace(block.attention, layers=1) != replace(first.attention, layers=1):
            raise UserError(f"{stack}: layers whose attention differs; they can't be read as one stack")
    return Facts(stack, kind, first.attention, first.cross, first.qk_norm, first.latent, first.sinks)


def _type(config: Mapping[str, Any]) -> str:
    model_type = str(config.get("model_type", ""))
    return ALIASES.get(model_type, model_type)


def _levels(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The config and those inside it, but for that of a vision tower."""
    inner = [config[key] for key in _INNER if key != "vision_config" and isinstance(config.get(key), Mapping)]
    return [config, *(level for part in inner for level in _levels(part))]


def _without_the_rest(config: Mapping[str, Any], outer: str = "") -> dict[str, Any]:
    """The config with class defaults for what an audit doesn't need, so that only what it needs can be missing."""
    kept = {key: value for key, value in config.items() if key not in _UNUSED}
    kind = _type(config) if "model_type" in config else outer
    for key in _INNER:
        if isinstance(kept.get(key), Mapping):
            kept[key] = _without_the_rest(kept[key], kind)
    for fact, what in MODEL_TYPES.get(kind, {}).items():
        if fact not in _NEEDED and isinstance(what, Size | Derived):
            for spelling in next((group for group in SYNONYMS if what.key in group), (what.key,)):
                kept.pop(spelling, None)
    for fact, what in MODEL_TYPES.get(kind, {}).items():
        if fact not in _NEEDED and isinstance(what, Size):
            kept[what.key] = what.default
    return kept


def _attention_only(config: Mapping[str, Any], kind: str, at: Path, stack: str = "") -> Facts:
    keys = ATTENTION_ONLY[kind]
    if keys.unless and config.get(keys.unless) is not None:
        raise UserError(f"{at}: {keys.unless} = {config[keys.unless]}: projections that are clipped are no linear maps")
    width, heads = (_number(config, key, at) for key in (keys.width, keys.heads))
    kv = config.get(keys.kv_heads) if keys.kv_heads else None
    size = config.get(keys.head_size)
    if size is None and width % heads:
        raise UserError(f"{at}: width {width} is not a multiple of {heads} heads")
    size = int(size or width // heads)
    kv_groups = int(kv or heads)
    attention = Attention(1, heads, kv_groups, width, size, size, rotary=size if keys.positions == "half" else 0)
    return Facts(stack, kind, attention, cross=attention if keys.cross else None)


def _number(config: Mapping[str, Any], key: str, at: Path) -> int:
    spellings = next((group for group in SYNONYMS if key in group), (key,))
    value = next((config[s] for s in (key, *spellings) if config.get(s) is not None), None)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{at}: {key} = {value}: must be a whole number of at least 1")
    return value


def _vision(config: Mapping[str, Any], at: Path) -> list[Facts]:
    """The vision tower of a model of text and images, if its attention is known."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return []
    kind = str(vision.get("model_type") or {"clip": "clip_vision_model"}.get(str(config.get("model_type")), ""))
    if kind in ATTENTION_ONLY:
        return [_attention_only(vision, kind, at, "vision")]
    return []


def of_nanogpt(sizes: Mapping[str, Any], at: Path) -> Facts:
    """From n_layer, n_head, n_embd and bias, as nanoGPT's checkpoints and our runs have them."""
    try:
        layers, heads, width = (int(sizes[key]) for key in ("n_layer", "n_head", "n_embd"))
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{at}: model_args without n_layer, n_head and n_embd: say --layout nanogpt --heads N"
        ) from None
    if heads < 1 or width % heads:
        raise UserError(f"{at}: width {width} is not a multiple of {heads} heads")
    biased = bool(sizes.get("bias", True))
    size = width // heads
    return Facts("", "nanogpt", Attention(layers, heads, heads, width, size, size, biased, biased, biased, biased))

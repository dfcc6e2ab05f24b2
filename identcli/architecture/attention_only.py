"""Model types whose attention is known though the rest of the model isn't described: enough to audit, not to count."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AttentionOnly:
    """Keys of config.json. positions: `none` leaves GL(D) on queries and keys, `half` rotates all rows of a head.

    kv_heads: "" where there is one for each head. head_size: where the config lacks it, it is width / heads. unless: a
    key that, when set, breaks what the audit relies on. cross: a layer may have a second attention, to an encoder.
    """

    positions: Literal["none", "half"]
    width: str = "hidden_size"
    heads: str = "num_attention_heads"
    kv_heads: str = ""
    head_size: str = "head_dim"
    unless: str = ""
    cross: bool = False


_BART = AttentionOnly("none", "d_model", "encoder_attention_heads", cross=True)

ATTENTION_ONLY: dict[str, AttentionOnly] = {
    **dict.fromkeys(("albert", "electra", "camembert", "deit", "dinov2", "wav2vec2", "hubert"), AttentionOnly("none")),
    **dict.fromkeys(("clip_vision_model", "siglip_vision_model", "siglip_text_model"), AttentionOnly("none")),
    **dict.fromkeys(("bart", "mbart", "marian", "pegasus"), _BART),
    "distilbert": AttentionOnly("none", "dim", "n_heads"),
    "mt5": AttentionOnly("none", "d_model", "num_heads", head_size="d_kv", cross=True),
    "gpt_neo": AttentionOnly("none", heads="num_heads"),
    "qwen2_moe": AttentionOnly("half", kv_heads="num_key_value_heads"),
    "granite": AttentionOnly("half", kv_heads="num_key_value_heads"),
    "starcoder2": AttentionOnly("half", kv_heads="num_key_value_heads"),
    # Clipping what the projections give is no linear map any more.
    "olmo": AttentionOnly("half", kv_heads="num_key_value_heads", unless="clip_qkv"),
}

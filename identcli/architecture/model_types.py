"""What every known `model_type` of Hugging Face means: one entry each, from keys of config.json to facts.

A fact is a constant, or one of
    Size      a key that the count needs; left out, it is refused unless the user assumes the class default
    Option    a key that came later or is usually left out; absent means the given value
    Derived   absent or null means a rule over other facts, as the classes have it
A new architecture is an entry here and a test. A model type with another wiring than those below also needs a
description that has it (description.py), its families (families.py) and its twin.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Size:
    key: str
    default: Any


@dataclass(frozen=True)
class Option:
    key: str
    absent: Any


@dataclass(frozen=True)
class Derived:
    """rule: `heads` (as many as heads), `head size` (width / heads), `4x` (four times the width), `layers`."""

    key: str
    rule: str
    default: Any = None


# Spellings of one thing, in all the files met so far.
SYNONYMS: tuple[tuple[str, ...], ...] = (
    ("hidden_size", "n_embd", "d_model", "n_embed"),
    ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    ("num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num"),
    ("head_dim", "kv_channels"),
    ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"),
    ("max_position_embeddings", "n_positions"),
    ("vocab_size", "padded_vocab_size"),
    ("attention_bias", "add_qkv_bias"),
    ("partial_rotary_factor", "rotary_pct", "rope_pct"),
    ("hidden_act", "activation_function", "hidden_activation"),
    ("num_experts", "num_local_experts", "n_routed_experts"),
)


def _tied(default: bool) -> Size | Option:
    """The library writes this key unless it is true, the default of all classes: left out, it means tied.

    A class of its own default false always has it in its files; there it is missed when it is absent.
    """
    return Option("tie_word_embeddings", True) if default else Size("tie_word_embeddings", False)


def _sizes(width: int, layers: int, heads: int, inner: int | None, vocab: int) -> dict[str, Any]:
    """The five sizes that all text models have, with the defaults of the class."""
    return {
        "width": Size("hidden_size", width),
        "layers": Size("num_hidden_layers", layers),
        "heads": Size("num_attention_heads", heads),
        "inner": Derived("intermediate_size", "4x") if inner is None else Size("intermediate_size", inner),
        "vocab": Size("vocab_size", vocab),
    }


def _biases(q: Any, k: Any, v: Any, o: Any) -> dict[str, Any]:
    return {"q_bias": q, "k_bias": k, "v_bias": v, "o_bias": o}


def _kv(default: int | None) -> Derived:
    """null means as many as heads; absent the same, unless the class has a number of its own."""
    return Derived("num_key_value_heads", "heads", default)


_HEAD = Derived("head_dim", "head size")
_NO_BIAS = _biases(False, False, False, False)
_ALL_BIASES = _biases(True, True, True, True) | {"up_bias": True, "down_bias": True}
_LAYER_NORM = {"norm": "layer", "norm_bias": True}
_ATTENTION_BIAS = Option("attention_bias", False)

_GPT2 = (
    _sizes(768, 12, 12, None, 50257)
    | _ALL_BIASES
    | _LAYER_NORM
    | {
        "positions": Size("n_positions", 1024),
        "activation": Option("activation_function", "gelu_new"),
        "tied": _tied(True),
    }
)
_LLAMA = (
    _sizes(4096, 32, 32, 11008, 32000)
    | _biases(_ATTENTION_BIAS, _ATTENTION_BIAS, _ATTENTION_BIAS, _ATTENTION_BIAS)
    | {
        "kv_groups": _kv(None),
        "head_size": _HEAD,
        "norm": "rms",
        "gated": True,
        "activation": Option("hidden_act", "silu"),
        "up_bias": Option("mlp_bias", False),
        "down_bias": Option("mlp_bias", False),
        "rotary_share": 1.0,
        "tied": _tied(False),
    }
)
_PLAIN_LLAMA = _LLAMA | _NO_BIAS | {"up_bias": False, "down_bias": False}
_MIXTRAL = (
    _PLAIN_LLAMA
    | _sizes(4096, 32, 32, 14336, 32000)
    | {
        "kv_groups": _kv(8),
        "experts": Size("num_local_experts", 8),
        "active_experts": Size("num_experts_per_tok", 2),
        "expert_width": Size("intermediate_size", 14336),
    }
)
_QWEN3 = _LLAMA | {"up_bias": False, "down_bias": False, "qk_norm": "head"} | _sizes(4096, 32, 32, 22016, 151936)
_GEMMA = (
    _PLAIN_LLAMA
    | _biases(_ATTENTION_BIAS, _ATTENTION_BIAS, _ATTENTION_BIAS, _ATTENTION_BIAS)
    | _sizes(3072, 28, 16, 24576, 256000)
    | {
        "kv_groups": _kv(16),
        "head_size": Size("head_dim", 256),
        "activation": Option("hidden_act", "gelu_pytorch_tanh"),
        "tied": _tied(True),
    }
)
_GEMMA2 = (
    _GEMMA
    | _sizes(2304, 26, 8, 9216, 256000)
    | {
        "kv_groups": _kv(4),
        "placement": "sandwich",
        "softcap": Option("attn_logit_softcapping", 50.0),
        "head_softcap": Option("final_logit_softcapping", 30.0),
    }
)
_DEEPSEEK = _PLAIN_LLAMA | {
    "kv_groups": Derived("num_key_value_heads", "heads"),
    "head_size": None,
    "rotary_style": "interleaved",
    "q_rank": Size("q_lora_rank", 1536),
    "kv_rank": Size("kv_lora_rank", 512),
    "rope_size": Size("qk_rope_head_dim", 64),
    "nope_size": Size("qk_nope_head_dim", 128),
    "v_size": Size("v_head_dim", 128),
    "shared_experts": Size("n_shared_experts", 1),
    "experts": Size("n_routed_experts", 256),
    "active_experts": Size("num_experts_per_tok", 8),
    "expert_width": Size("moe_intermediate_size", 2048),
    "dense_layers": Size("first_k_dense_replace", 3),
    "moe_every": Option("moe_layer_freq", 1),
}
_BERT = (
    _sizes(768, 12, 12, 3072, 30522)
    | _ALL_BIASES
    | _LAYER_NORM
    | {
        "placement": "post",
        "embedding_norm": True,
        "positions": Size("max_position_embeddings", 512),
        "types": Size("type_vocab_size", 2),
        "activation": Option("hidden_act", "gelu"),
        "causal": False,
        "head": False,
        "pooler": True,
    }
)

MODEL_TYPES: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2
    | {
        "activation": Option("activation_function", "gelu_pytorch_tanh"),
        "multi_query": Option("multi_query", True),
        "kv_groups": _kv(None),
    },
    "gpt_neox": _sizes(6144, 44, 64, 24576, 50432)
    | _ALL_BIASES
    | {f"{x}_bias": Option("attention_bias", True) for x in "qkvo"}
    | _LAYER_NORM
    | {
        "activation": Option("hidden_act", "gelu"),
        "rotary_share": Size("rotary_pct", 0.25),
        "parallel": Option("use_parallel_residual", True),
        "tied": _tied(False),
    },
    "gptj": _sizes(4096, 28, 16, None, 50400)
    | _NO_BIAS
    | _LAYER_NORM
    | {
        "up_bias": True,
        "down_bias": True,
        "activation": Option("activation_function", "gelu_new"),
        "rotary": Size("rotary_dim", 64),
        "rotary_style": "interleaved",
        "parallel": True,
        "parallel_norms": 1,
        "tied": _tied(False),
        "head_bias": True,
    },
    "bloom": _sizes(64, 2, 8, None, 250880)
    | {"inner": Derived("", "4x")}
    | _ALL_BIASES
    | _LAYER_NORM
    | {"activation": "gelu", "alibi": True, "embedding_norm": True, "tied": _tied(True)},
    "falcon": _sizes(4544, 32, 71, None, 65024)
    | {f"{x}_bias": Option("bias", False) for x in ("q", "k", "v", "o", "up", "down")}
    | _LAYER_NORM
    | {
        "kv_groups": _kv(None),
        "multi_query": Option("multi_query", True),
        "new_decoder": Option("new_decoder_architecture", False),
        "alibi": Option("alibi", False),
        "rotary_share": 1.0,
        "activation": Option("activation", "gelu"),
        "parallel": Option("parallel_attn", True),
        "parallel_norms": Option("num_ln_in_parallel_attn", None),
        "tied": _tied(True),
    },
    "llama": _LLAMA,
    "mistral": _PLAIN_LLAMA | _sizes(4096, 32, 32, 14336, 32000) | {"kv_groups": _kv(8)},
    "mixtral": _MIXTRAL,
    "qwen2": _PLAIN_LLAMA
    | _sizes(4096, 32, 32, 22016, 151936)
    | _biases(True, True, True, False)
    | {"kv_groups": _kv(32)},
    "qwen3": _QWEN3 | {"kv_groups": _kv(32), "head_size": Size("head_dim", 128)},
    "qwen3_moe": _QWEN3
    | _sizes(2048, 24, 32, 6144, 151936)
    | {
        "kv_groups": _kv(4),
        "experts": Size("num_experts", 128),
        "active_experts": Size("num_experts_per_tok", 8),
        "expert_width": Size("moe_intermediate_size", 768),
        "moe_every": Option("decoder_sparse_step", 1),
        "dense_list": Option("mlp_only_layers", None),
    },
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2
    | _sizes(2304, 26, 8, 9216, 262208)
    | {
        "qk_norm": "head",
        "softcap": Option("attn_logit_softcapping", None),
        "head_softcap": Option("final_logit_softcapping", None),
    },
    "phi": _sizes(2048, 24, 32, 8192, 51200)
    | _ALL_BIASES
    | _LAYER_NORM
    | {
        "kv_groups": _kv(None),
        "activation": Option("hidden_act", "gelu_new"),
        "rotary_share": Size("partial_rotary_factor", 0.5),
        "parallel": True,
        "parallel_norms": 1,
        "layer_qk_norm": Option("qk_layernorm", False),
        "tied": _tied(False),
        "head_bias": True,
    },
    "phi3": _PLAIN_LLAMA
    | _sizes(3072, 32, 32, 8192, 32064)
    | {"head_size": Derived("", "head size"), "rotary_share": Option("partial_rotary_factor", 1.0)},
    "olmo2": _LLAMA
    | _sizes(4096, 32, 32, 11008, 50304)
    | {"up_bias": False, "down_bias": False, "qk_norm": "concat", "placement": "output"},
    "olmoe": _LLAMA
    | _sizes(2048, 16, 16, 2048, 50304)
    | {
        "up_bias": False,
        "down_bias": False,
        "qk_norm": "concat",
        "experts": Size("num_experts", 64),
        "active_experts": Size("num_experts_per_tok", 8),
        "expert_width": Size("intermediate_size", 2048),
    },
    "stablelm": _PLAIN_LLAMA
    | _sizes(2560, 32, 32, 6912, 50304)
    | _LAYER_NORM
    | {f"{x}_bias": Option("use_qkv_bias", False) for x in "qkv"}
    | {
        "kv_groups": _kv(32),
        "head_size": Derived("", "head size"),
        "rotary_share": Size("partial_rotary_factor", 0.25),
        "parallel": Option("use_parallel_residual", False),
        "parallel_norms": 1,
        "layer_qk_norm": Option("qk_layernorm", False),
    },
    "glm": _PLAIN_LLAMA
    | _sizes(4096, 40, 32, 13696, 151552)
    | {f"{x}_bias": Option("attention_bias", True) for x in "qkv"}
    | {
        "kv_groups": _kv(2),
        "head_size": Size("head_dim", 128),
        "rotary_share": Size("partial_rotary_factor", 0.5),
        "rotary_style": "interleaved",
    },
    "cohere": _PLAIN_LLAMA
    | _sizes(8192, 40, 64, 22528, 256000)
    | {f"{x}_bias": _ATTENTION_BIAS for x in "qkvo"}
    | {
        "norm": "layer",
        "rotary_style": "interleaved",
        "parallel": True,
        "parallel_norms": 1,
        "layer_qk_norm": Option("use_qk_norm", False),
        "tied": _tied(True),
    },
    "gpt_oss": _PLAIN_LLAMA
    | _sizes(2880, 36, 64, 2880, 201088)
    | {f"{x}_bias": Option("attention_bias", True) for x in "qkvo"}
    | {
        "kv_groups": _kv(8),
        "head_size": Size("head_dim", 64),
        "sinks": True,
        "activation": "clamped",
        "up_bias": True,
        "down_bias": True,
        "experts": Size("num_local_experts", 128),
        "active_experts": Size("num_experts_per_tok", 4),
        "expert_width": Size("intermediate_size", 2880),
        "router_bias": True,
    },
    "deepseek_v3": _DEEPSEEK | _sizes(7168, 61, 128, 18432, 129280) | {"router": "sigmoid"},
    "deepseek_v2": _DEEPSEEK
    | _sizes(4096, 32, 32, 11008, 32000)
    | {"experts": Size("n_routed_experts", 64), "dense_layers": Size("first_k_dense_replace", 0)},
    "opt": _sizes(768, 12, 12, 3072, 50272)
    | {f"{x}_bias": Option("enable_bias", True) for x in ("q", "k", "v", "o", "up", "down")}
    | _LAYER_NORM
    | {
        "inner": Size("ffn_dim", 3072),
        "positions": Size("max_position_embeddings", 2048),
        "unread": 2,
        "activation": Option("activation_function", "relu"),
        "before": Option("do_layer_norm_before", True),
        "projected": Option("word_embed_proj_dim", None),
        "tied": _tied(True),
    },
    "bert": _BERT,
    "roberta": _BERT | _sizes(768, 12, 12, 3072, 50265) | {"padded_positions": 2},
    "vit": _ALL_BIASES
    | {f"{x}_bias": Option("qkv_bias", True) for x in "qkv"}
    | _LAYER_NORM
    | {
        "width": Size("hidden_size", 768),
        "layers": Size("num_hidden_layers", 12),
        "heads": Size("num_attention_heads", 12),
        "inner": Size("intermediate_size", 3072),
        "image": Size("image_size", 224),
        "patch": Size("patch_size", 16),
        "channels": Size("num_channels", 3),
        "activation": Option("hidden_act", "gelu"),
        "causal": False,
        "head": False,
        "pooler": True,
    },
    "clip_text_model": _sizes(512, 12, 8, 2048, 49408)
    | _ALL_BIASES
    | _LAYER_NORM
    | {
        "positions": Size("max_position_embeddings", 77),
        "activation": Option("hidden_act", "quick_gelu"),
        "head": False,
    },
    "t5": _sizes(512, 6, 8, 2048, 32128)
    | _NO_BIAS
    | {
        "head_size": Size("d_kv", 64),
        "decoder_layers": Derived("num_decoder_layers", "layers"),
        "buckets": Size("relative_attention_num_buckets", 32),
        "norm": "rms",
        "activation": Option("feed_forward_proj", "relu"),
        "tied": _tied(True),
    },
    "whisper": _ALL_BIASES
    | _LAYER_NORM
    | {
        "width": Size("d_model", 384),
        "layers": Size("encoder_layers", 4),
        "heads": Size("encoder_attention_heads", 6),
        "inner": Size("encoder_ffn_dim", 1536),
        "decoder_layers": Size("decoder_layers", 4),
        "decoder_heads": Size("decoder_attention_heads", 6),
        "decoder_inner": Size("decoder_ffn_dim", 1536),
        "vocab": Size("vocab_size", 51865),
        "channels": Size("num_mel_bins", 80),
        "frames": Size("max_source_positions", 1500),
        "positions": Size("max_target_positions", 448),
        "activation": Option("activation_function", "gelu"),
        "k_bias": False,
        "tied": _tied(True),
    },
}

# Names that mean one of the above: older ones, and models around a text model.
ALIASES = {
    "RefinedWebModel": "falcon",
    "RefinedWeb": "falcon",
    "chatglm": "glm",
    "gemma3": "gemma3_text",
    "clip": "clip_text_model",
    "xlm-roberta": "roberta",
}

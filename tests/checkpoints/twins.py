"""Tiny random models of transformers' own classes, float64, random biases and norms: what a layout is tried on."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

os.environ["HF_HUB_OFFLINE"] = "1"

POSITIONS = 7


@dataclass(frozen=True)
class Twin:
    """A class of transformers with a config. group: what acts on queries and keys, in words; "" where nothing may."""

    cls: str
    config: str
    kwargs: dict[str, Any]
    group: str
    layout: str
    others: dict[str, Any] = field(default_factory=dict)

    def model(self, seed: int = 0) -> nn.Module:
        import transformers

        config = getattr(transformers, self.config)(**self.kwargs)
        config._attn_implementation = "eager"
        model = getattr(transformers, self.cls)(config).double().eval()
        randomise(model, seed)
        return model


def randomise(model: nn.Module, seed: int) -> None:
    """Weights that make scores and outputs of order 1; norms and biases far from 1 and 0, so that each counts."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim < 2:
                is_gain = name.endswith("weight")
                parameter.copy_(1 + 0.3 * noise if is_gain else 0.5 * noise)
            else:
                parameter.copy_(noise * min(0.5, parameter.shape[-1] ** -0.5))


_TEXT = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
_TEXT |= {"max_position_embeddings": 32, "pad_token_id": 0}
_GQA = _TEXT | {"num_key_value_heads": 2}
_GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
_MLA = _TEXT | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_VISION = {key: value for key, value in _TEXT.items() if key.startswith(("hidden", "num_", "inter"))}
_VISION |= {"image_size": 8, "patch_size": 4}
_T5 = {"vocab_size": 61, "d_model": 32, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_heads": 4}
_T5 |= {"num_decoder_layers": 2, "decoder_start_token_id": 0}
HALF, INTERLEAVED = "4 scaled rotations", "4 scaled rotations"

TWINS: dict[str, Twin] = {
    "gpt2": Twin("GPT2LMHeadModel", "GPT2Config", _GPT2, "GL(8)", "gpt2"),
    "gpt_neox": Twin(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", _TEXT | {"rotary_pct": 0.25}, "1 scaled rotations x GL(6)", "gpt_neox"
    ),
    "bloom": Twin(
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "GL(8)",
        "bloom",
    ),
    "falcon_7b": Twin(
        "FalconForCausalLM",
        "FalconConfig",
        _TEXT | {"multi_query": True, "new_decoder_architecture": False, "alibi": False},
        HALF,
        "falcon",
    ),
    "falcon_40b": Twin(
        "FalconForCausalLM",
        "FalconConfig",
        _TEXT | {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
        HALF,
        "falcon",
    ),
    "falcon_rw": Twin(
        "FalconForCausalLM",
        "FalconConfig",
        _TEXT
        | {
            "multi_query": False,
            "new_decoder_architecture": False,
            "alibi": True,
            "bias": True,
            "parallel_attn": False,
        },
        "GL(8)",
        "falcon",
    ),
    "phi3": Twin("Phi3ForCausalLM", "Phi3Config", _GQA, HALF, "phi3"),
    "llama": Twin("LlamaForCausalLM", "LlamaConfig", _GQA, HALF, "llama"),
    "llama_bias": Twin("LlamaForCausalLM", "LlamaConfig", _TEXT | {"attention_bias": True}, HALF, "llama"),
    "mistral": Twin("MistralForCausalLM", "MistralConfig", _GQA, HALF, "llama"),
    "mixtral": Twin("MixtralForCausalLM", "MixtralConfig", _GQA | {"num_local_experts": 2}, HALF, "llama"),
    "qwen2": Twin("Qwen2ForCausalLM", "Qwen2Config", _GQA, HALF, "llama"),
    "qwen3": Twin("Qwen3ForCausalLM", "Qwen3Config", _GQA | {"head_dim": 8}, "", "llama"),
    "olmo2": Twin("Olmo2ForCausalLM", "Olmo2Config", _GQA, "", "llama"),
    "gemma": Twin("GemmaForCausalLM", "GemmaConfig", _GQA | {"head_dim": 10}, "5 scaled rotations", "llama"),
    "gemma2": Twin("Gemma2ForCausalLM", "Gemma2Config", _GQA | {"head_dim": 8}, HALF, "llama"),
    "gemma3": Twin("Gemma3ForCausalLM", "Gemma3TextConfig", _GQA | {"head_dim": 8}, "", "llama"),
    "stablelm": Twin(
        "StableLmForCausalLM",
        "StableLmConfig",
        _GQA | {"use_qkv_bias": True, "partial_rotary_factor": 0.25},
        "1 scaled rotations x GL(6)",
        "llama",
    ),
    "phi": Twin(
        "PhiForCausalLM", "PhiConfig", _TEXT | {"partial_rotary_factor": 0.5}, "2 scaled rotations x GL(4)", "phi"
    ),
    "glm": Twin(
        "GlmForCausalLM",
        "GlmConfig",
        _GQA | {"head_dim": 8, "partial_rotary_factor": 0.5, "attention_bias": True},
        "2 scaled rotations x GL(4)",
        "glm",
    ),
    "cohere": Twin(
        "CohereForCausalLM", "CohereConfig", _GQA | {"eos_token_id": 1, "bos_token_id": 2}, INTERLEAVED, "cohere"
    ),
    "gptj": Twin("GPTJForCausalLM", "GPTJConfig", _GPT2 | {"rotary_dim": 4}, "2 scaled rotations x GL(4)", "gptj"),
    "gpt_oss": Twin(
        "GptOssForCausalLM",
        "GptOssConfig",
        _GQA | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "attention_bias": True},
        HALF,
        "llama",
    ),
    "opt": Twin("OPTForCausalLM", "OPTConfig", _TEXT | {"ffn_dim": 40, "word_embed_proj_dim": 32}, "GL(8)", "opt"),
    "gpt_bigcode_mqa": Twin(
        "GPTBigCodeForCausalLM", "GPTBigCodeConfig", _GPT2 | {"multi_query": True}, "GL(8)", "gpt_bigcode"
    ),
    "gpt_bigcode_mha": Twin(
        "GPTBigCodeForCausalLM", "GPTBigCodeConfig", _GPT2 | {"multi_query": False}, "GL(8)", "gpt_bigcode"
    ),
    "bert": Twin("BertModel", "BertConfig", _TEXT, "GL(8)", "bert"),
    "roberta": Twin("RobertaForMaskedLM", "RobertaConfig", _TEXT, "GL(8)", "bert"),
    "albert": Twin("AlbertModel", "AlbertConfig", _TEXT | {"embedding_size": 16}, "GL(8)", "albert"),
    "distilbert": Twin(
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": 61, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 32},
        "GL(8)",
        "distilbert",
    ),
    "electra": Twin("ElectraModel", "ElectraConfig", _TEXT | {"embedding_size": 16}, "GL(8)", "bert"),
    "gpt_neo": Twin(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "vocab_size": 61,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "intermediate_size": 40,
            "max_position_embeddings": 32,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
        "GL(8)",
        "gpt_neo",
    ),
    "vit": Twin("ViTModel", "ViTConfig", _VISION, "GL(8)", "vit"),
    "clip_text": Twin("CLIPTextModel", "CLIPTextConfig", _TEXT | {"eos_token_id": 60}, "GL(8)", "opt"),
    "clip": Twin(
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": _TEXT | {"eos_token_id": 60},
            "vision_config": {
                "hidden_size": 24,
                "num_hidden_layers": 2,
                "num_attention_heads": 3,
                "intermediate_size": 30,
            }
            | {"image_size": 8, "patch_size": 4},
            "projection_dim": 16,
        },
        "GL(8)",
        "opt",
    ),
    "t5": Twin("T5ForConditionalGeneration", "T5Config", _T5, "GL(10)", "t5"),
    "whisper": Twin(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": 61,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40,
            "num_mel_bins": 6,
            "max_source_positions": 10,
            "max_target_positions": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
        },
        "GL(8)",
        "opt",
    ),
    "bart": Twin(
        "BartForConditionalGeneration",
        "BartConfig",
        {
            "vocab_size": 61,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40,
            "max_position_embeddings": 32,
        },
        "GL(8)",
        "opt",
    ),
    "starcoder2": Twin("Starcoder2ForCausalLM", "Starcoder2Config", _GQA | {"use_bias": True}, HALF, "llama"),
    "granite": Twin("GraniteForCausalLM", "GraniteConfig", _GQA, HALF, "llama"),
    "qwen2_moe": Twin(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        _GQA
        | {
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 12,
        },
        HALF,
        "llama",
    ),
    "olmo": Twin("OlmoForCausalLM", "OlmoConfig", _GQA, HALF, "llama"),
    "dinov2": Twin("Dinov2Model", "Dinov2Config", _VISION, "GL(8)", "vit"),
    "wav2vec2": Twin(
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 40,
            "conv_dim": (8, 8),
            "conv_kernel": (10, 3),
            "conv_stride": (5, 2),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
        },
        "GL(8)",
        "wav2vec2",
    ),
    "siglip_vision": Twin("SiglipVisionModel", "SiglipVisionConfig", _VISION, "GL(8)", "opt"),
    "mt5": Twin("MT5ForConditionalGeneration", "MT5Config", _T5, "GL(10)", "t5"),
    "bert_decoder": Twin(
        "BertLMHeadModel", "BertConfig", _TEXT | {"is_decoder": True, "add_cross_attention": True}, "GL(8)", "bert"
    ),
    "deepseek_v2": Twin(
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        _MLA | {"q_lora_rank": None},
        "GL(6), 2 scaled rotations",
        "deepseek",
    ),
    "deepseek_v3": Twin(
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        _MLA | {"q_lora_rank": 14, "first_k_dense_replace": 2},
        "GL(6), 2 scaled rotations",
        "deepseek",
    ),
}

Outputs = Callable[[nn.Module], Tensor]


def outputs(model: nn.Module) -> Tensor:
    """What the model says of some random inputs, flattened."""
    from identcli.checkpoints.outputs import run_once

    with torch.no_grad():
        said = run_once(model)
    values = [v for v in said.to_tuple() if isinstance(v, Tensor) and v.is_floating_point()]
    return torch.cat([value.flatten() for value in values[:3]])


def distance(one: Tensor, other: Tensor) -> float:
    """Largest change, relative to the largest output."""
    return float((one - other).abs().max() / other.abs().max())

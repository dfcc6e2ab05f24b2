"""Layouts with a matrix for each of W_Q, W_K, W_V and W_O, as data."""

from identcli.layouts.kind import Kind

_PROJ = ("q_proj", "k_proj", "v_proj")
_WORDS = ("query", "key", "value")

SEPARATE = (
    Kind(
        "llama",
        ("self_attn.",),
        _PROJ,
        "o_proj",
        model_types=(
            *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "olmo2"),
            *("olmoe", "stablelm", "gpt_oss", "qwen2_moe", "granite", "olmo", "starcoder2"),
        ),
    ),
    Kind("cohere", ("self_attn.",), _PROJ, "o_proj", rotary_style="interleaved", model_types=("cohere",)),
    Kind("glm", ("self_attn.",), _PROJ, "o_proj", rotated="some", rotary_style="interleaved", model_types=("glm",)),
    Kind("phi", ("self_attn.",), _PROJ, "dense", rotated="some", model_types=("phi",)),
    Kind("gptj", ("attn.",), _PROJ, "out_proj", rotated="some", rotary_style="interleaved", model_types=("gptj",)),
    Kind(
        "opt",
        ("self_attn.", "encoder_attn."),
        _PROJ,
        "out_proj",
        rotated="none",
        model_types=(
            *("opt", "clip_text_model", "clip_vision_model", "siglip_text_model", "siglip_vision_model"),
            *("whisper", "bart", "mbart", "marian", "pegasus"),
        ),
    ),
    Kind("gpt_neo", ("attn.attention.",), _PROJ, "out_proj", rotated="none", model_types=("gpt_neo",)),
    Kind("wav2vec2", ("attention.",), _PROJ, "out_proj", rotated="none", model_types=("wav2vec2", "hubert")),
    Kind(
        "bert",
        ("attention.", "crossattention."),
        ("self.query", "self.key", "self.value"),
        "output.dense",
        rotated="none",
        model_types=("bert", "roberta", "electra", "camembert"),
    ),
    Kind(
        "vit",
        ("attention.",),
        ("attention.query", "attention.key", "attention.value"),
        "output.dense",
        rotated="none",
        model_types=("vit", "deit", "dinov2"),
    ),
    # One layer in the file for all layers of the model, or one for each group of them.
    Kind("albert", ("attention.",), _WORDS, "dense", rotated="none", model_types=("albert",)),
    Kind(
        "distilbert",
        ("attention.",),
        ("q_lin", "k_lin", "v_lin"),
        "out_lin",
        rotated="none",
        model_types=("distilbert",),
    ),
    Kind(
        "t5",
        ("layer.0.SelfAttention.", "layer.1.EncDecAttention."),
        ("q", "k", "v"),
        "o",
        rotated="none",
        model_types=("t5", "mt5"),
    ),
    # Meta's own files of Llama: the rotated rows lie side by side, other than in the files of transformers.
    Kind("meta_llama", ("attention.",), ("wq", "wk", "wv"), "wo", rotary_style="interleaved"),
)

"""Layouts with one matrix for queries, keys and values, as data."""

from identcli.layouts.kind import Kind

FUSED = (
    # GPT-2 stores [in, out]; nanoGPT has the same names and stores [out, in]: the shape of c_attn tells them apart.
    Kind("gpt2", ("attn.",), ("c_attn",), "c_proj", across=True, rotated="none", model_types=("gpt2",)),
    Kind("nanogpt", ("attn.",), ("c_attn",), "c_proj", rotated="none", model_types=("gpt2", "nanogpt")),
    # With one key for all heads [all queries | key | value], otherwise head by head: both are `groups`.
    Kind("gpt_bigcode", ("attn.",), ("c_attn",), "c_proj", "groups", rotated="none", model_types=("gpt_bigcode",)),
    Kind(
        "gpt_neox", ("attention.",), ("query_key_value",), "dense", "groups", rotated="some", model_types=("gpt_neox",)
    ),
    Kind(
        "bloom", ("self_attention.",), ("query_key_value",), "dense", "groups", rotated="none", model_types=("bloom",)
    ),
    # Three orders under one name, and all of them `groups`: of 71 heads, of 16, of one (the old RW, with ALiBi).
    Kind("falcon", ("self_attention.",), ("query_key_value",), "dense", "groups", model_types=("falcon",)),
    Kind("phi3", ("self_attn.",), ("qkv_proj",), "o_proj", model_types=("phi3",)),
    # The first files of GLM-4 and of Phi-1 and 2, before transformers had classes for them.
    Kind(
        "chatglm",
        ("self_attention.",),
        ("query_key_value",),
        "dense",
        rotated="some",
        rotary_style="interleaved",
        model_types=("glm",),
    ),
    Kind("phi_wqkv", ("mixer.",), ("Wqkv",), "out_proj", rotated="some", model_types=("phi",)),
    # torch.nn.MultiheadAttention, alone or inside torch.nn.Transformer; OpenAI's and open_clip's CLIP.
    Kind(
        "torch",
        ("self_attn.", "multihead_attn.", "attn.", "attention.", "mha.", ""),
        ("in_proj_",),
        "out_proj",
        rotated="none",
    ),
    Kind("timm", ("attn.",), ("qkv",), "proj", rotated="none", model_types=("vit", "deit")),
    Kind("mpt", ("attn.",), ("Wqkv",), "out_proj", rotated="none"),
)

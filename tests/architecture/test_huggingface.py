"""Reading config.json: what is taken from where, and what bad input gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from identcli.architecture.errors import UserError
from identcli.architecture.huggingface import from_config, read_config
from identcli.architecture.tensors import parameters

LLAMA = {
    "model_type": "llama",
    **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 96},
    **{"vocab_size": 100, "tie_word_embeddings": False},
}
FALCON = {
    "model_type": "falcon",
    **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100},
}
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        **{"hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240, "sliding_window": 1024},
    },
    "vision_config": {"hidden_size": 1152},
}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def groups(config: dict[str, Any]) -> int:
    return from_config(config, "x").stack.blocks[0].attention.kv_groups


def test_kv_groups_in_all_their_spellings() -> None:
    """C01."""
    assert groups(LLAMA) == 8
    assert groups(LLAMA | {"num_key_value_heads": 2}) == 2
    assert groups(LLAMA | {"num_key_value_heads": None}) == 8
    assert groups(FALCON) == 1
    assert groups(FALCON | {"multi_query": False}) == 8
    assert groups(FALCON | {"n_head_kv": 4}) == 4
    assert groups(FALCON | {"num_kv_heads": 4, "multi_query": True, "new_decoder_architecture": True}) == 4
    old = {"model_type": "RefinedWebModel", "hidden_size": 64, "n_layer": 2, "n_head": 8, "multi_query": True}
    assert groups(old | {"vocab_size": 100}) == 1
    bigcode = {"model_type": "gpt_bigcode", "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 32}
    assert groups(bigcode | {"vocab_size": 100}) == 1


def test_phi_2_says_null() -> None:
    config = {"model_type": "phi", "n_head_kv": None, "partial_rotary_factor": 0.4, "hidden_size": 80}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 8, "intermediate_size": 96, "vocab_size": 100}
    assert groups(config | {"tie_word_embeddings": False}) == 8


def test_head_size_null_is_width_over_heads() -> None:
    """C02."""
    assert from_config(LLAMA | {"head_dim": None}, "x").stack.blocks[0].attention.qk_size == 8
    assert from_config(LLAMA | {"head_dim": 16}, "x").stack.blocks[0].attention.qk_size == 16
    with pytest.raises(UserError, match="head size 0"):
        from_config(LLAMA | {"head_dim": 0}, "x")
    with pytest.raises(UserError, match="width 64 is not a multiple of 7 heads"):
        from_config(LLAMA | {"num_attention_heads": 7}, "x")


def test_nested_text_config_leaves_out_class_defaults() -> None:
    """C03: refused with each key and its default, and counted with them when they are named."""
    missing = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    with pytest.raises(UserError) as refused:
        from_config(GEMMA3, "x")
    for key, value in zip(missing, (8, 4, 256, 262208), strict=True):
        assert f"{key} (class default {value})" in str(refused.value)
    assert "--assume" in str(refused.value)
    architecture = from_config(GEMMA3, "x", assume=missing)
    assert parameters(architecture).total == 3_880_263_168
    assert any("text_config" in note for note in architecture.notes)
    assert any("vocab_size = 262208" in note for note in architecture.notes)
    with pytest.raises(UserError, match="head_dim"):
        from_config(GEMMA3, "x", assume=missing[:2])
    assert parameters(from_config(GEMMA3, "x", assume=["all"])).total == 3_880_263_168


@pytest.mark.parametrize("path", ["thinker_config.text_config", "llm_config"])
def test_other_places_of_a_text_config(path: str) -> None:
    config: dict[str, Any] = LLAMA
    for key in reversed(path.split(".")):
        config = {key: config}
    architecture = from_config({"model_type": "something_omni"} | config, "x")
    assert any(path in note for note in architecture.notes)


def test_biases_that_no_config_mentions() -> None:
    """C04."""
    qwen = LLAMA | {"model_type": "qwen2", "num_key_value_heads": 2}
    glm = LLAMA | {"model_type": "glm", "num_key_value_heads": 2, "head_dim": 8, "partial_rotary_factor": 0.5}
    stable = LLAMA | {"model_type": "stablelm", "num_key_value_heads": 8, "partial_rotary_factor": 0.25}
    phi = LLAMA | {"model_type": "phi", "partial_rotary_factor": 0.5}

    def biases(config: dict[str, Any]) -> str:
        a = from_config(config, "x").stack.blocks[0].attention
        return "".join(str(int(bias)) for bias in (a.q_bias, a.k_bias, a.v_bias, a.o_bias))

    assert biases(qwen) == "1110"
    assert biases(glm) == "1110"
    assert biases(glm | {"attention_bias": False}) == "0000"
    assert biases(stable) == "0000"
    assert biases(stable | {"use_qkv_bias": True}) == "1110"
    assert biases(phi) == "1111"


def test_an_absent_option_is_said() -> None:
    notes = from_config(LLAMA, "x").notes
    assert any("attention_bias" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        ({"num_key_value_heads": 3}, "8 heads.*3 kv groups"),
        ({"head_dim": 5}, "rotary size 5 of a head of 5"),
        ({"hidden_size": 64, "n_embd": 32}, "hidden_size = 64 and n_embd = 32"),
        ({"hidden_size": "64"}, 'hidden_size = "64": must be a whole number'),
        ({"num_hidden_layers": 0}, "0 layers"),
        ({"hidden_act": "snake"}, "activation 'snake'"),
    ],
)
def test_contradictions_show_both_numbers(change: dict[str, Any], numbers: str) -> None:
    """C10."""
    with pytest.raises(UserError, match=numbers):
        from_config(LLAMA | change, "x")


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "tie_word_embeddings"]
)
def test_a_missing_size_is_refused_unless_assumed(key: str) -> None:
    with pytest.raises(UserError, match=f"leaves out {key} \\(class default .*--assume {key}"):
        from_config(without(LLAMA, key), "x")
    assert any(key in note for note in from_config(without(LLAMA, key), "x", assume=[key]).notes)


def test_assuming_what_the_config_has_is_refused() -> None:
    with pytest.raises(UserError, match="--assume vocab_size"):
        from_config(LLAMA, "x", assume=["vocab_size"])


def test_an_unknown_type_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'qwen4' is not known; nearest known: qwen\d.*model_types\.py"):
        from_config({"model_type": "qwen4"}, "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "it is no text"),
        (b"hidden_size: 3", "no JSON"),
        (b"[1, 2]", "a list where an object is needed"),
        (b'{"version": "1.0", "truncation": null}', "no model_type"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_config(file)


def test_a_folder_gives_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert read_config(folder / "config.json").name == "tiny-llama"


def test_what_is_not_described_is_refused() -> None:
    opt = {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8, "ffn_dim": 96}
    opt |= {"vocab_size": 100, "max_position_embeddings": 32}
    with pytest.raises(UserError, match="post-norm OPT"):
        from_config(opt | {"do_layer_norm_before": False}, "x")
    with pytest.raises(UserError, match="word_embed_proj_dim 32 beside width 64"):
        from_config(opt | {"word_embed_proj_dim": 32}, "x")
    stable = LLAMA | {"model_type": "stablelm", "num_key_value_heads": 8, "partial_rotary_factor": 0.25}
    with pytest.raises(UserError, match="not been examined"):
        from_config(stable | {"qk_layernorm": True}, "x")

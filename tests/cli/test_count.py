"""`ident count` as a user types it: tables, data, checkpoints, own configs, and wrong input in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from identcli.cli.app import answer

LLAMA = {
    "model_type": "llama",
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 24, "vocab_size": 40, "tie_word_embeddings": False},
}


def data(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert answer(["count", *words, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def checkpoint(folder: Path, config: dict[str, Any], **changes: tuple[int, ...] | None) -> Path:
    """A folder as the library writes it: config.json and tensors of the shapes that a Llama has, with changes."""
    import torch
    from safetensors.torch import save_file

    width, inner, keys = 16, 24, 8
    shapes: dict[str, tuple[int, ...] | None] = {
        "model.embed_tokens.weight": (40, width),
        "lm_head.weight": (40, width),
    }
    shapes["model.norm.weight"] = (width,)
    for layer in range(2):
        at = f"model.layers.{layer}."
        for name, rows, columns in (("q", width, width), ("k", keys, width), ("v", keys, width), ("o", width, width)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, columns)
        for name, rows, columns in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
            shapes[f"{at}mlp.{name}_proj.weight"] = (rows, columns)
        shapes[f"{at}input_layernorm.weight"] = shapes[f"{at}post_attention_layernorm.weight"] = (width,)
    shapes |= {name.replace("__", "."): shape for name, shape in changes.items()}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: torch.zeros(s) for n, s in shapes.items() if s is not None}, folder / "model.safetensors")
    return folder


def test_one_model_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    (gpt2,) = data(capsys, "gpt2")
    assert gpt2["parameters"]["total"] == 124_439_808
    assert gpt2["unidentified"]["total"] == 1_347_352
    assert gpt2["unidentified"]["families"]["qk"] == 589_824
    assert gpt2["excluded"]
    assert "check" not in gpt2


def test_names_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "META-LLAMA/llama-2-70B-hf", "llama-2-70b-HF")
    assert {one["unidentified"]["total"] for one in found} == {47_738_880}


def test_the_table_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["count", "gpt2"]) == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 100
    for said in ("124,439,808", "85,056,000", "tied head", "1,347,352", "98.917 %", "GL(64) per kv group", "G·D²"):
        assert said in shown
    assert answer(["count", "gpt2", "deepseek-v3", "qwen3-8b"]) == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert "393,030,976" in shown


def test_the_papers_own_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["count", "llama-2-70b-hf", "--families", "qk,ov"]) == 0
    shown = capsys.readouterr().out
    for number in ("1,024", "131,072", "1,048,576"):
        assert number in shown
    (gpt2,) = data(capsys, "gpt2", "--families", "qk,ov")
    assert gpt2["identified_share"] == pytest.approx(1 - 1 / 24, rel=1e-15)


def test_check_and_equivalent(capsys: pytest.CaptureFixture[str]) -> None:
    (vit,) = data(capsys, "vit-base-patch16-224", "--check")
    assert vit["check"]["predicted"] == vit["check"]["measured"]
    assert vit["check"]["gap"] > 1e7
    (gpt2,) = data(capsys, "gpt2", "--equivalent")
    assert gpt2["equivalent"]["width"] == 1064
    assert answer(["count", "gpt2", "--equivalent"]) == 0
    assert "1,064" in capsys.readouterr().out


def test_a_mismatch_is_an_error_with_both_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from identcli.theory import twin_check

    monkeypatch.setattr(twin_check, "families", lambda *arguments: ())
    assert answer(["count", "vit-base-patch16-224", "--check"]) == 1
    shown = capsys.readouterr()
    assert "does not hold" in shown.out
    assert shown.err.startswith("error: twin of ViT")
    assert "0 dimensions predicted, 243 measured" in shown.err


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["count", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 28
    assert any("gpt2" in line and "124,439,808" in line for line in lines)
    assert answer(["count", "--list", "--json"]) == 0
    assert all(one["source"] for one in json.loads(capsys.readouterr().out))


def test_a_config_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    (paper,) = data(capsys, "scale=paper", "model.bias=false")
    assert paper["parameters"]["total"] == 10_745_088
    assert paper["unidentified"]["total"] == 451_364
    assert paper["unidentified"]["lower_bound"]
    both = data(capsys, "gpt2", "model.n_layer=2", "model.n_head=2")
    assert [one["name"] for one in both] == ["GPT-2 (small)", "model.n_layer=2 model.n_head=2"]


def test_a_config_file_and_a_checkpoint_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path / "tiny", LLAMA)
    (whole,) = data(capsys, str(folder))
    (config,) = data(capsys, str(folder / "config.json"))
    assert whole["unidentified"] == config["unidentified"]
    assert any("sizes agree" in note for note in whole["notes"])


@pytest.mark.parametrize(
    ("config", "changes", "said"),
    [
        ({"vocab_size": 41}, {}, r"embed_tokens.weight is [40, 16], the config says [41, 16]"),
        ({"num_hidden_layers": 3}, {}, "tensors of 2 layers, the config says 3"),
        ({"num_hidden_layers": 1}, {"model__norm__weight": None}, "of more than 1 layers, the config says 1"),
        ({}, {"model__layers__0__mlp__up_proj__bias": (24,)}, "(+24)"),
    ],
)
def test_sizes_that_contradict_the_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    folder = checkpoint(tmp_path / "tiny", LLAMA | config, **changes)
    assert answer(["count", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "the config describes" in error
    assert said in error
    assert error.count("\n") == 1


def test_a_tied_head_may_be_stored_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (once,) = data(
        capsys, str(checkpoint(tmp_path / "once", LLAMA | {"tie_word_embeddings": True}, lm_head__weight=None))
    )
    (twice,) = data(capsys, str(checkpoint(tmp_path / "twice", LLAMA | {"tie_word_embeddings": True})))
    assert once["parameters"] == twice["parameters"]
    assert any("second time" in note for note in twice["notes"])


def test_mask_buffers_are_no_parameters_and_biases_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GPT-2's file has h.0.attn.bias, a mask of [1, 1, T, T], beside h.0.attn.c_attn.bias."""
    import torch
    from safetensors.torch import save_file

    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 6, "vocab_size": 20}
    shapes = {"wte.weight": (20, 8), "wpe.weight": (6, 8), "h.0.attn.bias": (1, 1, 6, 6), "h.0.attn.masked_bias": (1,)}
    for name, rows, columns in (
        ("attn.c_attn", 8, 24),
        ("attn.c_proj", 8, 8),
        ("mlp.c_fc", 8, 32),
        ("mlp.c_proj", 32, 8),
    ):
        shapes |= {f"h.0.{name}.weight": (rows, columns), f"h.0.{name}.bias": (columns,)}
    for name in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        shapes |= {f"{name}.weight": (8,), f"{name}.bias": (8,)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    (found,) = data(capsys, str(tmp_path))
    assert found["parameters"]["total"] == 20 * 8 + 6 * 8 + 12 * 64 + 13 * 8 + 2 * 8
    assert any("sizes agree" in note for note in found["notes"])


def test_a_run_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From its config.yaml while it has no checkpoint yet; the same as from the words that it was made of."""
    from identcli.config.preflight import single
    from identcli.store import record

    words = ["model.n_layer=1", "data=markov"]
    record.write_config(tmp_path, single(words).config.to_dict())
    record.write_status(tmp_path, state="running", step=0, steps=10)
    (run,), (config,) = data(capsys, str(tmp_path)), data(capsys, *words)
    assert run["unidentified"] == config["unidentified"]
    assert run["parameters"] == config["parameters"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "error: which model? Name one of ident count --list"),
        (["gpt3"], "error: gpt3: no file, no folder and no built-in model. Did you mean gpt2"),
        (["gpt2", "--families", "qk,ovv"], "error: --families ovv: no such family; did you mean ov?"),
        (["gpt2", "--outputs", "probs"], "error: --outputs probs: must be log-probs or logits"),
        (["gpt2", "--epsilon", "0"], "error: --epsilon 0: must be positive or zero"),
        (["deepseek-v3", "--equivalent"], "error: --equivalent: DeepSeek-V3 has cross attention, latents or norms"),
        (["model.n_layr=2"], "error: model.n_layr"),
    ],
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert answer(["count", *words]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(line)
    assert shown.err.count("\n") == 1
    assert not shown.out


def test_a_missing_key_is_named_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({key: value for key, value in LLAMA.items() if key != "vocab_size"}))
    assert answer(["count", str(file)]) == 2
    assert "vocab_size (class default 32000)" in capsys.readouterr().err
    (assumed,) = data(capsys, str(file), "--assume", "vocab_size")
    assert any("vocab_size = 32000" in note for note in assumed["notes"])


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["count", "--help"]) == 0
    assert capsys.readouterr().out.count("ident count ") >= 7

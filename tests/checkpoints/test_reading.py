"""Checkpoints of every kind that people have, and every kind of broken one: the same numbers, or one clear line."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cases import normal
from checkpoints import files
from identcli.architecture.errors import UserError
from identcli.checkpoints.audit import Audit, audit
from identcli.checkpoints.checkpoint import open_checkpoint
from identcli.checkpoints.locate import Flags, NoAttention
from identcli.checkpoints.tensor_file import read


def slow_imbalance(tensors: dict[str, torch.Tensor], layer: int, group: int) -> tuple[float, float, float, float]:
    """β, relative imbalance, τ of QK, and relative imbalance of OV of one kv group, head by head."""
    m, D = files.H // files.G, files.D
    q, k, v, o = (tensors[f"model.layers.{layer}.self_attn.{x}_proj.weight"].double() for x in ("q", "k", "v", "o"))
    heads = range(group * m, (group + 1) * m)
    QQ = sum(q[h * D : (h + 1) * D] @ q[h * D : (h + 1) * D].T for h in heads)
    OO = sum(o[:, h * D : (h + 1) * D].T @ o[:, h * D : (h + 1) * D] for h in heads)
    KK, VV = (w[group * D : (group + 1) * D] @ w[group * D : (group + 1) * D].T for w in (k, v))
    qk, ov = QQ - KK, VV - OO
    return (
        float(qk.norm()),
        float(qk.norm() / (QQ.norm() + KK.norm())),
        float(qk.trace()),
        float(ov.norm() / (VV.norm() + OO.norm())),
    )


def check(found: Audit, tensors: dict[str, torch.Tensor]) -> None:
    rows = {(row.circuit, row.layer, row.group): row for row in found.rows}
    assert len(rows) == 2 * files.LAYERS * files.G
    for layer in range(files.LAYERS):
        for group in range(files.G):
            beta, qk, tau, ov = slow_imbalance(tensors, layer, group)
            row = rows["qk", layer, group]
            assert (row.beta, row.imbalance, row.tau) == pytest.approx((beta, qk, tau), rel=1e-12)
            assert rows["ov", layer, group].imbalance == pytest.approx(ov, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_float_is_read_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = files.llama(dtype)
    check(audit(files.write_folder(tmp_path / "a", tensors)), tensors)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_give_the_same_numbers_as_one_file(suffix: str, tmp_path: Path) -> None:
    tensors = files.llama()
    check(audit(files.write_shards(tmp_path / "a", tensors, suffix)), tensors)


@pytest.mark.parametrize("prefix", ["", "base.", "language_model.model.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_pytorch_files_of_both_formats_and_any_prefix(prefix: str, new: bool, tmp_path: Path) -> None:
    tensors = files.llama()
    state = OrderedDict((prefix + name, tensor) for name, tensor in tensors.items())
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    check(audit(tmp_path / "a.pt", Flags("llama", files.H)), tensors)


def test_views_and_parameters_in_a_pickle_are_read_where_they_lie(tmp_path: Path) -> None:
    tensors = files.llama()
    odd = dict(tensors)
    for name, tensor in tensors.items():
        if "q_proj" in name:  # transposed, and the second half of a larger storage
            odd[name] = torch.nn.Parameter(
                torch.cat([torch.zeros_like(tensor), tensor]).T.contiguous().T[files.H * files.D :]
            )
    torch.save(odd, tmp_path / "a.pt")
    check(audit(tmp_path / "a.pt", Flags("llama", files.H)), tensors)


def test_nanogpt_tells_its_own_sizes_and_its_masks_are_no_biases(tmp_path: Path) -> None:
    tensors = {"_orig_mod." + name: tensor for name, tensor in files.nanogpt().items()}
    optimizer = {"state": {0: {"exp_avg": torch.ones(3)}}}
    torch.save(
        {"model": tensors, "optimizer": optimizer, "model_args": files.NANOGPT, "iter_num": 5}, tmp_path / "ckpt.pt"
    )
    found = audit(tmp_path / "ckpt.pt")
    assert (found.layout, len(found.rows)) == ("nanogpt", 2 * 2 * 4)
    assert found.moves == {"qk": "GL(6)", "ov": "GL(6)"}
    assert not any("bias_k" in skipped.why for skipped in found.skipped)


def test_the_shape_of_c_attn_tells_gpt2_from_nanogpt(tmp_path: Path) -> None:
    """Conv1D stores [in, out]; the output matrix is square and can't tell."""
    config = {"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 4, "vocab_size": files.V, "n_positions": 16}
    linear = {name: tensor.clone() for name, tensor in files.nanogpt().items()}
    conv = {n: t.T.contiguous() if n.endswith("weight") and "attn" in n else t for n, t in linear.items()}
    a = audit(files.write_folder(tmp_path / "a", linear, config))
    b = audit(files.write_folder(tmp_path / "b", conv, config))
    assert (a.layout, b.layout) == ("nanogpt", "gpt2")
    assert [row.beta for row in a.rows] == [row.beta for row in b.rows]


def test_multihead_attention_of_torch(tmp_path: Path) -> None:
    layer = torch.nn.TransformerEncoderLayer(24, 4, 30)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    found = audit(tmp_path / "a.pt", Flags("torch", 4))
    q, k, _ = model.layers[1].self_attn.in_proj_weight.detach().double().chunk(3)
    row = next(row for row in found.rows if (row.circuit, row.layer, row.group) == ("qk", 1, 2))
    assert row.tau == pytest.approx(float(q[12:18].square().sum() - k[12:18].square().sum()), rel=1e-10)
    alone = torch.nn.MultiheadAttention(24, 4)
    torch.save(alone.state_dict(), tmp_path / "b.pt")
    assert len(audit(tmp_path / "b.pt", Flags("torch", 4)).rows) == 8


def test_a_config_that_leaves_out_what_an_audit_does_not_need(tmp_path: Path) -> None:
    tensors = files.llama()
    config = {key: value for key, value in files.CONFIG.items() if key not in ("vocab_size", "tie_word_embeddings")}
    check(audit(files.write_folder(tmp_path / "a", tensors, config | {"hidden_act": "of the future"})), tensors)


# --- what is wrong ---------------------------------------------------------------------------------------------------


def fails(path: Path, match: str, flags: Flags = Flags()) -> str:  # noqa: B008
    with pytest.raises(UserError, match=match) as caught:
        audit(path, flags)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_missing_shard_a_moved_tensor_and_one_that_never_was_are_three_things(tmp_path: Path) -> None:
    tensors = files.llama()
    one = files.write_shards(tmp_path / "one", tensors)
    (one / "model-00002-of-00002.safetensors").rename(one / "renamed.safetensors")
    half = len(tensors) - len(tensors) // 2
    text = fails(one, "missing shard: model-00002-of-00002.safetensors")
    assert f"{half} of {len(tensors)} tensors" in text
    assert "not in the index: renamed.safetensors" in text

    two = files.write_shards(tmp_path / "two", tensors)
    index = two / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    last = "model.layers.2.self_attn.o_proj.weight"
    content["weight_map"][last] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    assert "it lies in model-00002-of-00002.safetensors" in fails(two, f"lacks the tensor {last}")

    three = files.write_folder(tmp_path / "three", {n: t for n, t in tensors.items() if n != last.replace("o_", "k_")})
    fails(three, "the checkpoint has no tensor model.layers.2.self_attn.k_proj.weight")
    fewer = files.write_folder(tmp_path / "fewer", {n: t for n, t in tensors.items() if ".2." not in n})
    fails(fewer, "the checkpoint has no tensor model.layers.2.self_attn.q_proj.weight")
    biased = files.write_folder(tmp_path / "biased", tensors, files.CONFIG | {"attention_bias": True})
    fails(biased, "the checkpoint has no tensor model.layers.0.self_attn.q_proj.bias")


def test_stray_files_are_not_merged(tmp_path: Path) -> None:
    tensors = files.llama()
    path = files.write_shards(tmp_path / "a", tensors)
    save_file(files.llama(seed=5), path / "model.safetensors")
    found = audit(path)
    check(found, tensors)
    assert "model.safetensors: not read, since the index doesn't name it" in found.notes


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "is a Git LFS pointer"),
        (b"", "is empty"),
        (b"<html>not found</html>", "not a (safetensors|PyTorch) file"),
    ],
)
def test_files_that_are_no_weights(name: str, content: bytes, match: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    fails(tmp_path, match)


def test_truncated_files_say_what_was_promised_and_what_is_there(tmp_path: Path) -> None:
    path = files.write_folder(tmp_path / "a", files.llama())
    file = path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    fails(path, f"truncated: its header promises {len(whole)} bytes, the file has {len(whole) - 100}")
    file.write_bytes(whole[:50])
    fails(path, "truncated: its header ends at byte")
    for new, match in ((True, "truncated"), (False, "can't be read|damaged|truncated")):
        torch.save(files.llama(), tmp_path / "b.pt", _use_new_zipfile_serialization=new)
        content = (tmp_path / "b.pt").read_bytes()
        (tmp_path / "b.pt").write_bytes(content[: len(content) // 2])
        fails(tmp_path / "b.pt", match, Flags("llama", files.H))


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this must never be printed",))


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_code_in_a_pickle_is_refused_and_never_run(
    new: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"model": files.llama(), "x": Code()}, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    fails(tmp_path / "a.pt", "its pickle needs print, .*refused")
    torch.save({"model": files.llama(), "best": np.float64(1)}, tmp_path / "b.pt", _use_new_zipfile_serialization=new)
    fails(tmp_path / "b.pt", "its pickle needs numpy")
    assert capsys.readouterr().out == ""


def test_packed_and_fp8_weights_are_listed_and_never_judged_raw(tmp_path: Path) -> None:
    tensors = files.llama()
    at = "model.layers.0.self_attn."
    packed = dict(tensors)
    packed[f"{at}q_proj.qweight"] = torch.zeros(3, 4, dtype=torch.int32)
    del packed[f"{at}q_proj.weight"]
    packed["model.layers.1.self_attn.k_proj.weight"] = tensors["model.layers.1.self_attn.k_proj.weight"].to(
        torch.float8_e4m3fn
    )
    packed["model.layers.2.self_attn.v_proj.weight"] = torch.zeros(7, 1, dtype=torch.uint8)
    found = audit(files.write_folder(tmp_path / "a", packed))
    assert {(row.circuit, row.layer) for row in found.rows} == {("qk", 2), ("ov", 0), ("ov", 1)}
    whys = " ".join(skipped.why for skipped in found.skipped)
    for said in ("packed weights (qweight)", "fp8 without its scales applied (dtype F8_E4M3)", "(dtype U8)"):
        assert said in whys
    all_packed = {n: t.to(torch.float8_e4m3fn) for n, t in tensors.items()}
    with pytest.raises(NoAttention, match="nothing that can be audited.*fp8"):
        audit(files.write_folder(tmp_path / "b", all_packed))


def test_values_that_are_not_finite_are_null_and_said(tmp_path: Path) -> None:
    tensors = files.llama()
    tensors["model.layers.1.self_attn.q_proj.weight"][0, 0] = torch.nan
    found = audit(files.write_folder(tmp_path / "a", tensors))
    bad = [(row.circuit, row.layer, row.group) for row in found.rows if not np.isfinite(row.imbalance)]
    assert bad == [("qk", 1, 0)]
    assert any("not finite" in note for note in found.notes)
    assert found.summary()["circuits"]["qk"]["imbalance_max"] < 1


def test_no_attention_and_unknown_attention_are_told_apart(tmp_path: Path) -> None:
    save_file({"conv.weight": normal(3, 3), "fc.weight": normal(2, 2)}, tmp_path / "a.safetensors")
    with pytest.raises(NoAttention, match="no attention in it: 2 tensors"):
        audit(tmp_path / "a.safetensors")
    save_file({"h.0.attn.weird.weight": normal(3, 3)}, tmp_path / "b.safetensors")
    text = fails(tmp_path / "b.safetensors", "attention under names of no known layout")
    assert "h.0.attn.weird.weight" in text
    resnet = files.write_folder(tmp_path / "c", {"conv.weight": normal(3, 3)}, {"model_type": "resnet"})
    with pytest.raises(NoAttention, match="no attention in it"):
        audit(resnet)


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (Flags(), "no config.json beside it: say --layout and --heads .*llama"),
        (Flags("llama"), "say --heads"),
        (Flags("lama", 4), "no such layout.*Did you mean llama"),
        (Flags("bert", 4), "no tensors of its names; they are those of llama"),
        (Flags("llama", 5), r"--heads 5: .*o_proj.weight has 24 rows of all heads, and 24 is no multiple of 5"),
        (Flags("llama", 24), "heads of 1 leave|no multiple|kv groups"),
        (Flags("llama", 4, 4), "4 kv groups, but .*k_proj.weight holds 2"),
        (Flags("glm", 4), "how many\\? --rotary N"),
    ],
)
def test_without_a_config_nothing_is_guessed(flags: Flags, match: str, tmp_path: Path) -> None:
    save_file(files.llama(), tmp_path / "a.safetensors")
    if flags == Flags("llama", 24):  # 24 heads of size 1 fit these shapes: a config would have to object
        with pytest.raises(UserError):
            audit(tmp_path / "a.safetensors", flags)
    else:
        fails(tmp_path / "a.safetensors", match, flags)


def test_flags_or_shapes_that_contradict_the_config_are_refused(tmp_path: Path) -> None:
    path = files.write_folder(tmp_path / "a", files.llama())
    fails(path, "--heads 8: .*config.json says 4", Flags(heads=8))
    two = files.write_folder(tmp_path / "b", files.llama(), files.CONFIG | {"num_attention_heads": 2})
    fails(two, r"k_proj.weight is \[12, 24\]; 2 heads of 12 in a width of 24 need \[24, 24\]")
    wide = files.write_folder(tmp_path / "c", files.llama(), files.CONFIG | {"hidden_size": 48})
    fails(wide, r"is \[24, 24\]; 4 heads and 2 kv groups of 12 in a width of 48 need \[48, 48\]")
    unknown = files.write_folder(tmp_path / "d", files.llama(), files.CONFIG | {"model_type": "mystery"})
    fails(unknown, "model_type 'mystery' is not known: say .* --layout and --heads")
    check(audit(unknown, Flags("llama", 4)), files.llama())


def test_paths_that_are_no_checkpoints(tmp_path: Path) -> None:
    path = files.write_folder(tmp_path / "model", files.llama())
    fails(tmp_path / "modl", "no such file or folder; nearest: .*model")
    fails(path / "1_Pooling", "no checkpoint there")
    fails(path / "config.json", "a config, not weights")
    (tmp_path / "x.gguf").write_bytes(b"GGUF0000000")
    fails(tmp_path / "x.gguf", "a GGUF file")
    (tmp_path / "two").mkdir()
    for name in ("a", "b"):
        save_file(files.llama(), tmp_path / "two" / f"{name}.safetensors")
    fails(tmp_path / "two", "several files of weights")


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but headers before an audit; and of the file only the tensors of attention, each read once."""
    seen: list[str] = []
    checkpoint = open_checkpoint(files.write_folder(tmp_path / "a", files.llama()))
    names = {entry.start: name for name, entry in checkpoint.entries.items()}
    from identcli.checkpoints import audit as module

    monkeypatch.setattr(module, "read", lambda entry: (seen.append(names[entry.start]), read(entry))[1])
    module.audit_opened(checkpoint)
    assert sorted(seen) == sorted(name for name in checkpoint.entries if "self_attn" in name)

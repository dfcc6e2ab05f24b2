"""Rebalanced files: balanced, the same function, all other bytes as they were, and nothing half-written."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from cases import normal
from checkpoints import files
from identcli.architecture.errors import UserError
from identcli.checkpoints import rebalance as module
from identcli.checkpoints.audit import audit
from identcli.checkpoints.checkpoint import open_checkpoint
from identcli.checkpoints.locate import Flags, NoAttention
from identcli.checkpoints.outputs import compare
from identcli.checkpoints.rebalance import CERTIFICATE, rebalance
from identcli.checkpoints.tensor_file import read
from identcli.models.gpt import GPT, GPTConfig
from identcli.models.weights import load_weights

LLAMA = Flags("llama", files.H)


def moved_and_kept(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Attention has moved; every other tensor has the same bytes, and all their names, order, shapes and dtypes."""
    assert list(before) == list(after)
    for name, tensor in before.items():
        assert (tensor.dtype, tensor.shape) == (after[name].dtype, after[name].shape)
        same = torch.equal(tensor.contiguous().view(torch.uint8), after[name].contiguous().view(torch.uint8))
        assert same == (".self_attn." not in name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_folder_with_everything_beside_it(dtype: torch.dtype, tmp_path: Path) -> None:
    source = files.write_folder(tmp_path / "in", files.llama(dtype))
    certificate = rebalance(source, tmp_path / "out")
    moved_and_kept(load_file(source / "model.safetensors"), load_file(tmp_path / "out/model.safetensors"))
    header = [(p / "model.safetensors").read_bytes()[:2000] for p in (source, tmp_path / "out")]
    assert header[0] == header[1]
    with safe_open(tmp_path / "out/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "made by": "a test"}
    inside = {str(p.relative_to(source)): p.read_bytes() for p in source.rglob("*") if p.is_file()}
    written = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert written == {*inside, CERTIFICATE}
    for name in ("config.json", "tokenizer.json", "1_Pooling/config.json"):
        assert (tmp_path / "out" / name).read_bytes() == inside[name]

    ov = certificate.summary()["ov"]
    assert ov["imbalance_after_max"] < 1e-14
    assert ov["change_max"] < 1e-13  # rounding of float64 times the condition of products of random matrices
    # Rounding to a dtype changes each number by up to half its epsilon, and the product by about as much.
    eps = torch.finfo(dtype).eps
    assert ov["imbalance_stored_max"] < 4 * eps
    assert ov["change_stored_max"] < 4 * max(eps, 1e-15) + 1e-13
    if dtype != torch.float64:
        assert ov["change_stored_max"] > eps / 100
    told = json.loads((tmp_path / "out" / CERTIFICATE).read_text())
    assert told["circuits"]["ov"]["imbalance_after_max"] == ov["imbalance_after_max"]
    assert len(told["pairs"]) == 2 * files.LAYERS * files.G


def test_rotary_pairs_are_balanced_as_far_as_they_can_be_and_no_further(tmp_path: Path) -> None:
    source = files.write_folder(tmp_path / "in", files.llama(torch.float64))
    rebalance(source, tmp_path / "out")
    tensors = load_file(tmp_path / "out/model.safetensors")
    for layer in range(files.LAYERS):
        q, k = (tensors[f"model.layers.{layer}.self_attn.{x}_proj.weight"] for x in "qk")
        u = q.view(files.G, 2, files.D, files.E).square().sum((1, 3))
        v = k.view(files.G, files.D, files.E).square().sum(2)
        half = files.D // 2
        torch.testing.assert_close(u[:, :half] + u[:, half:], v[:, :half] + v[:, half:], rtol=1e-13, atol=0)
    again = rebalance(tmp_path / "out", tmp_path / "again")
    # What is balanced stays: the second time nothing moves but by rounding.
    for name, tensor in load_file(tmp_path / "again/model.safetensors").items():
        torch.testing.assert_close(tensor, tensors[name], rtol=1e-12, atol=1e-13)
    assert again.summary()["qk"]["imbalance_after_median"] > 0.01


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_keep_their_names_and_their_index(suffix: str, tmp_path: Path) -> None:
    source = files.write_shards(tmp_path / "in", files.llama(), suffix)
    rebalance(source, tmp_path / "out")
    assert {p.name for p in source.iterdir()} | {CERTIFICATE} == {p.name for p in (tmp_path / "out").iterdir()}
    for file in source.glob(f"*.{suffix}"):
        other = tmp_path / "out" / file.name
        load = load_file if suffix == "safetensors" else lambda path: torch.load(path, weights_only=True)
        moved_and_kept(load(file), load(other))
        assert file.stat().st_size == other.stat().st_size
    rows = [row for row in audit(tmp_path / "out").rows if row.circuit == "ov"]
    assert max(row.imbalance for row in rows) < 1e-6


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_pytorch_file_keeps_all_that_is_around_the_weights(new: bool, tmp_path: Path) -> None:
    optimizer = {"state": {0: {"exp_avg": torch.ones(3)}}, "lr": 1e-3}
    content = {"model": files.llama(), "optimizer": optimizer, "iter_num": 7}
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    rebalance(tmp_path / "a.pt", tmp_path / "b.pt", LLAMA)
    after = torch.load(tmp_path / "b.pt", weights_only=True)
    moved_and_kept(content["model"], after["model"])
    assert after["iter_num"] == 7
    assert torch.equal(after["optimizer"]["state"][0]["exp_avg"], torch.ones(3))
    assert json.loads((tmp_path / "b.pt.certificate.json").read_text())["layout"] == "llama"
    if new:
        with zipfile.ZipFile(tmp_path / "b.pt") as archive:
            assert archive.testzip() is None  # all checksums are right


def test_a_nanogpt_file_is_the_same_function_with_all_biases_carried(tmp_path: Path) -> None:
    tensors = {"_orig_mod." + name: tensor for name, tensor in files.nanogpt(dtype=torch.float64).items()}
    torch.save({"model": tensors, "model_args": files.NANOGPT}, tmp_path / "ckpt.pt")
    certificate = rebalance(tmp_path / "ckpt.pt", tmp_path / "new.pt", check_outputs=compare)
    config = GPTConfig(files.V, n_layer=2, n_head=4, n_embd=24, block_size=16)
    tokens = torch.arange(16)[None]
    said = []
    for name in ("ckpt.pt", "new.pt"):
        model = GPT(config).double().eval()
        load_weights(model, torch.load(tmp_path / name, weights_only=True)["model"])
        said.append(model(tokens)[0])
    assert (said[0] - said[1]).abs().max() < 1e-12 * said[0].abs().max()
    assert max(row.imbalance for row in audit(tmp_path / "new.pt").rows) < 1e-14
    outputs = certificate.outputs
    assert outputs is not None
    assert outputs["exact"] < 1e-12 * outputs["scale"]
    assert outputs["stored"] < outputs["baseline_float32"]


def test_only_the_circuit_that_was_asked_for_moves(tmp_path: Path) -> None:
    source = files.write_folder(tmp_path / "in", files.llama())
    rebalance(source, tmp_path / "out", circuits=["ov"])
    before, after = (load_file(p / "model.safetensors") for p in (source, tmp_path / "out"))
    changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"v_proj", "o_proj"}


def test_pairs_without_a_balanced_point_keep_their_bits_and_are_named(tmp_path: Path) -> None:
    tensors = files.llama()
    tensors["model.layers.0.self_attn.v_proj.weight"][: files.D] = 0  # group 0: a product of rank 0
    tensors["model.layers.1.self_attn.k_proj.weight"][files.D] = 0  # group 1: one row of its first rotated pair …
    tensors["model.layers.1.self_attn.k_proj.weight"][files.D + files.D // 2] = 0  # … and the other
    tensors["model.layers.2.self_attn.q_proj.weight"][0, 0] = torch.inf
    source = files.write_folder(tmp_path / "in", tensors)
    certificate = rebalance(source, tmp_path / "out")
    stayed = {(row.circuit, row.layer, row.group): row.why for row in certificate.rows if row.why}
    assert set(stayed) == {("ov", 0, 0), ("qk", 1, 1), ("qk", 2, 0)}
    assert "full rank" in stayed["ov", 0, 0]
    assert "zero on one side" in stayed["qk", 1, 1]
    assert "not finite" in stayed["qk", 2, 0]
    assert sum("left as it is" in skipped.why for skipped in certificate.skipped) == 3
    after = load_file(tmp_path / "out/model.safetensors")
    for name, rows in (
        ("0.self_attn.v_proj", slice(0, 6)),
        ("1.self_attn.k_proj", slice(6, 12)),
        ("2.self_attn.q_proj", slice(0, 12)),
    ):
        old, new = (t[f"model.layers.{name}.weight"] for t in (tensors, after))
        assert torch.equal(old[rows], new[rows])
        assert not torch.equal(old, new)


def test_values_that_the_dtype_can_not_hold_are_left(tmp_path: Path) -> None:
    tensors = files.llama(torch.float16)
    q, k = (tensors[f"model.layers.0.self_attn.{x}_proj.weight"] for x in "qk")
    for row in (0, files.D // 2):  # the first rotated pair of rows of group 0, in both of its heads
        q[[row, row + files.D]] = 0
        q[row, 0] = 6e4  # balancing makes it 24^(1/4) times larger, and float16 ends at 65504
        k[row] = 6e4
    source = files.write_folder(tmp_path / "in", tensors)
    certificate = rebalance(source, tmp_path / "out")
    after = load_file(tmp_path / "out/model.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in after.values())
    assert [(row.layer, row.group) for row in certificate.rows if "overflow" in row.why] == [(0, 0)]
    at = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(after[at][: 2 * files.D], tensors[at][: 2 * files.D])


# --- adapters --------------------------------------------------------------------------------------------------------


def adapter(path: Path, rank: int = 3) -> dict[str, Tensor]:
    path.mkdir()
    tensors = {}
    for layer in range(2):
        for number, (name, columns, rows) in enumerate((("q_proj", 24, 24), ("v_proj", 24, 12))):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}."
            tensors[f"{at}lora_A.weight"] = normal(rank, columns, seed=10 * layer + number)
            tensors[f"{at}lora_B.weight"] = 0.1 * normal(rows, rank, seed=10 * layer + number + 50)
    tensors["base_model.model.score.modules_to_save.weight"] = normal(2, 24)
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank}))
    return tensors


def test_adapters_are_audited_and_balanced(tmp_path: Path) -> None:
    tensors = adapter(tmp_path / "in")
    found = audit(tmp_path / "in")
    assert {(row.circuit, row.part, row.layer) for row in found.rows} == {
        ("lora", f"self_attn.{name}", layer) for name in ("q_proj", "v_proj") for layer in range(2)
    }
    A, B = (tensors[f"base_model.model.model.layers.1.self_attn.v_proj.lora_{x}.weight"] for x in "AB")
    row = next(row for row in found.rows if (row.part, row.layer) == ("self_attn.v_proj", 1))
    C = A @ A.T - B.T @ B
    assert row.beta == pytest.approx(float(C.norm()), rel=1e-12)
    assert row.spectrum == pytest.approx(torch.linalg.svdvals(B @ A)[:3].tolist(), rel=1e-10)

    rebalance(tmp_path / "in", tmp_path / "out")
    after = load_file(tmp_path / "out/adapter_model.safetensors")
    for name in tensors:
        if "lora_A" in name:
            old = tensors[name.replace("_A", "_B")] @ tensors[name]
            torch.testing.assert_close(after[name.replace("_A", "_B")] @ after[name], old, rtol=1e-12, atol=1e-13)
    assert max(row.imbalance for row in audit(tmp_path / "out").rows) < 1e-14
    assert (tmp_path / "out/adapter_config.json").exists()


def test_a_fresh_adapter_has_nothing_to_balance(tmp_path: Path) -> None:
    tensors = adapter(tmp_path / "in")
    fresh = {name: torch.zeros_like(t) if "lora_B" in name else t for name, t in tensors.items()}
    save_file(fresh, tmp_path / "in/adapter_model.safetensors")
    certificate = rebalance(tmp_path / "in", tmp_path / "out")
    assert all("full rank" in row.why for row in certificate.rows)


# --- what is wrong ---------------------------------------------------------------------------------------------------


def test_nothing_is_ever_overwritten_or_written_inside_the_source(tmp_path: Path) -> None:
    source = files.write_folder(tmp_path / "in", files.llama())
    (tmp_path / "out").mkdir()
    for out, match in (
        (tmp_path / "out", "exists already"),
        (source, "exists already"),
        (source / "new", "lies inside the checkpoint"),
        (tmp_path / "nowhere" / "out", "there is no folder"),
    ):
        with pytest.raises(UserError, match=match):
            rebalance(source, out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), RuntimeError("a bug")])
def test_a_failure_in_the_middle_leaves_nothing(
    error: BaseException | type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = files.write_folder(tmp_path / "in", files.llama())
    before = (source / "model.safetensors").read_bytes()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, "write", fail)
    with pytest.raises((KeyboardInterrupt, UserError, RuntimeError)) as caught:
        rebalance(source, tmp_path / "out")
    if isinstance(error, OSError):
        assert "No space left" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    assert (source / "model.safetensors").read_bytes() == before


def test_without_anything_to_balance_nothing_is_written(tmp_path: Path) -> None:
    save_file({"fc.weight": normal(3, 3)}, tmp_path / "a.safetensors")
    with pytest.raises(NoAttention):
        rebalance(tmp_path / "a.safetensors", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_other_copies_of_the_weights_are_pointed_out(tmp_path: Path) -> None:
    source = files.write_folder(tmp_path / "in", files.llama())
    torch.save(files.llama(), source / "pytorch_model.bin")
    certificate = rebalance(source, tmp_path / "out")
    assert any(note.startswith("pytorch_model.bin: copied as it is") for note in certificate.notes)
    new = open_checkpoint(tmp_path / "out")
    assert read(new.entry("model.norm.weight")).dtype == torch.float32

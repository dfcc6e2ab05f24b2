"""`ident rebalance` as a user meets it: the certificate on screen and on disk, and one line for what is wrong."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from cases import normal
from checkpoints import files
from checkpoints.twins import TWINS
from identcli.cli.app import answer


def test_the_certificate_is_on_screen_and_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = files.write_folder(tmp_path / "in", files.llama()), tmp_path / "out"
    assert answer(["rebalance", str(source), str(out)]) == 0
    told = capsys.readouterr().out
    for said in ("qk: 6 of 6 pairs moved", "ov: 6 of 6 pairs moved", "imbalance, median", "change of products"):
        assert said in told
    stored = json.loads((out / "certificate.json").read_text())
    assert stored["circuits"]["ov"]["imbalance_after_max"] < 1e-14
    assert answer(["rebalance", str(source), str(tmp_path / "again"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == stored["pairs"]


@pytest.mark.parametrize("name", ["bert", "qwen2", "t5"])
def test_outputs_of_both_models_beside_the_baseline(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TWINS[name].model().float().save_pretrained(tmp_path / "in")
    assert answer(["rebalance", str(tmp_path / "in"), str(tmp_path / "out"), "--check-outputs", "--json"]) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    # transformers computes norms and softmax in float32 even in a float64 model.
    assert outputs["exact"] < 3e-6 * outputs["scale"]
    assert outputs["stored"] < 3e-6 * outputs["scale"]
    assert outputs["stored_in_float32"] < 5e-6 * outputs["scale"]
    assert 0 < outputs["baseline_float32"] < 5e-6 * outputs["scale"]


def test_what_transformers_can_not_run_is_told_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = files.llama()
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "a.safetensors")
    words = ["rebalance", str(tmp_path / "a.safetensors"), str(tmp_path / "out"), "--layout", "llama", "--heads", "4"]
    assert answer([*words, "--check-outputs"]) == 2
    assert "--check-outputs needs a folder with a config.json" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = files.write_folder(tmp_path / "in", files.llama())
    save_file({"fc.weight": normal(3, 3)}, tmp_path / "plain.safetensors")
    for words, status, said in (
        ([str(source), str(source)], 2, "exists already"),
        ([str(tmp_path / "plain.safetensors"), str(tmp_path / "out")], 1, "no attention in it"),
        ([str(tmp_path / "nothing"), str(tmp_path / "out")], 2, "no such file or folder"),
    ):
        assert answer(["rebalance", *words]) == status
        told = capsys.readouterr()
        assert said in told.err
        assert len(told.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_run_of_ours_becomes_a_folder_that_can_be_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = files.run_folder(tmp_path / "run1", (5, 10))
    assert answer(["rebalance", str(run), str(tmp_path / "out"), "--check-outputs", "--json"]) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    assert outputs["exact"] < 1e-12 * outputs["scale"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("certificate.json", "config.yaml", "model.safetensors")
    ]
    assert answer(["audit", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["circuits"]["qk"]["imbalance_max"] < 1e-6

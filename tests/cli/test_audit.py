"""`ident audit` as a user meets it: tables, JSON, Parquet, several checkpoints, and one line for what is wrong."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from checkpoints import files
from identcli.cli.app import answer
from identcli.store import audits


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return files.write_folder(tmp_path / "model", files.llama())


def test_a_table_by_layers_and_one_by_pairs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["audit", str(model)]) == 0
    told = capsys.readouterr().out
    assert "layout llama, 12 pairs (qk: 3 scaled rotations; ov: GL(6))" in told
    assert "balancing removes 100.0%" in told
    assert answer(["audit", str(model), "--pairs", "--circuit", "ov"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.split()[:2] in [[str(n), str(g)] for n in range(3) for g in range(2)] for line in lines) == 6


def test_json_has_the_summary_and_every_pair(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["audit", str(model), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["summary", "pairs"]
    assert len(told["pairs"]) == 12
    for pair in told["pairs"]:
        assert set(pair) >= {"circuit", "layer", "group", "beta", "imbalance", "norm_aa", "norm_bb", "tau"}
        assert pair["imbalance"] == pytest.approx(pair["beta"] / (pair["norm_aa"] + pair["norm_bb"]))
    assert told["summary"]["circuits"]["qk"]["pairs"] == 6
    assert told["summary"]["not_audited"] == []


def test_undefined_values_are_null_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = files.llama()
    for x in ("q", "k"):
        tensors[f"model.layers.0.self_attn.{x}_proj.weight"].zero_()
    assert answer(["audit", str(files.write_folder(tmp_path / "a", tensors)), "--json"]) == 0
    pair = json.loads(capsys.readouterr().out)["pairs"][0]
    assert (pair["beta"], pair["imbalance"], pair["condition"]) == (0, None, None)


def test_parquet_holds_what_json_says_and_can_be_plotted(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "audit.parquet"
    assert answer(["audit", str(model), "--json", "--parquet", str(file)]) == 0
    pairs = json.loads(capsys.readouterr().out)["pairs"]
    columns, [summary] = audits.read(file)
    assert columns["beta"].tolist() == [pair["beta"] for pair in pairs]
    assert [len(values) for values in columns["spectrum"]] == [6] * 12
    assert summary["layout"] == "llama"
    assert answer(["plot", str(file), "--out", str(tmp_path / "figures")]) == 0
    assert str(tmp_path / "figures" / "heads.png") in capsys.readouterr().out


def test_two_checkpoints_side_by_side(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["rebalance", str(model), str(tmp_path / "new")]) == 0
    capsys.readouterr()
    assert answer(["audit", str(model), str(tmp_path / "new")]) == 0
    told = capsys.readouterr().out
    assert "spectrum changed by" in told
    assert answer(["audit", str(model), str(model), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (first["same_as"], second["same_as"]) == (None, str(model))
    assert first["pairs"] == second["pairs"]


def test_a_run_gives_its_newest_checkpoint_and_with_series_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = files.run_folder(tmp_path / "run1", (2, 10, 100))
    assert answer(["audit", str(run), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["summary"]["checkpoint"].endswith("step-000100")
    file = tmp_path / "a.parquet"
    assert answer(["audit", str(run), "--series", "--parquet", str(file)]) == 0
    told = capsys.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()[1:4]] == ["2", "10", "100"]
    assert "step-000100: the same bytes as" in told.err
    assert sorted(set(audits.read(file)[0]["step"])) == [2, 10, 100]
    assert answer(["plot", str(file)]) == 0
    assert (tmp_path / "figures" / "series.png").exists()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["missing"], 2, "error: missing: no such file or folder"),
        (["plain.safetensors"], 1, "plain.safetensors: no attention in it"),
        (["bare.safetensors"], 2, "error: bare.safetensors: no config.json beside it: say --layout and --heads"),
        (["bare.safetensors", "--layout", "llama", "--heads", "5"], 2, "error: --heads 5:"),
        (["bare.safetensors", "--layout", "llama", "--heads", "four"], 2, "error: --heads four: must be a number"),
        (
            ["bare.safetensors", "--layout", "llama", "--heads", "4", "--circuit", "kv"],
            2,
            "--circuit kv: must be qk or ov",
        ),
        (["bare.safetensors", "--layout", "llama", "--heads", "4/2"], 0, ""),
        (
            ["bare.safetensors", "--layout", "llama", "--heads", "4", "--parquet", "no/a.parquet"],
            2,
            "there is no folder",
        ),
    ],
)
def test_exit_status_and_one_line(
    words: list[str],
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(files.llama(), "bare.safetensors")
    save_file({"fc.weight": torch.ones(2, 2)}, "plain.safetensors")
    assert answer(["audit", *words]) == status
    told = capsys.readouterr()
    assert said in told.err
    if status:
        assert told.out == ""
        assert len(told.err.splitlines()) == 1

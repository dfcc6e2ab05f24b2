"""`ident verify` as a user meets it: tables, JSON, reports, exit statuses."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import combining

import pytest

from identcli.cli.app import answer
from identcli.theory import catalogue
from identcli.theory.claim import Finding

KEYS = ["id", "section", "statement", "predicted", "measured", "tolerance", "holds", "erratum"]


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_the_shape_that_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["verify", "lemmas", "4.5", "general-S", "--json"]) == 0
    found = rows(capsys)
    assert all(list(row) == KEYS for row in found)
    assert {row["section"] for row in found} == {"4.2", "4.5"}
    erratum = next(row["erratum"] for row in found if row["id"] == "six-heads")
    assert list(erratum) == ["printed", "why", "right"]
    assert next(row["erratum"] for row in found if row["id"] == "general-S") is None
    assert all(row["holds"] is True and isinstance(row["measured"], int | float) for row in found)
    assert all(abs(row["measured"] - row["predicted"]) <= row["tolerance"] for row in found)


def test_a_bound_is_written_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["verify", "lemmas", "key-bias-with-sink", "--json"]) == 0
    assert rows(capsys)[0]["predicted"] == "≥ 0.001"


def test_table_and_errata_fit_on_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["verify", "lemmas", "4.5", "4.9", "key-bias-irrelevant"]) == 0
    out = capsys.readouterr().out
    # Σ̄ is two characters on one column.
    assert max(sum(not combining(c) for c in line) for line in out.splitlines()) <= 100
    assert "Errata: what the paper prints" in out
    assert "✓" in out
    assert out.rstrip().endswith("errata of the paper")


def test_a_failing_claim_is_named_and_gives_exit_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = catalogue.lemmas()
    spoilt = replace(whole[0], test=lambda trial: Finding(0, 1, counter=2))
    monkeypatch.setattr(catalogue, "lemmas", lambda: (spoilt, *whole[1:3]))
    assert answer(["verify", "lemmas"]) == 1
    out = capsys.readouterr().out
    assert "✗" in out
    assert f"Fails: {spoilt.id}" in out
    assert answer(["verify", "lemmas", "--json"]) == 1
    assert [row["holds"] for row in rows(capsys)] == [False, True, True]


def test_an_unknown_claim_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["verify", "lemmas", "genral-S"]) == 2
    assert capsys.readouterr().err == "error: genral-S: no such section or claim. Did you mean general-S?\n"


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.md"
    assert answer(["verify", "lemmas", "4.9", "--report", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# The paper's lemmas\n")
    for part in ("| section | claim |", "tolerance 0: a count", "Must fail, and gave", "# Errata", "131,072"):
        assert part in text
    capsys.readouterr()
    assert answer(["verify", "lemmas", "4.1", "--report", str(tmp_path / "none" / "report.md")]) == 2
    assert "can't be written: No such file or directory" in capsys.readouterr().err


def test_list_names_every_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["verify", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(lemma.id in out for lemma in catalogue.lemmas())
    assert "sgd-keeps-beta" in out
    assert "drift-grows-with-lr" in out


def test_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "sweep"):
        assert answer(["verify", command, str(tmp_path)]) == 2
        assert capsys.readouterr().err == f"error: {tmp_path}: no run: there is no status.json in it\n"


def test_lemmas_make_no_optimizer_and_load_no_store() -> None:
    """An optimizer object imports torch._dynamo, 1.4 s; the store's readers load pyarrow."""
    script = (
        "import sys; from identcli.cli.app import answer; code = answer(['verify', 'lemmas', '--json']); "
        "heavy = [m for m in ('torch._dynamo', 'pyarrow', 'matplotlib', 'hydra') if m in sys.modules]; "
        "sys.exit(9 if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert len(json.loads(done.stdout)) > 90

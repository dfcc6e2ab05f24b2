"""Audits as figures: what is drawn is what was stored, and only what the file supports."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from identcli.architecture.errors import UserError
from identcli.figures import audit, draw, style
from identcli.figures.picture import Unsupported
from identcli.store import audits


def stored(path: Path, steps: tuple[int | None, ...] = (None,)) -> Path:
    """Layers 0, 2, 3 with three kv groups; imbalance = 0.1 · layer + 0.01 · group + step / 1000."""
    rows: list[dict[str, Any]] = []
    for step in steps:
        for circuit in ("qk", "ov"):
            for layer in (0, 2, 3):
                for group in range(3):
                    value = float("nan") if (circuit, layer, group) == ("qk", 2, 1) else 0.1 * layer + 0.01 * group
                    numbers = dict.fromkeys(("beta", "norm_aa", "norm_bb", "tau", "removable", "condition"), 1.0)
                    row = {"checkpoint": f"m/{step}", "step": step, "circuit": circuit, "part": "", "layer": layer}
                    row |= {
                        "group": group,
                        "imbalance": value + (step or 0) / 1000,
                        "spectrum": [4.0, 2.0, 1.0 + layer],
                    }
                    rows.append(row | numbers)
    audits.write(path, rows, [{"checkpoint": f"m/{step}"} for step in steps])
    return path


def test_maps_show_every_pair_at_its_layer_and_group(tmp_path: Path) -> None:
    members = audit.load([stored(tmp_path / "a.parquet")])
    with style.applied():
        figure = audit.maps(members).figure
    mesh = figure.axes[0].collections[0]
    table = np.ma.filled(mesh.get_array(), np.nan).reshape(3, 3)
    expected = 0.1 * np.array([[0], [2], [3]]) + 0.01 * np.arange(3)
    expected[1, 1] = np.nan  # undefined stays white
    np.testing.assert_allclose(table, expected)
    figure.canvas.draw()
    assert [text.get_text() for text in figure.axes[0].get_yticklabels() if text.get_text()] == ["0", "2", "3"]


def test_spectra_are_relative_to_the_largest(tmp_path: Path) -> None:
    with style.applied():
        figure = audit.spectra(audit.load([stored(tmp_path / "a.parquet")])).figure
    lines = figure.axes[0].get_lines()
    np.testing.assert_allclose([line.get_ydata() for line in lines], [[1, 0.5, (1 + n) / 4] for n in (0, 2, 3)])


def test_a_series_is_in_the_order_of_its_steps(tmp_path: Path) -> None:
    members = audit.load([stored(tmp_path / "a.parquet", (300, 100, 200))])
    with style.applied():
        figure = audit.series(members).figure
    [line] = figure.axes[1].get_lines()
    np.testing.assert_allclose(line.get_xdata(), [100, 200, 300])
    np.testing.assert_allclose(line.get_ydata(), [0.21 + 0.1 * n for n in (1, 2, 3)])
    with pytest.raises(Unsupported, match="one checkpoint"):
        audit.series(audit.load([stored(tmp_path / "b.parquet")]))


def test_plot_draws_audit_files_and_says_what_it_cannot(tmp_path: Path) -> None:
    drawn = draw([stored(tmp_path / "a.parquet")])
    assert {file.name for file in drawn.files} == {"heads.png", "heads.pdf", "spectra.png", "spectra.pdf"}
    assert drawn.files[0].parent == tmp_path / "figures"
    assert any(note.startswith("not drawn: series") for note in drawn.notes)
    again = draw([tmp_path / "a.parquet"], out=tmp_path / "again")
    assert [f.read_bytes() for f in drawn.files] == [f.read_bytes() for f in again.files]
    with pytest.raises(UserError, match="no such figure; there are .*heads, spectra, series"):
        draw([tmp_path / "a.parquet"], which=["4"])

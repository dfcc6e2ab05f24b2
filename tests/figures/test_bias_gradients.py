"""Fig. 3: the envelopes are those of the stored norms, and an exact zero is shown as one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import FillBetweenPolyCollection

from figures.synthetic import config, write
from identcli.figures import bias_gradients, style
from identcli.figures.data import load
from identcli.figures.picture import Picture, Unsupported


def drawn(*paths: Path) -> Picture:
    with style.applied():
        return bias_gradients.draw(load(paths))


def test_bands_medians_and_means_are_those_over_the_layers(tmp_path: Path) -> None:
    path = write(tmp_path / "run", config("adamw"))
    picture = drawn(path)
    (axes,) = picture.figure.axes
    (run,) = load([path])
    biases = run.biases(["query_norm", "key_norm"])
    assert biases is not None
    bands = [c for c in axes.collections if isinstance(c, FillBetweenPolyCollection)]
    for index, name in enumerate(("query_norm", "key_norm")):
        values = biases[name]
        median, mean = axes.lines[2 * index : 2 * index + 2]
        np.testing.assert_allclose(median.get_xydata(), np.stack([biases.step, np.median(values, axis=1)], axis=1))
        np.testing.assert_allclose(mean.get_ydata(), values.mean(axis=1))
        edge = bands[index].get_paths()[0].vertices
        for step, low, high in zip(biases.step, values.min(axis=1), values.max(axis=1), strict=True):
            at = edge[edge[:, 0] == step, 1]
            assert (at.min(), at.max()) == (low, high)
    ratio = biases["query_norm"].max() / biases["key_norm"].max()
    assert f"{ratio:.1e} times smaller" in picture.notes[0]


def test_an_exact_zero_stands_at_the_foot_but_enters_the_mean_as_zero(tmp_path: Path) -> None:
    def silent(table: str, step: int, columns: dict[str, Any]) -> None:
        if table == "biases":
            columns["key_norm"] = np.array([0.0, 0.0, 3e-9])

    picture = drawn(write(tmp_path / "run", config("sgd"), edit=silent))
    (axes,) = picture.figure.axes
    median, mean = axes.lines[2:4]
    assert "0" in [axes.yaxis.get_major_formatter()(tick) for tick in axes.get_yticks()]
    assert set(median.get_ydata()) == {axes.get_yticks()[0]}
    np.testing.assert_allclose(mean.get_ydata(), 1e-9, rtol=1e-6)
    assert "22 of 66 values of the bias gradients are exactly 0: drawn at the foot of the log axis" in picture.notes


def test_every_key_gradient_zero(tmp_path: Path) -> None:
    def silent(table: str, step: int, columns: dict[str, Any]) -> None:
        if table == "biases":
            columns["key_norm"] = np.zeros(3)

    picture = drawn(write(tmp_path / "run", config("sgd"), edit=silent))
    assert "of a key bias exactly 0" in picture.notes[0]


def test_a_broken_run_says_so_in_its_panel(tmp_path: Path) -> None:
    write(tmp_path / "a", config("sgd"))
    write(tmp_path / "b", config("adamw"), tables=(), state="failed", step=0, error="no memory")
    picture = drawn(tmp_path)
    first, second = picture.figure.axes
    assert [text.get_text() for text in first.texts] == []
    assert [text.get_text() for text in second.texts] == ["failed at step 0: no memory"]
    assert first.get_ylim() == second.get_ylim()


def test_no_biases_and_no_metrics_are_told_apart(tmp_path: Path) -> None:
    settings = config("sgd")
    settings["model"]["bias"] = False
    with pytest.raises(Unsupported, match="the model has none: train with model.bias=true"):
        drawn(write(tmp_path / "a", settings))
    with pytest.raises(Unsupported, match=r"b: no metrics of the bias gradients, which collect=paper"):
        drawn(write(tmp_path / "b", config("sgd"), tables=("train", "heads")))

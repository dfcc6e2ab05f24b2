"""`draw`: which figures come of which data, where the files go, and that the same data give the same bytes."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from figures.synthetic import config, write, write_sweep
from identcli.architecture.errors import UserError
from identcli.figures import FIGURES, draw


def digests(files: list[Path]) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_one_run_gives_the_figures_that_it_can_support_beside_it(tmp_path: Path) -> None:
    run = write(tmp_path / "run1", config("adamw"))
    drawn = draw([run])
    assert [file.name for file in drawn.files] == ["fig2.png", "fig2.pdf", "fig3.png", "fig3.pdf"]
    assert sorted(drawn.files) == sorted((run / "figures").iterdir())
    assert drawn.files[0].read_bytes().startswith(b"\x89PNG")
    assert drawn.files[1].read_bytes().startswith(b"%PDF")
    assert any(note.startswith("not drawn: fig4: ") for note in drawn.notes)
    assert any(note.startswith("fig3: AdamW, decay 0.1, lr 0.001: largest gradient norm") for note in drawn.notes)


def test_the_same_data_give_the_same_bytes_whatever_else_the_process_has_set(tmp_path: Path) -> None:
    """Twice in one process with other settings of matplotlib in between, and in a process with another hash seed."""
    sweep = write_sweep(tmp_path / "s", [(f"lr={lr}", config("sgd", lr=lr)) for lr in (0.5, 0.25)])
    first = digests(draw([sweep], tmp_path / "one", ["3", "4"]).files)
    assert set(first) == {"fig3.png", "fig3.pdf", "fig4.png", "fig4.pdf"}
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "savefig.dpi": 20, "axes.grid": False}):
        assert digests(draw([sweep], tmp_path / "two", ["3"]).files).items() <= first.items()
        assert matplotlib.rcParams["font.size"] == 30
    script = "import sys; from pathlib import Path; from identcli.figures import draw; paths = map(Path, sys.argv[1:]);"
    script += "draw([next(paths)], next(paths), ['4']); assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    environment = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "86400"}
    subprocess.run([sys.executable, "-c", script, sweep, tmp_path / "three"], check=True, env=environment)
    again = digests(sorted((tmp_path / "three").iterdir()))
    assert set(again) == {"fig4.png", "fig4.pdf"}
    assert again.items() <= first.items()


def test_other_data_give_other_bytes(tmp_path: Path) -> None:
    files = [draw([write(tmp_path / str(seed), config(seed=seed))], which=["3"]).files for seed in (1, 2)]
    assert all(a.read_bytes() != b.read_bytes() for a, b in zip(*files, strict=True))


def test_a_figure_asked_for_that_the_data_cant_support_is_refused_and_nothing_written(tmp_path: Path) -> None:
    run = write(tmp_path / "run1", config("adamw"))
    with pytest.raises(UserError, match=r"fig4: .*run1: no two learning rates of one setting"):
        draw([run], which=["4"])
    assert not (run / "figures").exists()


def test_nothing_to_draw_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    run = write(tmp_path / "run1", config("adamw"), tables=("train", "eval"))
    with pytest.raises(
        UserError, match=r"nothing to draw: fig2: .*run1: no metrics of the heads.*collect=paper"
    ) as error:
        draw([run])
    assert "\n" not in str(error.value)
    assert not (run / "figures").exists()


@pytest.mark.parametrize(
    ("asked", "hint"), [("5", "there are 1, 2, 3, 4, intervals"), ("interval", "Did you mean intervals")]
)
def test_an_unknown_figure_is_refused(tmp_path: Path, asked: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        draw([tmp_path], which=[asked])


@pytest.mark.parametrize("written", ["3", "fig3", "Fig. 3"])
def test_a_figure_may_be_written_as_people_do(tmp_path: Path, written: str) -> None:
    run = write(tmp_path / "run1", config("adamw"), tables=("train",))
    with pytest.raises(UserError, match="^fig3: .*run1: no metrics of the bias gradients"):
        draw([run], which=[written])
    assert set(FIGURES) == {"2", "3", "4", "intervals"}


def test_an_out_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    run = write(tmp_path / "run1", config("adamw", steps=3))
    with pytest.raises(UserError, match=r"out.*can't be written"):
        draw([run], tmp_path / "out", ["3"])
    assert (tmp_path / "out").read_text() == "mine"


def test_fig_1_needs_no_run(tmp_path: Path) -> None:
    drawn = draw([], tmp_path, ["fig1"])
    assert [file.name for file in drawn.files] == ["fig1.png", "fig1.pdf"]
    assert "F1 falls 90.89 to 90.45" in drawn.notes[0]
    with pytest.raises(UserError, match="which runs"):
        draw([], tmp_path, ["1", "2"])

"""What is typed: text stays text, numbers are numbers, and each wrong word has its line (H01-H03, H08, H10)."""

import pytest

from identcli.config.errors import ConfigErrors
from identcli.config.preflight import many, single


def messages(words, check=single):
    with pytest.raises(ConfigErrors) as caught:
        check(words)
    return caught.value.messages


@pytest.mark.parametrize("word", ["lr=1E-3", "+lr=1e-3"])
def test_scientific_notation_is_a_float(word):
    assert single([word]).config.lr == 1e-3


def test_a_learning_rate_in_a_users_yaml_is_a_float(tmp_path):
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer/mine.yaml").write_text("# @package _global_\nlr: 1e-3\noptimizer: {name: sgd, ")
    broken = tmp_path / "optimizer/mine.yaml"
    broken.write_text(broken.read_text() + "weight_decay: 0, momentum: 0}\n")
    assert single(["optimizer=mine"], tmp_path).config.lr == 1e-3


@pytest.mark.parametrize("name", ["1e5", "123e456", "007", "true", "Null"])
def test_a_name_stays_as_typed(name):
    assert single([f"name={name}"]).config.name == name


def test_only_a_plain_null_is_null():
    assert single(["name=null"]).config.name is None
    assert single(['name="null"']).config.name == "null"


def test_a_path_may_hold_what_hydra_takes_for_grammar():
    path = "out/epoch=9-step=8 (1).txt"
    assert single(["data=text", f"data.path={path}"]).config.data.path == path
    assert single(["data=text", 'data.path="a,b"']).config.data.path == "a,b"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            [
                "optimzer=sgd",
                "lrr=3",
                "+lrrr=3",
                "++n_layer=3",
                "optimizer=sdg",
                "data=null",
                "hydra/launcher=ray",
                "hydra/sweeper=optuna",
                "foo",
                "device=a=b",
                "steps=1.5",
            ],
            [
                "optimzer: no such option. Did you mean optimizer?",
                "lrr: no such option. Did you mean lr?",
                "lrrr: no such option. Did you mean lr?",
                "n_layer: no such option. Did you mean model.n_layer?",
                "optimizer=sdg: no such choice. Did you mean sgd?",
                "data=null: no such choice. There is markov, text or tiny_shakespeare",
                "hydra/launcher=ray needs a package: pip install hydra-ray-launcher",
                "hydra/sweeper=optuna needs a package: pip install hydra-optuna-sweeper",
                "foo: must be key=value",
                """device=a=b: can't be read. Text with = , ( [ { or a space needs quotes: 'device="a=b"'""",
                "steps=1.5: must be a valid integer",
            ],
        ),
        (["hydra.foo=3"], ["hydra.foo: no such option"]),
        (["optimizer.momentum=0.9"], ["optimizer.momentum: no such option with optimizer.name=adamw"]),
        (["~lr"], ["lr: is missing"]),
        (["=3", "a b=3"], ["=3: must be key=value", "a b=3: must be key=value"]),
        (["data=text", "data.path="], ["data.path='': must have at least 1 character"]),
        # That nothing is left isn't told of a key whose value is wrong.
        (
            ["data=text", "data.path=,"],
            ["""data.path=,: can't be read. Text with = , ( [ { or a space needs quotes: 'data.path=","'"""],
        ),
        (
            ["data=text", "data.path={x}"],
            ["""data.path={x}: can't be read. Text with = , ( [ { or a space needs quotes: 'data.path="{x}"'"""],
        ),
        (
            ["name=a,b"],
            ["""name=a,b: several values: ident sweep runs them all; one text with a comma is 'name="a,b"'"""],
        ),
        (["hydra.mode=MULTIRUN"], ["hydra.mode=MULTIRUN: ident train makes one run, ident sweep many"]),
        (
            ["hydra.job.chdir=true"],
            ["hydra.job.chdir=true: a run stays in the folder where it is started, so that data.path is one file"],
        ),
        (["experiment=fig2"], ["experiment=fig2: many runs: use ident sweep experiment=fig2"]),
        # What follows from a wrong choice isn't told as an error of its own.
        (["optimizer=sdg", "optimizer.momentum=0.9"], ["optimizer=sdg: no such choice. Did you mean sgd?"]),
        (
            ["optimzer=sgd", "lr=abc", "case=amadw", "model.n_layer=-1"],
            [
                "optimzer: no such option. Did you mean optimizer?",
                "case=amadw: no such choice. Did you mean adamw?",
                "lr='abc': must be a valid number",
                "model.n_layer=-1: must be greater than or equal to 1",
            ],
        ),
    ],
)
def test_each_wrong_word_has_its_line(words, lines):
    assert messages(words) == lines


def test_an_interpolation_that_fails_names_its_key(monkeypatch):
    monkeypatch.delenv("IDENT_NOT_THERE", raising=False)
    [line] = messages(["lr=${oc.env:IDENT_NOT_THERE}"])
    assert line.startswith("lr: ")
    assert "IDENT_NOT_THERE" in line


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["lr=1,abc", "case=sgd,sdg"],
            ["case=sdg: no such choice. Did you mean sgd?", "lr='abc': must be a valid number"],
        ),
        (["lr=interval(0,1)"], ["lr=interval(0,1): only a sweeper that searches can do it: hydra/sweeper=optuna"]),
        (["name=a,b"], ["name=a,b: can't be swept, a sweep has one name"]),
        (["hydra.verbose=true,false"], ["hydra.verbose=true,false: can't be swept, a sweep is launched in one way"]),
        (["experiment=fig2,fig3"], ["experiment=fig2,fig3: can't be swept, a sweep has one experiment"]),
        (
            ["model.n_head=3,4,5"],
            ["model.n_head=3: must divide model.n_embd=128", "model.n_head=5: must divide model.n_embd=128"],
        ),
    ],
)
def test_a_sweep_is_checked_in_every_value(words, lines):
    assert messages(words, many) == lines


def test_a_key_given_twice_counts_as_last_given():
    assert single(["lr=abc", "lr=0.5"]).config.lr == 0.5


@pytest.mark.parametrize("text", ["lr: {a: ${b}}\n", "lr: [1\nx: 2\n", "\tlr: 1\n"])
def test_a_users_broken_yaml_is_named_with_its_line(tmp_path, text):
    (tmp_path / "optimizer").mkdir()
    path = tmp_path / "optimizer/mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigErrors, match=rf"{path}, line \d: can't be read as YAML: "):
        single(["optimizer=mine"], tmp_path)


def test_a_users_yaml_may_set_only_what_is_there(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text("# @package _global_\nhydra: {launcher: {n_jobs: 2}}\n")
    with pytest.raises(ConfigErrors, match=r"hydra.launcher.n_jobs: no such option \(In 'experiment/mine'"):
        many(["experiment=mine", "seed=1,2"], tmp_path)


def test_a_users_folder_wins_over_conf(tmp_path):
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer/sgd.yaml").write_text(
        "# @package _global_\nlr: 0.77\noptimizer: {name: sgd, weight_decay: 0.0, momentum: 0.0}\n"
    )
    assert single(["optimizer=sgd"], tmp_path).config.lr == 0.77
    assert single(["optimizer=sgd"]).config.lr == 0.25, "and is forgotten afterwards"

"""A config from elsewhere can't run code."""

import pytest
import yaml

from identcli.config import security
from identcli.config.errors import ConfigErrors
from identcli.config.preflight import many, single


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("hydra: {callbacks: {x: {_target_: pathlib.Path.write_text}}}", "hydra.callbacks.x._target_"),
        ("hydra: {callbacks: {x: '${oc.create:{_target_: os.system}}'}}", "hydra.callbacks.x"),
        ("hydra: {sweeper: {_target_: os.system}}", "hydra.sweeper._target_"),
        ("hydra: {sweeper: {list: [{_target_: os.system}]}}", "hydra.sweeper.list[0]._target_"),
        ("hydra: {job_logging: {handlers: {h: {(): os.system}}}}", "hydra.job_logging.handlers.h.()"),
        ("hydra: {job_logging: {handlers: {h: {class: subprocess.Popen}}}}", "hydra.job_logging.handlers.h.class"),
        ("hydra: {hydra_logging: {handlers: {h: {stream: 'ext://os.sep'}}}}", "hydra.hydra_logging.handlers.h.stream"),
        ("model: {_target_: os.system}", "model._target_"),
    ],
)
def test_what_names_code_is_refused(text, place):
    [line] = security.refused(yaml.safe_load(text))
    assert line.startswith(f"{place}: refused, for a config may not name code to call (")


@pytest.mark.parametrize("check", [single, many])
def test_a_users_yaml_is_looked_at(tmp_path, check):
    (tmp_path / "experiment").mkdir()
    evil = "# @package _global_\nhydra: {callbacks: {x: {_target_: pathlib.Path.write_text, self: written}}}\n"
    (tmp_path / "experiment/evil.yaml").write_text(evil)
    with pytest.raises(ConfigErrors, match="hydra.callbacks.x._target_: refused"):
        check(["experiment=evil"], tmp_path)


def test_points_of_a_sweep_are_looked_at_too():
    with pytest.raises(ConfigErrors, match="refused, for a config may not name code"):
        many(["+hydra.callbacks.x={_target_: os.system}"])


def test_installed_launchers_pass():
    allowed = {"launcher": {"_target_": "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"}}
    assert security.refused({"hydra": allowed}) == []
    assert security.refused({"hydra": {"callbacks": allowed["launcher"]}}) != [], "and only in their place"


def test_shell_commands_count_when_they_are_typed():
    config = {"hydra": {"launcher": {"setup": ["module load cuda"]}}}
    [line] = security.refused(config)
    assert line.startswith("hydra.launcher.setup: refused")
    assert security.refused(config, typed=["hydra.launcher.setup"]) == []
    callbacks = {"hydra": {"callbacks": {"x": {"_target_": "os.system"}}}}
    assert security.refused(callbacks, typed=["hydra.callbacks.x._target_"]) != [], "code never does"


def test_a_launchers_setting_is_one_line(tmp_path):
    """submitit writes them into a batch script as comments; a second line there would be a command."""
    pytest.importorskip("submitit", reason="pip install hydra-submitit-launcher")
    evil = "x\ntouch written #"
    [line] = security.refused_lines({"partition": evil, "nodes": 1, "list": ["plain"]})
    assert line.startswith("hydra.launcher.partition: refused, for it must be one line of plain text (")
    (tmp_path / "experiment").mkdir()
    yaml_file = tmp_path / "experiment/evil.yaml"
    for place in ("launcher: {comment: '${data.path}'}", "job: {name: '${data.path}'}"):
        yaml_file.write_text(
            "# @package _global_\ndefaults: [{override /hydra/launcher: slurm}, {override /data: text}]\n"
            + yaml.safe_dump({"data": {"path": evil}})
            + f"hydra: {{{place}}}\n"
        )
        with pytest.raises(ConfigErrors, match=r"hydra\.launcher\.(comment|name): refused, for it must be one line"):
            many(["experiment=evil", "seed=1,2"], tmp_path)


@pytest.mark.parametrize("place", ["init", "remote"])
def test_what_ray_would_run_counts_when_it_is_typed(place):
    config = {"hydra": {"launcher": {"ray": {place: {"runtime_env": {"worker_process_setup_hook": "os.abort"}}}}}}
    [line] = security.refused(config)
    key = f"hydra.launcher.ray.{place}.runtime_env.worker_process_setup_hook"
    assert line.startswith(f"{key}: refused")
    assert security.refused(config, typed=[key]) == []


def test_copied_variables_are_no_code(monkeypatch):
    monkeypatch.setenv("IDENT_COPIED", "x")
    job = {"env_copy": ["IDENT_COPIED"], "env_set": {"IDENT_COPIED": "x"}}
    assert security.refused({"hydra": {"job": job}}) == []
    job["env_set"] = {"IDENT_COPIED": "y", "PATH": "here"}
    assert len(security.refused({"hydra": {"job": job}})) == 2

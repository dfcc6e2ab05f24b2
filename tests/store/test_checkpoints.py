"""Checkpoints: whole or recognisably not, exactly the tensors given, nothing that could run code."""

import json
import multiprocessing
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from identcli.store import atomic
from identcli.store.checkpoints import (
    MODEL,
    STATE,
    BrokenCheckpoint,
    at,
    latest,
    list_steps,
    load_state,
    load_tensors,
    save,
)


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"wte.weight": torch.randn(7, 4, generator=generator), "ln.bias": torch.randn(4, generator=generator)}


def children(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(bytes(content))


def test_tensors_and_state_come_back_bit_for_bit(tmp_path: Path) -> None:
    model = tensors() | {"half": torch.randn(3).bfloat16(), "count": torch.tensor(3), "none": torch.empty(0, 2)}
    state: dict[str, Any] = {
        "optimizer": {
            "state": {0: {"step": torch.tensor(5.0), "exp_avg": torch.randn(2, 3)}},
            "param_groups": [{"lr": 1e-3}],
        },
        "rng": torch.get_rng_state(),
        "step": 500,
        "best": None,
        "betas": (0.9, 0.99),
        "ordered": OrderedDict(a=True),
        "text": "é",
    }
    path = save(tmp_path, 500, model, state)
    assert path == tmp_path / "checkpoints" / "step-000500" == at(tmp_path, 500)
    back = load_tensors(path)
    assert back.keys() == model.keys()
    for name, tensor in model.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor), name
    loaded = load_state(path)
    assert loaded.keys() == state.keys()
    assert torch.equal(loaded["rng"], state["rng"])
    moment = loaded["optimizer"]["state"][0]["exp_avg"]
    assert torch.equal(moment, state["optimizer"]["state"][0]["exp_avg"])
    assert loaded["optimizer"]["param_groups"] == [{"lr": 1e-3}]
    for name in ("step", "best", "betas", "ordered", "text"):
        assert loaded[name] == state[name]


def test_the_model_file_holds_the_given_names_and_nothing_else(tmp_path: Path) -> None:
    path = save(tmp_path, 0, tensors(), {})
    with safe_open(path / MODEL, framework="pt") as file:
        assert sorted(file.keys()) == ["ln.bias", "wte.weight"]
        assert file.metadata() is None
    assert sorted(child.name for child in path.iterdir()) == ["manifest.json", MODEL, STATE]


def test_views_shared_and_transposed_tensors_are_copied(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    parameter = torch.nn.Parameter(torch.ones(2))
    given = {"whole": base, "row": base[1], "transposed": base.T, "same": base, "parameter": parameter}
    back = load_tensors(save(tmp_path, 1, given, {}))
    for name, tensor in given.items():
        assert torch.equal(back[name], tensor.detach()), name
        assert back[name].is_contiguous()
    assert (at(tmp_path, 1) / MODEL).stat().st_size < 1200  # a view brings its own numbers only


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"best": np.float64(1.5)}, r"state\['best'\]: numpy.float64 is no plain value"),
        ({"a": [{"b": (1, {2, 3})}]}, r"state\['a'\]\[0\]\['b'\]\[1\]: builtins.set is no plain value"),
        ({Path("x"): 1}, "a key of state: pathlib"),
        ({"f": print}, r"state\['f'\]: builtins.builtin_function_or_method"),
    ],
)
def test_what_only_unpickling_could_read_back_is_refused(tmp_path: Path, state: dict[Any, Any], place: str) -> None:
    with pytest.raises(TypeError, match=place):
        save(tmp_path, 1, tensors(), state)
    assert not (tmp_path / "checkpoints").exists()


def test_steps_are_listed_in_order(tmp_path: Path) -> None:
    assert list_steps(tmp_path) == []
    assert latest(tmp_path) == (None, [])
    for step in (1000, 0, 2_000_000, 500):
        save(tmp_path, step, tensors(), {})
    (tmp_path / "checkpoints" / ".tmp-step-3000000-1-ab").mkdir()
    (tmp_path / "checkpoints" / "step-5").mkdir()
    (tmp_path / "checkpoints" / "notes").write_text("")
    assert list_steps(tmp_path) == [0, 500, 1000, 2_000_000]
    assert latest(tmp_path) == (at(tmp_path, 2_000_000), [])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: (path / MODEL).unlink(), "model.safetensors: is missing"),
        (lambda path: truncate(path / MODEL), r"model.safetensors: has \d+ bytes, was saved with \d+"),
        (lambda path: flip(path / MODEL), "model.safetensors: its content is not what was saved"),
        (lambda path: (path / STATE).unlink(), "state.pt: is missing"),
        (lambda path: truncate(path / STATE), r"state.pt: has \d+ bytes, was saved with \d+"),
        (lambda path: (path / STATE).write_bytes(b""), "state.pt: has 0 bytes"),
        (lambda path: flip(path / STATE), "state.pt: its content is not what was saved"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json: no such file"),
        (lambda path: truncate(path / "manifest.json"), "manifest.json: can't be read as JSON"),
        (lambda path: (path / "manifest.json").write_text("{}"), "manifest.json: does not describe model.safetensors"),
    ],
)
def test_a_broken_checkpoint_is_passed_over_with_its_reason(tmp_path: Path, damage: Any, reason: str) -> None:
    for step in (100, 200):
        save(tmp_path, step, tensors(step), {"step": step})
    damage(at(tmp_path, 200))
    path, skipped = latest(tmp_path)
    assert path == at(tmp_path, 100)
    ((broken, why),) = skipped
    assert broken == at(tmp_path, 200)
    with pytest.raises(BrokenCheckpoint, match=reason):
        raise BrokenCheckpoint(why)
    with pytest.raises(BrokenCheckpoint, match=reason):
        (load_state if reason.startswith("state") else load_tensors)(broken)
    assert load_state(path) == {"step": 100}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    for load in (load_state, load_tensors):
        with pytest.raises(BrokenCheckpoint, match="step-000007: no such checkpoint"):
            load(at(tmp_path, 7))


class Attack:
    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (self.target,)


def describe_anew(path: Path) -> None:
    """Make the manifest fit the files, as somebody who means harm would."""
    import hashlib

    contents = {name: (path / name).read_bytes() for name in (MODEL, STATE)}
    files = {name: {"bytes": len(c), "sha256": hashlib.sha256(c).hexdigest()} for name, c in contents.items()}
    (path / "manifest.json").write_text(json.dumps({"step": 1, "files": files}))


def test_a_state_with_code_in_it_is_refused_and_not_run(tmp_path: Path) -> None:
    path, target = save(tmp_path, 1, tensors(), {}), tmp_path / "made"
    for content in ({"x": Attack(target)}, Attack(target)):
        torch.save(content, path / STATE)
        describe_anew(path)
        with pytest.raises(BrokenCheckpoint, match="state.pt: can't be read: ") as caught:
            load_state(path)
        assert "\n" not in str(caught.value)
        assert not target.exists()
    (path / STATE).write_bytes(pickle.dumps(Attack(target), protocol=2))
    describe_anew(path)
    with pytest.raises(BrokenCheckpoint, match="state.pt: can't be read: "):
        load_state(path)
    assert not target.exists()
    pickle.loads(pickle.dumps(Attack(target)))  # the attack itself is real
    assert target.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_described_file_that_is_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    path = save(tmp_path, 1, tensors(), {})
    for name in (MODEL, STATE):
        (path / name).write_bytes(content)
    describe_anew(path)
    with pytest.raises(BrokenCheckpoint, match="model.safetensors: can't be read: "):
        load_tensors(path)
    with pytest.raises(BrokenCheckpoint, match="state.pt: can't be read: "):
        load_state(path)


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 5, tensors(0), {"n": 1})
    path = save(tmp_path, 5, tensors(1), {"n": 2})
    assert torch.equal(load_tensors(path)["ln.bias"], tensors(1)["ln.bias"])
    assert load_state(path) == {"n": 2}
    assert children(tmp_path) == ["step-000005"]


def test_a_full_disk_keeps_the_previous_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, tensors(0), {})

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "sync_file", full)
        for step in (1, 2):
            with pytest.raises(OSError, match="No space left"):
                save(tmp_path, step, tensors(1), {})
    assert children(tmp_path) == ["step-000001"]
    assert torch.equal(load_tensors(at(tmp_path, 1))["ln.bias"], tensors(0)["ln.bias"])


def save_on_and_on(folder: Path, tell: Any) -> None:
    torch.set_num_threads(1)
    for step in range(1, 10**6):
        save(folder, step, {"w": torch.full((10_000,), float(step))}, {"step": step, "m": torch.ones(1000)})
        tell.send(step)


def test_what_a_kill_leaves_is_whole(tmp_path: Path) -> None:
    """A child saves on and on, says so after each, and is killed in the midst of the next."""
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    hear, tell = context.Pipe(duplex=False)
    child = context.Process(target=save_on_and_on, args=(tmp_path, tell))
    child.start()
    told = [hear.recv() for _ in range(8)][-1]
    child.kill()
    child.join()
    path, skipped = latest(tmp_path)
    assert path is not None
    assert not skipped
    assert list_steps(tmp_path)[:told] == list(range(1, told + 1))
    for step in list_steps(tmp_path):
        assert load_state(at(tmp_path, step))["step"] == step
        assert torch.equal(load_tensors(at(tmp_path, step))["w"], torch.full((10_000,), float(step)))
    save(tmp_path, 10**6, tensors(), {})
    assert not [name for name in children(tmp_path) if name.startswith(".")]  # what the kill left is gone

"""What a path holds: its tensors by name, the files that they lie in, and what is known about the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from identcli.architecture.errors import UserError
from identcli.checkpoints import pickled_file, safetensors_file
from identcli.checkpoints.tensor_file import BadCheckpoint, Entry, size_of
from identcli.store import checkpoints, folder, record, strictjson

# Where training scripts keep the weights inside a .pt.
STATE_DICTS = ("model", "state_dict", "model_state_dict", "module", "weights")
PICKLES = (".pt", ".pth", ".bin", ".ckpt")
WEIGHTS = (".safetensors", *PICKLES)
# Pickles that lie in the folders of trainers and hold no weights.
NO_WEIGHTS = ("training_args.", "optimizer.", "scheduler.", "scaler.", "rng_state", "state.pt")


@dataclass(frozen=True)
class Checkpoint:
    """entries: every tensor by its name in the file. files: those that hold them, in order.

    config: of Hugging Face's config.json. sizes: n_layer, n_head, n_embd, bias of nanoGPT or of a run of ours.
    beside: the files of the folder that are not weights' and go along when the model is written anew.
    """

    path: Path
    entries: dict[str, Entry]
    files: tuple[Path, ...]
    config: Mapping[str, Any] | None = None
    sizes: Mapping[str, Any] | None = None
    adapter: bool = False
    beside: tuple[Path, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def entry(self, name: str) -> Entry:
        """The tensor of that name. BadCheckpoint when there never was one."""
        if name not in self.entries:
            near = get_close_matches(name, self.entries, n=1, cutoff=0.8)
            hint = f"; nearest: {near[0]}" if near else ""
            raise BadCheckpoint(f"{self.path}: the checkpoint has no tensor {name}, which its layout needs{hint}")
        return self.entries[name]


def open_checkpoint(path: Path) -> Checkpoint:
    """Look at a file, a folder of Hugging Face's or PEFT's making, or a run of ours (its newest checkpoint).

    Only headers are read. UserError, in one line, for whatever is missing, damaged, or no checkpoint.
    """
    if not path.exists():
        near = get_close_matches(path.name, [child.name for child in path.parent.glob("*")], n=1, cutoff=0.6)
        hint = f"; nearest: {path.parent / near[0]}" if near else ""
        raise UserError(f"{path}: no such file or folder{hint}")
    if path.is_file():
        return _one_file(path, path)
    if folder.is_run(path):
        newest = checkpoints.latest(path)
        if newest.path is None:
            raise UserError(f"{path}: a run without a checkpoint: train with checkpoint.every=… (0 keeps none)")
        notes = [f"{skipped}: skipped: {why}" for skipped, why in newest.skipped]
        return _of_a_run(path, newest.path, (f"the run's newest checkpoint, {newest.path.name}", *notes))
    if path.parent.name == "checkpoints" and folder.is_run(path.parent.parent):
        return _of_a_run(path.parent.parent, path, ())
    return _folder(path)


def _of_a_run(run: Path, at: Path, notes: tuple[str, ...]) -> Checkpoint:
    file = at / checkpoints.MODEL
    if not file.is_file():
        raise UserError(f"{at}: a checkpoint without {checkpoints.MODEL}")
    sizes = record.read_config(run).get("model")
    if not isinstance(sizes, Mapping):
        raise UserError(f"{run / 'config.yaml'}: no `model` in it, so the layers aren't known")
    return Checkpoint(
        at, safetensors_file.entries(file), (file,), sizes=sizes, beside=(run / "config.yaml",), notes=notes
    )


def _one_file(path: Path, file: Path) -> Checkpoint:
    if file.name.endswith(".index.json"):
        return _sharded(file.parent, file)
    config = _config(file.parent)
    kind = _kind(file)
    if kind == "safetensors":
        return Checkpoint(path, safetensors_file.entries(file), (file,), config, adapter=_is_adapter(file.parent))
    entries, sizes, notes = _state_dict(file)
    return Checkpoint(path, entries, (file,), config, sizes, adapter=_is_adapter(file.parent), notes=notes)


def _kind(file: Path) -> str:
    size_of(file)
    with file.open("rb") as content:
        start = content.read(9)
    if start[:4] == b"GGUF":
        raise BadCheckpoint(f"{file}: a GGUF file, whose weights are packed: convert it to safetensors first")
    if file.suffix == ".safetensors" or (start[8:9] == b"{" and file.suffix not in PICKLES):
        return "safetensors"
    if file.suffix in PICKLES or start[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
        return "pickled"
    if file.name == "config.json":
        raise UserError(f"{file}: a config, not weights: name its folder, or count it with ident count")
    raise BadCheckpoint(f"{file}: not a checkpoint: neither safetensors nor a PyTorch file")


def _folder(path: Path) -> Checkpoint:
    indices = sorted(path.glob("*.safetensors.index.json")) or sorted(path.glob("*.bin.index.json"))
    if indices:
        return _sharded(path, indices[0])
    found = [file for file in sorted(path.iterdir()) if holds_weights(file)]
    for name in ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin"):
        if path / name in found:
            found = [path / name, *(file for file in found if file.name != name)]
            break
    else:
        if len(found) > 1:
            names = ", ".join(file.name for file in found[:6])
            raise UserError(f"{path}: several files of weights and no index that joins them ({names}): name one")
    if not found:
        if folder.is_sweep(path) or any(folder.is_run(child) for child in path.iterdir()):
            raise UserError(f"{path}: a folder of runs, not a checkpoint: name one of them")
        raise UserError(f"{path}: no checkpoint there: no {', '.join(f'*{suffix}' for suffix in WEIGHTS)}")
    file, *others = found
    one = _one_file(path, file)
    config, sizes = _config(path), one.sizes
    if config is None and (path / "config.yaml").is_file():  # what `ident rebalance` makes of a run
        written = record.read_config(path).get("model")
        sizes = written if isinstance(written, Mapping) else sizes
    notes = [*one.notes, *(f"{other.name}: not read; {file.name} is" for other in others)]
    return Checkpoint(path, one.entries, (file,), config, sizes, one.adapter, _beside(path, (file,)), tuple(notes))


def _sharded(path: Path, index: Path) -> Checkpoint:
    mapping = strictjson.read_object(index).get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()) or not mapping:
        raise BadCheckpoint(f"{index}: no weight_map of tensors to files in it")
    shards = sorted(set(mapping.values()))
    if bad := next((name for name in shards if Path(name).name != name), None):
        raise BadCheckpoint(f"{index}: names a file outside its folder: {bad}")
    here = sorted(file.name for file in path.iterdir() if holds_weights(file))
    stray = [name for name in here if name not in shards]
    missing = [name for name in shards if not (path / name).is_file()]
    if missing:
        held = sum(file in missing for file in mapping.values())
        beside = f"; not in the index: {', '.join(stray)}" if stray else ""
        listed = ", ".join(missing)
        raise BadCheckpoint(f"{index}: missing shard: {listed}, with {held} of {len(mapping)} tensors{beside}")
    files = tuple(path / name for name in shards)
    inside = {file.name: _entries(file) for file in files}
    entries = {}
    for name, shard in mapping.items():
        if name not in inside[shard]:
            other = next((file for file, held in inside.items() if name in held), None)
            where = f"; it lies in {other}: the index is stale" if other else ""
            raise BadCheckpoint(f"{path / shard}: lacks the tensor {name}, which the index puts there{where}")
        entries[name] = inside[shard][name]
    notes = [f"{name}: not read, since the index doesn't name it" for name in stray]
    return Checkpoint(path, entries, files, _config(path), None, False, _beside(path, files), tuple(notes))


def _entries(file: Path) -> dict[str, Entry]:
    return safetensors_file.entries(file) if _kind(file) == "safetensors" else _state_dict(file)[0]


def _state_dict(file: Path) -> tuple[dict[str, Entry], Mapping[str, Any] | None, tuple[str, ...]]:
    """The weights in a PyTorch file by name, nanoGPT's sizes if they stand beside, and what was passed over."""
    content = pickled_file.load(file)
    if not isinstance(content, dict):
        raise BadCheckpoint(f"{file}: holds a {type(content).__name__}, not tensors by name")
    keys = [key for key in STATE_DICTS if isinstance(content.get(key), dict) and _tensors(content[key])]
    sizes = content.get("model_args")
    sizes = sizes if isinstance(sizes, dict) else None
    if keys:
        others = [str(key) for key in content if key != keys[0] and isinstance(content[key], dict)]
        notes = (f"the weights are under {keys[0]!r}; left as they are: {', '.join(others)}",) if others else ()
        return _tensors(content[keys[0]]), sizes, notes
    found = _tensors(content)
    if not found:
        shown = ", ".join(str(key) for key in list(content)[:4]) or "nothing"
        raise BadCheckpoint(f"{file}: no tensors by name in it (it has {shown})")
    return found, sizes, ()


def _tensors(content: Mapping[Any, Any]) -> dict[str, Entry]:
    return {str(name): entry for name, entry in content.items() if isinstance(entry, Entry)}


def _config(path: Path) -> Mapping[str, Any] | None:
    return strictjson.read_object(path / "config.json") if (path / "config.json").is_file() else None


def _is_adapter(path: Path) -> bool:
    return (path / "adapter_config.json").is_file()


def _beside(path: Path, weights: tuple[Path, ...]) -> tuple[Path, ...]:
    """All files in and below the folder except the weights that were read and git's own."""
    inside = (file for file in sorted(path.rglob("*")) if file.is_file() and file not in weights)
    return tuple(file for file in inside if ".git" not in file.relative_to(path).parts)


def holds_weights(file: Path) -> bool:
    """Whether a file is named as weights are, and not as what trainers keep beside them."""
    return file.suffix in WEIGHTS and not file.name.startswith(NO_WEIGHTS)

"""How far a whole model's outputs move, run by transformers (or by our own GPT) on the same inputs.

Four numbers, each the largest absolute difference from the original in float64: the moves made in float64 (exact); the
file as written, run in float64 (stored); the file as written, run in float32; and the baseline, the original itself in
float32. Beside them the scale, the largest output.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from identcli.architecture.errors import UserError
from identcli.architecture.pairs import Circuit
from identcli.checkpoints.checkpoint import Checkpoint, open_checkpoint
from identcli.checkpoints.layer import views
from identcli.checkpoints.locate import Flags, locate
from identcli.checkpoints.rebalance import move_layer
from identcli.checkpoints.tensor_file import NAMES, Entry, read

# Outputs that say what a model says, in the order in which they are looked for.
_OUTPUTS = ("logits", "last_hidden_state", "text_embeds", "image_embeds", "prediction_logits", "start_logits")
POSITIONS, ROWS, SEED = 24, 2, 0
Run = Callable[[nn.Module], Tensor]


def compare(checkpoint: Checkpoint, written: Path, flags: Flags, circuits: Sequence[Circuit]) -> Mapping[str, object]:
    """Outputs of the checkpoint and of the folder `written` for it. UserError when nothing here can run the model."""
    load, run, by = _ours(checkpoint) if checkpoint.sizes is not None else _transformers(checkpoint)
    with torch.no_grad():
        original = load(checkpoint.path).eval()
        moved = copy.deepcopy(original).double()
        truth = run(original.double())
        move_in_memory(moved, checkpoint, flags, circuits)
        exact = _distance(run(moved), truth)
        del moved
        baseline = _distance(run(original.float()), truth)
        del original
        anew = load(written).eval()
        stored = _distance(run(anew.double()), truth)
        in_float32 = _distance(run(anew.float()), truth)
    return {
        "run_by": by,
        "scale": float(truth.abs().max()),
        "exact": exact,
        "stored": stored,
        "stored_in_float32": in_float32,
        "baseline_float32": baseline,
    }


def move_in_memory(model: nn.Module, checkpoint: Checkpoint, flags: Flags, circuits: Sequence[Circuit]) -> None:
    """Balance the model's own parameters, found in it as they are found in a file."""
    tensors = dict(model.state_dict())
    found = locate(_in_memory(tensors, checkpoint), flags, circuits)
    for pairs in found.located:
        for layer in pairs.layers:
            move_layer(pairs, layer, views(pairs, layer, tensors.__getitem__))


def _in_memory(tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> Checkpoint:
    entries = {
        name: Entry(checkpoint.path, 0, tensor.numel(), NAMES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }
    return Checkpoint(checkpoint.path, entries, (), checkpoint.config, checkpoint.sizes)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other).abs().max())


def _ours(checkpoint: Checkpoint) -> tuple[Callable[[Path], nn.Module], Run, str]:
    from identcli.models.gpt import GPT, GPTConfig
    from identcli.models.weights import load_weights

    sizes = dict(checkpoint.sizes or {})
    vocabulary = next((e.shape[0] for name, e in checkpoint.entries.items() if name.endswith("wte.weight")), 0)
    known = {key: sizes[key] for key in ("n_layer", "n_head", "n_embd", "block_size", "bias") if key in sizes}
    config = GPTConfig(vocab_size=vocabulary, **known)
    tokens = _tokens(vocabulary, config.block_size)

    def load(path: Path) -> nn.Module:
        opened = checkpoint if path == checkpoint.path else open_checkpoint(path)
        model = GPT(config)
        load_weights(model, {name: read(entry) for name, entry in opened.entries.items()})
        return model

    return load, lambda model: model(tokens)[0], "ident's GPT"


def _transformers(checkpoint: Checkpoint) -> tuple[Callable[[Path], nn.Module], Run, str]:
    if checkpoint.config is None or not checkpoint.path.is_dir():
        raise UserError(
            f"{checkpoint.path}: --check-outputs needs a folder with a config.json that transformers can load"
        )
    try:
        import transformers
    except ImportError:
        raise UserError("--check-outputs needs a package: pip install transformers") from None
    named = next(iter(checkpoint.config.get("architectures") or ()), "")
    cls = getattr(transformers, named, None) or transformers.AutoModel

    def load(path: Path) -> nn.Module:
        try:
            with _quiet(transformers):
                return cls.from_pretrained(path, local_files_only=True, attn_implementation="eager")
        except Exception as error:  # a library that loads any model can fail in any way
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise UserError(f"{path}: transformers can't load it: {reason}") from None

    def run(model: nn.Module) -> Tensor:
        try:
            return first_output(run_once(model))
        except RuntimeError as error:  # some classes mix dtypes and can't run in float64
            dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
            reason = str(error).splitlines()[0]
            raise UserError(f"{checkpoint.path}: transformers can't run it in {dtype}: {reason}") from None

    return load, run, f"transformers {transformers.__version__} ({cls.__name__})"


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
        transformers.logging.enable_progress_bar()


def run_once(model: Any) -> Any:
    """The model's output for `inputs_for` it. Masks and tables that it makes on its way get its weights' dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(next(model.parameters()).dtype)
    try:
        return model(**inputs_for(model))
    finally:
        torch.set_default_dtype(before)


def first_output(output: Any) -> Tensor:
    """What the model says: logits, or the last hidden states."""
    for name in _OUTPUTS:
        value = output.get(name) if hasattr(output, "get") else None
        if isinstance(value, Tensor):
            return value
    return next(value for value in output.to_tuple() if isinstance(value, Tensor))


def inputs_for(model: Any) -> dict[str, Tensor]:
    """Random inputs of the kind that the model of transformers takes, the same for the same config."""
    config, dtype = model.config, next(model.parameters()).dtype
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    generator = torch.Generator().manual_seed(SEED)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    inputs: dict[str, Tensor] = {}
    main = model.main_input_name
    if main == "input_features":
        inputs[main] = normal(ROWS, config.num_mel_bins, 2 * config.max_source_positions)
    elif main == "input_values":
        inputs[main] = normal(ROWS, 4000)
    elif main != "pixel_values":
        inputs["input_ids"] = _tokens(text.vocab_size, getattr(text, "max_position_embeddings", None) or POSITIONS)
    vision = getattr(config, "vision_config", None) if main != "pixel_values" else config
    if vision is not None and hasattr(vision, "image_size") and (main == "pixel_values" or config.model_type == "clip"):
        size = vision.image_size
        height, width = size if isinstance(size, tuple | list) else (size, size)
        inputs["pixel_values"] = normal(ROWS, getattr(vision, "num_channels", 3), height, width)
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = _tokens(text.vocab_size, POSITIONS)
    return inputs


def _tokens(vocabulary: int, positions: int) -> Tensor:
    # Not the first few numbers, which models keep for padding and the like.
    least = min(4, vocabulary - 1)
    shape = (ROWS, min(POSITIONS, positions))
    return torch.randint(least, vocabulary, shape, generator=torch.Generator().manual_seed(SEED))

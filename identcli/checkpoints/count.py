"""Counting a checkpoint: its config describes it, and the sizes of its tensors must agree."""

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from identcli.architecture.description import Architecture, Tokens
from identcli.architecture.errors import UserError
from identcli.architecture.gpt import gpt
from identcli.architecture.huggingface import from_config
from identcli.architecture.tensors import parameters
from identcli.checkpoints.checkpoint import Checkpoint, open_checkpoint
from identcli.checkpoints.tensor_file import FLOATS

# Stored beside the parameters, and no parameters: masks, counters, tables that are computed, scales of packed weights.
# The dot in front matters: attn.bias is GPT-2's mask, attn.c_attn.bias is a bias.
_BUFFERS = re.compile(
    r"(^|\.)(attn\.bias|masked_bias|attention\.bias|position_ids|inv_freq|\w*scale_inv|e_score_correction_bias)$"
)
# Parts that the count of a text model or an encoder leaves out.
_OUTSIDE = re.compile(
    r"^(cls|classifier|score|qa_outputs|vision_\w+|visual\w*|model\.vision\w*|multi_modal_projector|audio_tower"
    r"|text_projection|visual_projection|logit_scale)\b"
)
_LAYER = re.compile(r"\.(?:h|layers?|blocks?)\.(\d+)\.|^(?:h|layers?|blocks?)\.(\d+)\.")
_TABLE = re.compile(r"(wte|embed_tokens|word_embeddings|embed_in|token_embedding|shared)\.weight$")


def described(path: Path, assume: Collection[str] = ()) -> Architecture:
    """The architecture of a checkpoint: of its config.json, or of our own run's config.yaml.

    Only headers of the weights are read. UserError with both numbers when the tensors hold something else than the
    config describes.
    """
    checkpoint = open_checkpoint(path)
    if checkpoint.config is not None:
        at = (path if path.is_dir() else path.parent) / "config.json"
        architecture = from_config(checkpoint.config, path.name or str(path), assume, at)
    elif checkpoint.sizes is not None:
        architecture = _own(path, checkpoint)
    else:
        raise UserError(f"{path}: weights without a config.json beside them: nothing says what they are")
    notes = (*architecture.notes, *checkpoint.notes, *_agree(path, architecture, checkpoint))
    return replace(architecture, notes=notes)


def _own(path: Path, checkpoint: Checkpoint) -> Architecture:
    """nanoGPT's layout says the numbers that its config leaves to the data."""
    sizes = checkpoint.sizes or {}
    shapes = {name.removeprefix("_orig_mod."): entry.shape for name, entry in checkpoint.entries.items()}
    try:
        vocab = shapes["transformer.wte.weight"][0]
        positions = shapes["transformer.wpe.weight"][0]
        layers, heads, width = (int(sizes[key]) for key in ("n_layer", "n_head", "n_embd"))
    except KeyError as missing:
        raise UserError(f"{path}: no {missing.args[0]} in it, so it can't be counted as a GPT") from None
    return gpt(path.name or str(path), layers, heads, width, positions, vocab, bool(sizes.get("bias", True)))


def _agree(path: Path, architecture: Architecture, checkpoint: Checkpoint) -> list[str]:
    """Notes on what was checked and what was left out. UserError when sizes contradict the config."""
    layers = sum(stack.layers for stack in architecture.stacks)
    found, beyond, outside, packed = 0, 0, 0, ""
    seen = set()
    for name, entry in checkpoint.entries.items():
        if _BUFFERS.search(name):
            continue
        if _OUTSIDE.search(name):
            outside += entry.numel
            continue
        match = _LAYER.search(name)
        layer = int(match[1] or match[2]) if match else None
        if layer is not None and layer >= layers and "mtp" not in name and len(architecture.stacks) == 1:
            beyond += entry.numel
            continue
        seen.add(layer)
        found += entry.numel
        if entry.dtype not in FLOATS and not entry.dtype.startswith("F8"):
            packed = f"{name} is {entry.dtype}"
    notes = [f"{outside:,} numbers outside of what is counted (heads of tasks, other towers)"] if outside else []
    if packed:
        return [*notes, f"sizes not checked: the weights are packed ({packed})"]
    numbers = parameters(architecture)
    if beyond and found == numbers.total:
        notes.append(f"{beyond:,} numbers in layers beyond the config's {layers} are left out")
    elif beyond:
        found += beyond
    allowed = {
        numbers.total: "the tensors hold as many numbers as the config describes",
        numbers.total + numbers.stored_twice: "the tied head is stored a second time",
    }
    if architecture.pooler:
        width = architecture.width
        allowed[numbers.total - width * (width + 1)] = "the file has no pooler"
    if found in allowed:
        return [*notes, f"sizes agree: {allowed[found]}"]
    reasons = _reasons(architecture, checkpoint, seen, layers, beyond)
    raise UserError(
        f"{path}: the config describes {numbers.total:,} parameters, the tensors hold {found:,} "
        f"({found - numbers.total:+,}){reasons}"
    )


def _reasons(
    architecture: Architecture, checkpoint: Checkpoint, seen: set[int | None], layers: int, beyond: int
) -> str:
    said = []
    inputs = architecture.stack.inputs
    tables = [(n, e.shape) for n, e in checkpoint.entries.items() if _TABLE.search(n) and len(e.shape) == 2]
    if tables and isinstance(inputs, Tokens) and tables[0][1] != (inputs.vocab, architecture.width):
        name, shape = tables[0]
        said.append(f"{name} is {list(shape)}, the config says [{inputs.vocab}, {architecture.width}]")
    count = len(seen - {None}) + bool(beyond)
    if len(architecture.stacks) == 1 and (count != layers):
        more = "more than " if beyond else ""
        said.append(f"tensors of {more}{layers if beyond else count} layers, the config says {layers}")
    return f": {'; '.join(said)}" if said else ""

"""Tensors by their place in a file: read one at a time, and written back over the same bytes."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from identcli.architecture.errors import UserError

# Names of dtypes as safetensors has them.
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "C128": torch.complex128,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# What can be audited: every value of these is a float64 exactly.
FLOATS = ("F64", "F32", "F16", "BF16")


class BadCheckpoint(UserError):
    """A file that isn't what it seems; the text says which, what it is instead, and how one can tell."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: `count` elements of `dtype` from byte `start` on, seen through shape and stride.

    dtype: the name that safetensors has for it, or the file's own where there is none.
    """

    file: Path
    start: int
    count: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def bytes(self) -> int:
        return self.count * DTYPES[self.dtype].itemsize


def read(entry: Entry) -> Tensor:
    """The tensor in memory of its own, in the file's dtype. Nothing else of the file is read or mapped."""
    if entry.dtype not in DTYPES:
        raise BadCheckpoint(f"{entry.file}: holds a tensor of dtype {entry.dtype}, which can't be read")
    size = entry.bytes
    buffer = bytearray(size)
    with entry.file.open("rb") as file:
        file.seek(entry.start)
        got = file.readinto(buffer)
    if got != size:
        raise BadCheckpoint(
            f"{entry.file}: truncated: a tensor needs bytes up to {entry.start + size}, the file has fewer"
        )
    flat = torch.frombuffer(buffer, dtype=DTYPES[entry.dtype]) if size else torch.empty(0, dtype=DTYPES[entry.dtype])
    return flat.view(entry.shape) if entry.stride is None else flat.as_strided(entry.shape, entry.stride)


def write(entry: Entry, tensor: Tensor) -> None:
    """Put the memory behind a tensor that `read` gave back over the bytes that it came from."""
    if not entry.count:
        return
    flat = tensor.as_strided((entry.count,), (1,), 0)
    with entry.file.open("r+b") as file:
        file.seek(entry.start)
        file.write(flat.view(torch.uint8).numpy().data)


def size_of(file: Path) -> int:
    """Bytes of a file. BadCheckpoint when it is empty or only points to what git-lfs would fetch."""
    try:
        size = os.stat(file).st_size
        with file.open("rb") as content:
            start = content.read(24)
    except OSError as error:
        raise BadCheckpoint(f"{file}: can't be read: {error.strerror}") from None
    if size == 0:
        raise BadCheckpoint(f"{file}: is empty")
    if start.startswith(b"version https://git-lfs"):
        raise BadCheckpoint(f"{file}: is a Git LFS pointer, not the weights: run `git lfs pull` where it came from")
    return size

"""A PyTorch file, of the zip format or the one before it: which tensors lie where, and the plain values around them.

torch's own `weights_only` reader judges the file first; what it refuses is refused. Only then is the pickle read a
second time, for what torch doesn't tell: the bytes at which each tensor lies. That reading makes nothing but plain
containers, numbers, text and records of tensors; any other name in the pickle becomes an inert placeholder.
"""

import pickle
import re
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

from identcli.checkpoints.tensor_file import DTYPES, NAMES, BadCheckpoint, Entry, size_of

# What torch's pickles call the storage of each dtype.
STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128",
}


def load(file: Path) -> Any:
    """The object in the file, with an Entry for each tensor. BadCheckpoint when damaged or more than data."""
    size_of(file)
    _judge(file)
    try:
        with file.open("rb") as stream:
            return _from_zip(file, stream) if zipfile.is_zipfile(file) else _from_legacy(file, stream)
    except (pickle.UnpicklingError, EOFError, struct.error, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise BadCheckpoint(f"{file}: can't be read: {error}") from None


def mend_checksums(file: Path, changed: Iterable[int]) -> None:
    """Put the checksum of each record that holds one of these bytes into the zip's two directories; nothing for others.

    torch doesn't check them, but any other reader of zip files does.
    """
    if not zipfile.is_zipfile(file):
        return
    changed = sorted(changed)
    with zipfile.ZipFile(file) as archive, file.open("r+b") as stream:
        directory = archive.start_dir
        for record in archive.infolist():
            begin = _data(stream, record)
            if any(begin <= byte < begin + record.file_size for byte in changed):
                checksum = struct.pack("<I", _crc(stream, begin, record.file_size))
                stream.seek(directory + 16)
                stream.write(checksum)
                if record.flag_bits & 8:  # it stands behind the data, with or without a signature of its own
                    stream.seek(begin + record.file_size)
                    signed = stream.read(4) == b"PK\x07\x08"
                    stream.seek(begin + record.file_size + 4 * signed)
                else:
                    stream.seek(record.header_offset + 14)
                stream.write(checksum)
            stream.seek(directory + 28)
            directory += 46 + sum(struct.unpack("<HHH", stream.read(6)))


def _judge(file: Path) -> None:
    """Let torch read the file with `weights_only`, but not the data of its tensors."""
    try:
        with torch.serialization.skip_data():
            torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged or crafted file makes the reader raise is anybody's guess
        text = str(error)
        named = re.search(r"GLOBAL ([\w.]+)", text)
        if named:
            raise BadCheckpoint(
                f"{file}: its pickle needs {named[1]}, and running what a pickle names could run anything: refused; "
                "save the tensors alone (safetensors, or torch.save of a state_dict) where you trust the file"
            ) from None
        with file.open("rb") as stream:
            cut = stream.read(4) == b"PK\x03\x04" and not zipfile.is_zipfile(file)
        if cut:
            raise BadCheckpoint(f"{file}: truncated: it begins as a zip file but its end is missing") from None
        reason = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        raise BadCheckpoint(f"{file}: not a PyTorch file, or a damaged one: {reason}") from None


class _Storage(NamedTuple):
    key: str
    dtype: str


class _Unplaced(NamedTuple):
    """A tensor whose storage has no place in the file yet. offset: in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def at(self, file: Path, start: int) -> Entry:
        count = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        count = 0 if 0 in self.shape else count
        size = DTYPES[self.storage.dtype].itemsize if self.storage.dtype in DTYPES else 0
        return Entry(file, start + self.offset * size, count, self.storage.dtype, self.shape, self.stride)


class _Inert:
    """Stands for whatever is neither tensor nor plain value."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> "_Inert":
        return self

    def __setstate__(self, state: Any) -> None: ...


class _Reader(pickle.Unpickler):
    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream, encoding="utf-8")
        self.bytes_per_element: dict[str, int] = {}

    def persistent_load(self, saved: Any) -> _Storage:
        _, dtype, key, _, _, *view = saved
        if view and view[0] is not None:
            raise pickle.UnpicklingError("a storage is a view of another, as in files of PyTorch before 0.4")
        self.bytes_per_element[str(key)] = DTYPES[dtype].itemsize if dtype in DTYPES else 1
        return _Storage(str(key), str(dtype))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return _tensor
        if module == "torch._utils" and name.startswith("_rebuild_parameter"):
            return lambda data, *_: data
        if name.endswith("Storage"):
            return STORAGES.get(name, name)
        known = getattr(torch, name, None) if module == "torch" else None
        return NAMES.get(known, str(known)) if isinstance(known, torch.dtype) else _Inert


def _tensor(storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *rest: Any) -> _Unplaced:
    if len(rest) > 2 and isinstance(rest[2], str):  # the third form tells the dtype, its storage has none
        storage = storage._replace(dtype=rest[2])
    return _Unplaced(storage, offset, tuple(shape), tuple(stride))


def _from_zip(file: Path, stream: IO[bytes]) -> Any:
    with zipfile.ZipFile(file) as archive:
        records = {record.filename: record for record in archive.infolist()}
        root = next(name for name in records if name.endswith("/data.pkl")).removesuffix("data.pkl")
        for record in records.values():
            if record.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile("its records are compressed, which torch.save never does")
        with archive.open(f"{root}data.pkl") as data:
            content = _Reader(data).load()
        starts = {
            name.removeprefix(f"{root}data/"): _data(stream, record)
            for name, record in records.items()
            if name.startswith(f"{root}data/")
        }
    return _placed(content, file, starts)


def _data(stream: IO[bytes], record: zipfile.ZipInfo) -> int:
    """The byte at which the content of a stored record begins."""
    stream.seek(record.header_offset + 26)
    name, extra = struct.unpack("<HH", stream.read(4))
    return record.header_offset + 30 + name + extra


def _crc(stream: IO[bytes], begin: int, size: int) -> int:
    stream.seek(begin)
    checksum = 0
    while size > 0 and (piece := stream.read(min(size, 1 << 22))):
        checksum = zlib.crc32(piece, checksum)
        size -= len(piece)
    return checksum


def _from_legacy(file: Path, stream: IO[bytes]) -> Any:
    """Five pickles (a magic number, the version, the system, the object, the order of the storages), then data."""
    for _ in range(3):
        _Reader(stream).load()
    reader = _Reader(stream)
    content = reader.load()
    starts = {}
    for key in _Reader(stream).load():
        (count,) = struct.unpack("<q", stream.read(8))
        starts[str(key)] = stream.tell()
        stream.seek(count * reader.bytes_per_element[str(key)], 1)
    return _placed(content, file, starts)


def _placed(value: Any, file: Path, starts: Mapping[str, int]) -> Any:
    if isinstance(value, _Unplaced):
        return value.at(file, starts[value.storage.key])
    if isinstance(value, dict):
        return {key: _placed(entry, file, starts) for key, entry in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, _Storage):
        return [_placed(entry, file, starts) for entry in value]
    return value

"""The header of a safetensors file: which tensors lie where."""

import json
import struct
from pathlib import Path

from identcli.checkpoints.tensor_file import DTYPES, BadCheckpoint, Entry, size_of

# The format's own limit; a longer header is no header.
LONGEST_HEADER = 100_000_000


def entries(file: Path) -> dict[str, Entry]:
    """Every tensor of the file, in the order of its header. BadCheckpoint says what is wrong with it."""
    size = size_of(file)
    with file.open("rb") as content:
        length = struct.unpack("<Q", content.read(8).ljust(8, b"\0"))[0]
        if size < 8 or length > LONGEST_HEADER:
            raise BadCheckpoint(f"{file}: not a safetensors file: it would begin with a header of {length} bytes")
        if 8 + length > size:
            raise BadCheckpoint(f"{file}: truncated: its header ends at byte {8 + length}, the file has {size}")
        text = content.read(length)
    try:
        header = json.loads(text)
        found = {name: _entry(file, 8 + length, facts) for name, facts in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(f"{file}: not a safetensors file: its header can't be read ({error})") from None
    promised = (
        8 + length + max((facts["data_offsets"][1] for n, facts in header.items() if n != "__metadata__"), default=0)
    )
    if promised > size:
        raise BadCheckpoint(f"{file}: truncated: its header promises {promised} bytes, the file has {size}")
    for name, entry in found.items():
        begin, end = header[name]["data_offsets"]
        if entry.dtype in DTYPES and entry.bytes != end - begin:
            shape = list(entry.shape)
            raise BadCheckpoint(
                f"{file}: {name} of shape {shape} has {end - begin} bytes where {entry.bytes} are needed"
            )
    return found


def _entry(file: Path, data: int, facts: dict) -> Entry:
    shape = tuple(int(size) for size in facts["shape"])
    begin, _ = facts["data_offsets"]
    entry = Entry(file, data + int(begin), 0, str(facts["dtype"]), shape)
    return Entry(file, entry.start, entry.numel, entry.dtype, shape)

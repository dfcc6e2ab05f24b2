"""An audit as one Parquet file: a row for each pair of each checkpoint, and the summaries as JSON in its metadata."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from identcli.architecture.errors import UserError
from identcli.store import atomic, strictjson

_KEY = b"ident.audit"
_SCHEMA = pa.schema(
    [
        ("checkpoint", pa.dictionary(pa.int32(), pa.string())),
        ("step", pa.int64()),
        ("circuit", pa.dictionary(pa.int32(), pa.string())),
        ("part", pa.dictionary(pa.int32(), pa.string())),
        ("layer", pa.int32()),
        ("group", pa.int32()),
        *(
            (name, pa.float64())
            for name in ("beta", "imbalance", "norm_aa", "norm_bb", "tau", "removable", "condition")
        ),
        ("spectrum", pa.list_(pa.float64())),
    ]
)


def write(path: Path, rows: Sequence[Mapping[str, Any]], summaries: Sequence[Mapping[str, Any]]) -> None:
    """Write the file, whole or not at all. NaN becomes null. UserError when the place can't be written."""
    table = pa.Table.from_pylist([_plain(row) for row in rows], schema=_SCHEMA)
    table = table.replace_schema_metadata({_KEY: strictjson.to_text(list(summaries)).encode()})
    try:
        with atomic.replacing(path) as draft:
            pq.write_table(table, draft, compression="zstd")
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from None


def is_audit(path: Path) -> bool:
    """Whether the path is a file that `write` made."""
    if not path.is_file() or path.suffix != ".parquet":
        return False
    try:
        return _KEY in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowInvalid):
        return False


def read(path: Path) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """The columns as arrays (null is NaN; `spectrum` holds arrays), and the summaries. UserError for another file."""
    if not is_audit(path):
        raise UserError(f"{path}: not an audit: `ident audit CHECKPOINT --parquet FILE` makes one")
    table = pq.read_table(path)
    columns = {}
    for name in _SCHEMA.names:
        column = table[name]
        if name in ("checkpoint", "circuit", "part"):
            columns[name] = np.array(column.to_pylist(), dtype=object)
        elif name == "spectrum":
            columns[name] = np.array([np.array(values) for values in column.to_pylist()] + [None], dtype=object)[:-1]
        else:
            columns[name] = column.to_numpy(zero_copy_only=False)
    return columns, json.loads(table.schema.metadata[_KEY])


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and value != value else value for name, value in row.items()}

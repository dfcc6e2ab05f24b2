"""Metrics as Parquet parts, metrics/<table>/part-<first>-<last>.parquet: writer, reader and the cut of a resume.

A part appears whole or not at all, so any reader of Parquet (pandas, polars, DuckDB: `metrics/heads/*.parquet`) works
while the run goes on, and after a kill at any instant. The numbers in its name bound the steps of its rows.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from identcli.architecture.errors import UserError
from identcli.store import atomic

Kind = Literal["int16", "int32", "int64", "float32", "text"]


class Column(NamedTuple):
    """The type of a column, and whether a row may leave it out (it is null then; only a float32 can be null)."""

    kind: Kind
    optional: bool = False


Table = Mapping[str, Column]
_SCALARS = (int, float, str)


def _floats(names: str, optional: bool = False) -> dict[str, Column]:
    return {name: Column("float32", optional) for name in names.split()}


_STEP = {"step": Column("int32")}
SCHEMAS: Mapping[str, Table] = {
    "train": _STEP | _floats("loss lr grad_norm") | {"tokens": Column("int64")} | _floats("elapsed_s"),
    "eval": _STEP | {"split": Column("text")} | _floats("loss"),
    "heads": _STEP
    | {"layer": Column("int16"), "head": Column("int16"), "circuit": Column("text")}
    | _floats("rho update_norm beta tau mu eig_min_a eig_min_b drift charge_change")
    | _floats("decay_share rho_bias beta_bias drift_bias drift_predicted rho_floor drift_floor", optional=True),
    "biases": _STEP | {"layer": Column("int16")} | _floats("query_max query_norm key_max key_norm"),
}


class DamagedPart(UserError):
    """A part of the metrics that can't be read; the text names the file and the reason."""


class MetricWriter:
    """Collects records in memory and writes them out as one part per table and flush.

    One process writes to a run at a time. `elapsed_s` is the time already spent by the parts of a run that is being
    resumed; `clock` gives seconds and is there for the tests.
    """

    def __init__(
        self,
        folder: Path,
        tables: Mapping[str, Table] = SCHEMAS,
        elapsed_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._tables = tables
        self._required = {
            table: frozenset(name for name, column in columns.items() if not column.optional) - {"step"}
            for table, columns in tables.items()
        }
        self._records: dict[str, list[tuple[int, dict[str, Any]]]] = {table: [] for table in tables}
        self._clock = clock
        self._begin = clock() - elapsed_s
        self._flushed = clock()

    def add(self, table: str, step: int, **columns: Any) -> None:
        """Remember one row, or several when some columns are 1-D arrays of equal length (scalars fill up).

        Arrays are kept by reference until the next flush: don't write into them afterwards. NaN means undefined.
        ValueError names an unknown table or column, a missing column, and lengths that differ.
        """
        if table not in self._tables:
            raise ValueError(f"no metric table {table!r}: there are {', '.join(self._tables)}")
        given = columns.keys()
        if not self._required[table] <= given:
            missing = sorted(self._required[table] - given)
            raise ValueError(f"metric table {table!r}: missing {', '.join(missing)}")
        if not given <= self._tables[table].keys():
            unknown = sorted(given - self._tables[table].keys())
            raise ValueError(f"metric table {table!r}: no such column: {', '.join(unknown)}")
        rows: int | None = None
        for name, value in columns.items():
            if isinstance(value, _SCALARS):
                continue
            shape = value.shape if isinstance(value, np.ndarray) else np.shape(value)
            if not shape:
                continue
            if len(shape) != 1 or (rows is not None and shape[0] != rows):
                expected = "one dimension" if rows is None else f"the length {rows} of the other columns"
                raise ValueError(f"metric {table}.{name}: shape {tuple(shape)}, must have {expected}")
            rows = shape[0]
        if rows != 0:
            self._records[table].append((step, columns))

    def maybe_flush(self) -> bool:
        """Flush if the last one is more than 10 s and more than 2 % of the run's time ago; whether it did.

        So a run of 12 hours leaves fewer than 300 parts, and a kill loses 10 s or 2 % of it at most.
        """
        now = self._clock()
        due = now - self._flushed >= max(10.0, 0.02 * (now - self._begin))
        if due:
            self.flush()
        return due

    def flush(self) -> None:
        """Write all records out. What was written stays, whatever happens next; on an error the rest is kept."""
        for table, records in self._records.items():
            if records:
                _write_part(self._folder / "metrics" / table, _build(table, self._tables[table], records))
                records.clear()
        self._flushed = self._clock()

    def close(self) -> None:
        """Write out what is left."""
        self.flush()

    def __enter__(self) -> "MetricWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def has(folder: Path, table: str) -> bool:
    """Whether a part of the table exists."""
    return bool(_parts(folder, table))


def read(folder: Path, table: str, columns: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The columns of a table (all of them by default) over all parts, sorted by step, rows of a step as written.

    float32 columns hold NaN where undefined, also for all rows of parts older than the column; text columns are
    numpy arrays of fixed-width text. Empty arrays when there is no part. ValueError: no such table or column;
    DamagedPart: a part is broken.
    """
    if table not in SCHEMAS:
        raise ValueError(f"no metric table {table!r}: there are {', '.join(SCHEMAS)}")
    schema = SCHEMAS[table]
    wanted = list(schema) if columns is None else list(columns)
    if unknown := [name for name in wanted if name not in schema]:
        raise ValueError(f"metric table {table!r}: no such column: {', '.join(unknown)}")
    needed = list(dict.fromkeys(["step", *wanted]))
    parts = [_read_part(path, schema, needed) for _, _, path in _parts(folder, table)]
    whole = {name: _concatenate([part[name] for part in parts], schema[name].kind) for name in needed}
    step = whole["step"]
    if np.any(step[1:] < step[:-1]):
        order = np.argsort(step, kind="stable")
        whole = {name: values[order] for name, values in whole.items()}
    return {name: whole[name] for name in wanted}


def cut(folder: Path, step: int, tables: Iterable[str] = tuple(SCHEMAS)) -> None:
    """Drop all rows at or past `step`, which a run resumed from there writes again, and what kills left unfinished.

    A kill in between is harmless: the numbers in a part's name always bound its rows. Call it again then.
    """
    for table in tables:
        place = folder / "metrics" / table
        for leftover in place.glob(f"{atomic.TEMPORARY}*"):
            leftover.unlink()
        for first, last, path in _parts(folder, table):
            if first >= step:
                path.unlink()
            elif last >= step:
                rows = _open_part(path)
                kept = rows.filter(pc.less(rows["step"], step))
                if not len(kept):
                    path.unlink()
                    continue
                _write_parquet(path, kept)
                exact = place / _part_name(kept)
                if not exact.exists():
                    path.rename(exact)
        if place.is_dir():
            atomic.sync_folder(place)


def _build(table: str, schema: Table, records: list[tuple[int, dict[str, Any]]]) -> pa.Table:
    """One Arrow table of all records, in the schema's order of columns."""
    lengths = [max((len(v) for v in columns.values() if np.ndim(v)), default=1) for _, columns in records]
    arrays = {"step": _to_arrow(f"{table}.step", "int32", np.repeat([step for step, _ in records], lengths))}
    scalars = max(lengths) == 1
    for name, (kind, _) in schema.items():
        if name == "step":
            continue
        values = [columns.get(name, np.nan) for _, columns in records]
        if scalars:
            joined = np.array([np.reshape(value, ()) if np.ndim(value) else value for value in values])
        else:
            pairs = zip(values, lengths, strict=True)
            joined = np.concatenate([v if np.ndim(v) else np.full(length, v) for v, length in pairs])
        arrays[name] = _to_arrow(f"{table}.{name}", kind, joined)
    return pa.table(arrays)


def _to_arrow(name: str, kind: Kind, values: np.ndarray) -> pa.Array:
    if kind == "text":
        return pa.array(values.astype(str)).dictionary_encode()
    if kind == "float32":
        with np.errstate(over="ignore"):  # beyond float32 is infinity, as in the training itself
            return pa.array(values.astype(np.float32), from_pandas=True)
    try:
        whole = pa.array(values, from_pandas=True).cast(kind)
    except pa.ArrowInvalid as error:
        raise ValueError(f"metric {name}: {error}") from None
    if whole.null_count:
        raise ValueError(f"metric {name}: an {kind} can't be undefined")
    return whole


def _part_name(rows: pa.Table) -> str:
    bounds = pc.min_max(rows["step"]).as_py()
    return f"part-{bounds['min']:08d}-{bounds['max']:08d}.parquet"


def _write_part(place: Path, rows: pa.Table) -> None:
    """Add a part. Two flushes within one step would share a name: then the rows of both make the part."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / _part_name(rows)
    if path.exists():
        rows = pa.concat_tables([_open_part(path), rows], promote_options="default")
    _write_parquet(path, rows)


def _write_parquet(path: Path, rows: pa.Table) -> None:
    floats = [field.name for field in rows.schema if pa.types.is_floating(field.type)]
    others = [name for name in rows.column_names if name not in floats]
    with atomic.replacing(path) as draft:
        pq.write_table(
            rows,
            draft,
            compression="zstd",
            use_byte_stream_split=floats,
            use_dictionary=others,
            write_page_checksum=True,
        )


def _parts(folder: Path, table: str) -> list[tuple[int, int, Path]]:
    """First step, last step and path of each part, in the order of their steps."""
    paths = (folder / "metrics" / table).glob("part-*.parquet")
    names = ((re.fullmatch(r"part-(\d+)-(\d+)\.parquet", path.name), path) for path in paths)
    return sorted((int(match[1]), int(match[2]), path) for match, path in names if match)


def _open_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            present = set(file.schema_arrow.names)
            return file.read(None if columns is None else [name for name in columns if name in present])
    except (pa.ArrowException, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DamagedPart(f"{path}: damaged part of the metrics: {reason}; move it away to go on") from None


def _read_part(path: Path, schema: Table, columns: list[str]) -> dict[str, Any]:
    """The columns of one part: numpy arrays, or for text the pair of codes and words."""
    rows = _open_part(path, columns)
    part: dict[str, Any] = {}
    for name in columns:
        kind = schema[name].kind
        if name not in rows.column_names:
            if kind != "float32":
                raise DamagedPart(f"{path}: damaged part of the metrics: it has no column {name!r}")
            part[name] = np.full(len(rows), np.nan, np.float32)
        elif kind == "text":
            encoded = rows[name].combine_chunks().dictionary_encode()
            codes, words = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()
            part[name] = (codes, np.array(words, dtype=str))
        else:
            part[name] = rows[name].to_numpy().astype(kind, copy=False)
    return part


def _concatenate(pieces: list[Any], kind: Kind) -> np.ndarray:
    if kind != "text":
        return np.concatenate([np.empty(0, kind), *pieces])
    return np.concatenate([np.empty(0, "U1"), *(words[codes] for codes, words in pieces)])

"""Parquet parts: what goes in comes out, once and in order, whatever was killed in between."""

import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from identcli.store.metrics import SCHEMAS, Column, DamagedPart, MetricWriter, cut, has, read

LAYERS, HEADS = 3, 2
PAIRS = LAYERS * HEADS
LAYER = np.repeat(np.arange(LAYERS), HEADS)
HEAD = np.tile(np.arange(HEADS), LAYERS)
FLOATS = [name for name, column in SCHEMAS["heads"].items() if column.kind == "float32"]
REQUIRED = [name for name in FLOATS if not SCHEMAS["heads"][name].optional]


def train_row(step: int) -> dict[str, Any]:
    return {"loss": 4 - step / 1000, "lr": 1e-3, "grad_norm": 1.0, "tokens": 768 * (step + 1), "elapsed_s": 0.1 * step}


def add_train(writer: MetricWriter, *steps: int) -> None:
    for step in steps:
        writer.add("train", step, **train_row(step))


def add_heads(writer: MetricWriter, step: int, circuit: str = "qk", **changes: Any) -> None:
    values = {name: np.full(PAIRS, step + index / 100) for index, name in enumerate(REQUIRED)} | changes
    writer.add("heads", step, layer=LAYER, head=HEAD, circuit=circuit, **values)


def names(folder: Path, table: str = "train") -> list[str]:
    return sorted(path.name for path in (folder / "metrics" / table).iterdir())


# --- there and back -------------------------------------------------------------------------------------------------


def test_values_come_back_with_the_types_of_the_schema(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written = {name: rng.standard_normal((4, PAIRS)) * 10.0 ** rng.integers(-12, 3) for name in FLOATS}
    with MetricWriter(tmp_path) as writer:
        for index, step in enumerate((0, 10, 20, 30)):
            columns = {name: values[index] for name, values in written.items()}
            writer.add("heads", step, layer=LAYER, head=HEAD, circuit="qk" if index % 2 else "ov", **columns)
            if index == 1:
                writer.flush()
    assert names(tmp_path, "heads") == ["part-00000000-00000010.parquet", "part-00000020-00000030.parquet"]
    back = read(tmp_path, "heads")
    assert list(back) == list(SCHEMAS["heads"])
    assert {name: str(values.dtype) for name, values in back.items() if name != "circuit"} == {
        name: column.kind for name, column in SCHEMAS["heads"].items() if name != "circuit"
    }
    np.testing.assert_array_equal(back["step"], np.repeat([0, 10, 20, 30], PAIRS))
    np.testing.assert_array_equal(back["layer"], np.tile(LAYER, 4))
    np.testing.assert_array_equal(back["circuit"], np.repeat(["ov", "qk", "ov", "qk"], PAIRS))
    assert back["circuit"].dtype.kind == "U"
    for name, values in written.items():
        np.testing.assert_array_equal(back[name], values.reshape(-1).astype(np.float32), err_msg=name)


def test_every_table_takes_what_its_schema_says(tmp_path: Path) -> None:
    samples: dict[str, Any] = {"int16": 1, "int32": 2, "int64": 2**40, "float32": 0.5, "text": "val"}
    with MetricWriter(tmp_path) as writer:
        for table, columns in SCHEMAS.items():
            writer.add(table, 3, **{name: samples[kind] for name, (kind, _) in columns.items() if name != "step"})
    for table, columns in SCHEMAS.items():
        back = read(tmp_path, table)
        assert back["step"].tolist() == [3]
        for name, (kind, _) in columns.items():
            if name != "step":
                assert back[name].tolist() == [samples[kind]], (table, name)


def test_undefined_is_null_in_the_file_and_nan_when_read(tmp_path: Path) -> None:
    with MetricWriter(tmp_path) as writer:
        add_heads(writer, 0, rho=np.array([np.nan, 1, 2, np.nan, 4, 5]), mu=np.nan, decay_share=None, tau=np.inf)
        add_heads(writer, 1)
    (part,) = (tmp_path / "metrics" / "heads").iterdir()
    stored = pq.read_table(part)
    nulls = {name: stored[name].null_count for name in stored.column_names}
    assert nulls["rho"] == 2
    assert nulls["mu"] == PAIRS
    assert nulls["decay_share"] == nulls["rho_floor"] == 2 * PAIRS  # None, and left out
    assert nulls["tau"] == nulls["layer"] == nulls["circuit"] == 0
    assert not any(np.isnan(stored[name].drop_null().to_numpy()).any() for name in FLOATS)
    back = read(tmp_path, "heads", ["rho", "mu", "tau", "rho_floor"])
    np.testing.assert_array_equal(back["rho"][:PAIRS], np.float32([np.nan, 1, 2, np.nan, 4, 5]))
    assert np.isnan(back["mu"][:PAIRS]).all()
    assert np.isinf(back["tau"][:PAIRS]).all()
    assert not np.isnan(back["mu"][PAIRS:]).any()
    assert np.isnan(back["rho_floor"]).all()
    assert back["rho_floor"].dtype == np.float32


def test_types_of_the_file_are_those_other_readers_want(tmp_path: Path) -> None:
    with MetricWriter(tmp_path) as writer:
        add_heads(writer, 0)
    (part,) = (tmp_path / "metrics" / "heads").iterdir()
    schema = pq.read_schema(part)
    assert schema.field("step").type == pa.int32()
    assert schema.field("layer").type == pa.int16()
    assert pa.types.is_dictionary(schema.field("circuit").type)
    assert {schema.field(name).type for name in FLOATS} == {pa.float32()}
    with pq.ParquetFile(part) as file:
        group = file.metadata.row_group(0)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert all("BYTE_STREAM_SPLIT" in columns[name].encodings for name in FLOATS)


def test_selected_columns_and_empty_tables(tmp_path: Path) -> None:
    empty = read(tmp_path, "eval")
    assert {name: (values.shape, values.dtype.kind) for name, values in empty.items()} == {
        "step": ((0,), "i"),
        "split": ((0,), "U"),
        "loss": ((0,), "f"),
    }
    assert not has(tmp_path, "eval")
    with MetricWriter(tmp_path) as writer:
        writer.add("eval", 100, split="train", loss=1.5)
        writer.add("eval", 100, split="val", loss=2.5)
    assert has(tmp_path, "eval")
    assert not has(tmp_path, "train")
    back = read(tmp_path, "eval", ["loss", "split"])
    assert list(back) == ["loss", "split"]
    assert back["loss"].tolist() == [1.5, 2.5]
    assert back["split"].tolist() == ["train", "val"]


def test_flushes_within_one_step_lose_nothing(tmp_path: Path) -> None:
    with MetricWriter(tmp_path) as writer:
        for split in ("train", "val", "other_words"):
            writer.add("eval", 0, split=split, loss=len(split))
            writer.flush()
        add_heads(writer, 0, "qk", rho=1.0)
        writer.flush()
        add_heads(writer, 0, "ov", rho=2.0, rho_floor=3.0)
    assert names(tmp_path, "eval") == ["part-00000000-00000000.parquet"]
    assert read(tmp_path, "eval")["split"].tolist() == ["train", "val", "other_words"]
    heads = read(tmp_path, "heads", ["rho", "circuit", "rho_floor"])
    assert heads["rho"].tolist() == [1.0] * PAIRS + [2.0] * PAIRS
    assert heads["circuit"].tolist() == ["qk"] * PAIRS + ["ov"] * PAIRS
    assert heads["rho_floor"][PAIRS:].tolist() == [3.0] * PAIRS


def test_rows_are_sorted_by_step_and_stable_within_one(tmp_path: Path) -> None:
    many = 50  # an unstable sort keeps the order of a handful by luck
    with MetricWriter(tmp_path) as writer:
        for block, step in enumerate((30, 10, 10, 20, 30, 10)):
            writer.add("eval", step, split="val", loss=block * many + np.arange(many))
            if block == 2:
                writer.flush()
    back = read(tmp_path, "eval")
    assert back["step"].tolist() == np.repeat([10, 10, 10, 20, 30, 30], many).tolist()
    # Both parts go from 10 to 30, so the blocks of the second joined those of the first: 0 to 5 in one file.
    assert back["loss"].tolist() == [block * many + row for block in (1, 2, 5, 3, 0, 4) for row in range(many)]


def test_steps_wider_than_the_padding_stay_in_order(tmp_path: Path) -> None:
    with MetricWriter(tmp_path) as writer:
        for step in (2, 99_999_999, 100_000_000, 2_000_000_000):
            add_train(writer, step)
            writer.flush()
    assert read(tmp_path, "train")["step"].tolist() == [2, 99_999_999, 100_000_000, 2_000_000_000]


def test_the_folder_reads_as_one_data_set_while_temporary_files_lie_there(tmp_path: Path) -> None:
    with MetricWriter(tmp_path) as writer:
        for step in range(4):
            add_heads(writer, step, "qk" if step < 2 else "ov")
            writer.flush()
    place = tmp_path / "metrics" / "heads"
    (place / ".tmp-part-00000004-00000004.parquet-1-ab").write_bytes(b"PAR1 half")
    (place / "notes.txt").write_text("foreign")
    (place / "part-a-b.parquet").write_text("foreign")
    (place / "part-00000000-00000001.parquet.bak").write_text("foreign")
    assert len(read(tmp_path, "heads")["step"]) == 4 * PAIRS
    (place / "notes.txt").unlink()
    (place / "part-a-b.parquet").unlink()
    (place / "part-00000000-00000001.parquet.bak").unlink()
    rows = pyarrow.dataset.dataset(place, format="parquet").to_table()
    assert len(rows) == 4 * PAIRS
    assert sorted(set(rows["circuit"].to_pylist())) == ["ov", "qk"]


def test_a_column_added_later_is_undefined_before(tmp_path: Path) -> None:
    old = {"train": {name: column for name, column in SCHEMAS["train"].items() if name != "grad_norm"}}
    with MetricWriter(tmp_path, old) as writer:
        writer.add("train", 0, **{name: value for name, value in train_row(0).items() if name != "grad_norm"})
    with MetricWriter(tmp_path) as writer:
        add_train(writer, 1)
    np.testing.assert_array_equal(read(tmp_path, "train")["grad_norm"], np.float32([np.nan, 1.0]))


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ("trian", {}, "no metric table 'trian': there are train, eval, heads, biases"),
        ("eval", {"loss": 1.0}, "metric table 'eval': missing split"),
        ("eval", {}, "metric table 'eval': missing loss, split"),
        ("eval", {"split": "val", "loss": 1.0, "los": 1}, "metric table 'eval': no such column: los"),
        ("eval", {"split": ["a", "b"], "loss": np.ones(3)}, r"metric eval.loss: shape \(3,\), must have the length 2"),
        (
            "eval",
            {"split": "val", "loss": np.ones((2, 2))},
            r"metric eval.loss: shape \(2, 2\), must have one dimension",
        ),
    ],
)
def test_a_wrong_record_is_named_at_once(tmp_path: Path, table: str, columns: dict[str, Any], message: str) -> None:
    writer = MetricWriter(tmp_path)
    with pytest.raises(ValueError, match=message):
        writer.add(table, 0, **columns)
    writer.close()
    assert not (tmp_path / "metrics").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer": 40_000}, "metric heads.layer: .*40000"),
        ({"layer": 1.5}, "metric heads.layer: .*1.5"),
        ({"head": np.nan}, "metric heads.head: an int16 can't be undefined"),
    ],
)
def test_integers_are_never_wrapped_or_rounded(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    writer = MetricWriter(tmp_path)
    columns = dict.fromkeys(REQUIRED, 0.0) | {"layer": 0, "head": 0, "circuit": "qk"} | change
    writer.add("heads", 0, **columns)
    with pytest.raises(ValueError, match=message):
        writer.flush()


def test_an_empty_record_is_no_row(tmp_path: Path) -> None:
    none = np.empty(0)
    with MetricWriter(tmp_path) as writer:
        writer.add("biases", 0, layer=none, query_max=none, query_norm=none, key_max=none, key_norm=none)
    assert not has(tmp_path, "biases")


def test_an_unknown_table_or_column_is_named_by_the_reader(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no metric table 'x': there are train, eval, heads, biases"):
        read(tmp_path, "x")
    with pytest.raises(ValueError, match="metric table 'eval': no such column: x, y"):
        read(tmp_path, "eval", ["loss", "x", "y"])


@pytest.mark.parametrize("damage", ["empty", "half", "text", "flipped", "pointer"])
def test_a_damaged_part_is_named(tmp_path: Path, damage: str) -> None:
    with MetricWriter(tmp_path) as writer:
        add_train(writer, *range(500))
        writer.flush()
        add_train(writer, *range(500, 600))
    part = tmp_path / "metrics" / "train" / "part-00000000-00000499.parquet"
    content = bytearray(part.read_bytes())
    with pq.ParquetFile(part) as file:
        loss = file.metadata.row_group(0).column(1)
    content[loss.data_page_offset + loss.total_compressed_size - 10] ^= 0x40
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    half = part.read_bytes()[: len(content) // 2]
    part.write_bytes(
        {"empty": b"", "half": half, "text": b"abc", "flipped": bytes(content), "pointer": pointer}[damage]
    )
    with pytest.raises(
        DamagedPart, match=r"part-00000000-00000499.parquet: damaged part of the metrics: .*\S"
    ) as caught:
        read(tmp_path, "train")
    assert "\n" not in str(caught.value)


def test_a_part_without_its_key_column_is_damaged(tmp_path: Path) -> None:
    place = tmp_path / "metrics" / "eval"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"step": pa.array([0], pa.int32())}), place / "part-00000000-00000000.parquet")
    with pytest.raises(DamagedPart, match="it has no column 'split'"):
        read(tmp_path, "eval")


# --- when ---------------------------------------------------------------------------------------------------------


def test_flushing_waits_for_ten_seconds_or_two_percent(tmp_path: Path) -> None:
    now = 1000.0
    writer = MetricWriter(tmp_path, clock=lambda: now)
    flushed_at, step = [], 0
    while now < 1000 + 1000:
        now += 1.0
        add_train(writer, step)
        step += 1
        if writer.maybe_flush():
            flushed_at.append(now - 1000)
    gaps = np.diff([0.0, *flushed_at])
    assert gaps[:50].tolist() == [10.0] * 50  # 2 % of up to 500 s is at most 10 s
    assert all(gap - 1 < 0.02 * at <= gap for gap, at in zip(gaps[50:], flushed_at[50:], strict=True))
    assert len(names(tmp_path)) == len(flushed_at)
    assert read(tmp_path, "train")["step"].tolist() == list(range(int(flushed_at[-1])))


def test_a_resumed_run_counts_the_time_it_has_behind_it(tmp_path: Path) -> None:
    now = 0.0
    writer = MetricWriter(tmp_path, elapsed_s=36_000.0, clock=lambda: now)
    now = 719.0
    assert not writer.maybe_flush()
    now = 736.0
    assert writer.maybe_flush()


def test_adding_is_cheap(tmp_path: Path) -> None:
    writer = MetricWriter(tmp_path)
    row = train_row(0)
    least = min(_seconds(lambda: writer.add("train", 0, **row), 200) for _ in range(20)) / 200
    assert least < 20e-6  # about 2 µs; the least of many rounds, so a busy machine does not matter


def _seconds(action: Any, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        action()
    return time.perf_counter() - begin


def test_a_full_disk_keeps_the_records_for_the_next_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = MetricWriter(tmp_path)
    add_train(writer, 0, 1)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
    assert names(tmp_path) == []
    add_train(writer, 2)
    writer.close()
    assert read(tmp_path, "train")["step"].tolist() == [0, 1, 2]


# --- resuming -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 99, 100, 150, 199, 200, 250, 300, 10_000])
def test_a_cut_and_a_repeat_equal_a_straight_run(tmp_path: Path, step: int) -> None:
    with MetricWriter(tmp_path) as writer:
        for first in (0, 100, 200):
            for k in range(first, first + 100):
                add_train(writer, k)
                if k % 10 == 0:
                    add_heads(writer, k)
            writer.flush()
    straight = {table: read(tmp_path, table) for table in ("train", "heads")}
    (tmp_path / "metrics" / "train" / ".tmp-left-over").write_bytes(b"")
    cut(tmp_path, step)
    left = read(tmp_path, "train")["step"]
    assert left.tolist() == list(range(min(step, 300)))
    assert all(int(name[14:22]) < step for name in names(tmp_path))
    assert not any(name.startswith(".") for name in names(tmp_path))
    with MetricWriter(tmp_path) as writer:
        for k in range(step, 300):
            add_train(writer, k)
            if k % 10 == 0:
                add_heads(writer, k)
    for table, columns in straight.items():
        for name, values in read(tmp_path, table).items():
            np.testing.assert_array_equal(values, columns[name], err_msg=f"{table}.{name}")


def test_a_cut_takes_only_the_tables_it_is_given(tmp_path: Path) -> None:
    with MetricWriter(tmp_path) as writer:
        for step in range(10):
            add_train(writer, step)
            writer.add("eval", step, split="val", loss=1.0)
    cut(tmp_path, 5, ["train"])
    cut(tmp_path, 6, ["eval"])
    assert read(tmp_path, "train")["step"].tolist() == list(range(5))
    assert read(tmp_path, "eval")["step"].tolist() == list(range(6))


def test_a_cut_killed_before_its_rename_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MetricWriter(tmp_path) as writer:
        add_train(writer, *range(100))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            cut(tmp_path, 50)
    assert read(tmp_path, "train")["step"].tolist() == list(range(50))
    cut(tmp_path, 40)
    assert read(tmp_path, "train")["step"].tolist() == list(range(40))
    assert names(tmp_path) == ["part-00000000-00000039.parquet"]


CHILD = """
import sys
from pathlib import Path
import numpy as np
from identcli.store import events, record
from identcli.store.metrics import MetricWriter
folder, step = Path(sys.argv[1]), int(sys.argv[2])
writer = MetricWriter(folder)
while True:
    for step in range(step, step + 3):
        writer.add("train", step, loss=step, lr=0.1, grad_norm=np.nan, tokens=step, elapsed_s=0.0)
        norms = dict(query_max=np.full(4, step), query_norm=1.0, key_max=1.0, key_norm=1.0)
        writer.add("biases", step, layer=np.arange(4), **norms)
    step += 1
    writer.flush()
    events.append(folder, {"step": step, "text": "x" * 5000})
    record.write_status(folder, state="running", step=step)
    print(step, flush=True)
"""


def test_nothing_written_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    """A child flushes every 3 steps and says so; it is killed in the midst, three times, and resumed in between."""
    from identcli.store import events, record

    begin = 0
    for rounds in (1, 7, 20):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(begin)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            told = begin
            for _ in range(rounds):
                told = int(child.stdout.readline())
            child.kill()
            child.wait()
            told = max([told, *map(int, child.stdout.read().split())])
        train, biases = read(tmp_path, "train"), read(tmp_path, "biases")
        assert len(train["step"]) >= told
        assert train["step"].tolist() == list(range(len(train["step"])))
        assert train["loss"].tolist() == train["step"].tolist()
        assert len(biases["step"]) >= 4 * told
        assert biases["step"].tolist() == np.repeat(np.arange(len(biases["step"]) // 4), 4).tolist()
        assert [event["step"] for event in events.read(tmp_path)][-1] >= told
        assert record.read_status(tmp_path)["step"] >= told
        begin = told - 2  # the resume's checkpoint lies within a part
        cut(tmp_path, begin)
        events.keep(tmp_path, lambda event, last=begin: event["step"] <= last)
        assert read(tmp_path, "train")["step"].tolist() == list(range(begin))


# --- size -----------------------------------------------------------------------------------------------------------


def test_a_long_run_reads_fast(tmp_path: Path) -> None:
    """450,000 rows in 25 parts; no Python object per row, as the peak of memory shows: text as objects adds 25 MB."""
    schema = {name: SCHEMAS["heads"][name] for name in ("step", "layer", "head", "circuit", "rho")}
    parts, steps, rows = 25, 250, 36
    circuit = np.repeat(["qk", "ov"], rows)
    rho = np.random.default_rng(0).random(2 * rows)
    with MetricWriter(tmp_path, {"heads": schema}) as writer:
        for part in range(parts):
            for step in range(part * steps, part * steps + steps):
                writer.add("heads", step, layer=0, head=0, circuit=circuit, rho=rho)
            writer.flush()
    columns = ["step", "circuit", "rho"]
    least = min(_seconds(lambda: read(tmp_path, "heads", columns), 1) for _ in range(3))
    assert least < 1.0  # about 0.03 s
    tracemalloc.start()
    back = read(tmp_path, "heads", columns)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(back["step"]) == parts * steps * 2 * rows
    np.testing.assert_array_equal(back["circuit"], np.tile(circuit, parts * steps))
    assert peak < 3 * sum(values.nbytes for values in back.values())


def test_schemas_can_be_extended(tmp_path: Path) -> None:
    own = dict(SCHEMAS) | {"train": {**SCHEMAS["train"], "extra": Column("float32", optional=True)}}
    with MetricWriter(tmp_path, own) as writer:
        writer.add("train", 0, **train_row(0), extra=1.0)
    assert "extra" not in read(tmp_path, "train")  # another version's column does not disturb this one

"""The record of truth: every row comes back as it was written, whatever a kill or a full disk cuts short."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evalkit
from evalkit.__main__ import main
from evalkit.core import studies, tidy
from evalkit.core.errors import UserError
from evalkit.core.moved import ACCURACY, RECALL, TEXT
from evalkit.core.rows import (
    FIELDS,
    RECALL_METRICS,
    Header,
    Row,
    RowLog,
    encode,
    encode_header,
    offset_after,
    read,
    record_bytes,
    row,
    value,
    with_records,
)
from evalkit.evaluations.recall import rows as recall_rows
from support.shrunk import sampled

RESULTS = Path(__file__).parents[2] / "studies"


def first_line(folder: Path) -> dict[str, Any]:
    """What a kept record begins with: its header, or in older ones a row."""
    return json.loads(record_bytes(folder).partition(b"\n")[0])


OLD = [folder for folder in with_records(RESULTS) if "metric" in first_line(folder)]
KIND = "evalkit.evaluations.extrapolation.report"
HEADER = Header(
    "r",
    "t",
    "m",
    "evalkit.evaluations.extrapolation.report",
    parameters=5,
    seeds=(0, 1),
    notes=("a",),
    text={"used": "u"},
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.none() | st.text(max_size=8)
NUMBER = st.none() | st.integers(0, 2**40)
ROWS = st.builds(
    row,
    metric=st.text(max_size=8),
    run=WORDS,
    task=WORDS,
    model=WORDS,
    seed=NUMBER,
    step=NUMBER,
    split=WORDS,
    length=NUMBER,
    position=NUMBER,
    total=st.none() | FINITE,
    count=NUMBER,
    extra=st.none() | st.dictionaries(st.text(max_size=4), FINITE | st.text(max_size=4) | st.booleans()),
)


def write(folder: Path, entries: list[Row]) -> Path:
    path = folder / "metrics.jsonl"
    path.unlink(missing_ok=True)
    with RowLog(path) as log:
        log.write(entries)
    return path


@pytest.mark.slow
@given(entries=st.lists(ROWS, max_size=5))
def test_rows_come_back_as_written(tmp_path_factory: pytest.TempPathFactory, entries: list[Row]) -> None:
    folder = tmp_path_factory.mktemp("run")
    write(folder, entries)
    assert read(folder).rows == entries


@given(number=FINITE)
def test_a_float_keeps_every_bit(number: float) -> None:
    total = json.loads(encode(row(metric="loss", total=number)))["total"]
    assert math.copysign(1, total) == math.copysign(1, number)
    assert total == number


def test_a_row_has_the_fields_of_the_contract_in_their_order() -> None:
    assert tuple(row(metric="loss")) == FIELDS
    assert list(json.loads(encode(row(metric="loss")))) == list(FIELDS)


def test_array_scalars_become_numbers() -> None:
    entry = row(metric="loss", seed=np.int32(1), total=np.float32(0.5), count=np.int64(2), extra={"n": np.int64(3)})
    assert json.loads(encode(entry))["extra"] == {"n": 3}
    assert (entry["seed"], entry["total"], entry["count"]) == (1, 0.5, 2)
    assert [type(entry[name]) for name in ("seed", "total", "count")] == [int, float, int]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_non_finite_total_is_valid_json_and_keeps_its_name(tmp_path: Path, number: float) -> None:
    write(tmp_path, [row(metric="loss", total=number, count=1, extra={"stage": number})])
    [found] = read(tmp_path).rows
    assert found["total"] is None
    assert found["extra"] == {"stage": str(number), "value": str(number)}
    assert math.isnan(value(found))


@given(cut=st.integers(0, 400))
def test_a_kill_at_any_byte_loses_only_the_line_it_cut(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    entries = [row(metric="loss", step=step, total=step / 7, count=3) for step in range(3)]
    path = write(folder, entries)
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    survivors = entries[: data.count(b"\n")]
    assert read(folder).rows == survivors
    with RowLog(path) as log:
        log.write(entries[:1])
    assert read(folder).rows == [*survivors, entries[0]]


def test_opening_at_an_offset_forgets_what_was_written_after_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first, second, third = (row(metric="loss", step=step) for step in range(3))
    with RowLog(path) as log:
        log.write([first])
        offset = log.sync()
        log.write([second])
    assert offset == len(encode(first)) + 1
    with RowLog(path, offset) as log:
        assert log.offset == offset
        log.write([third])
        assert log.sync() == path.stat().st_size
    assert read(tmp_path).rows == [first, third]


def test_a_row_can_be_read_before_the_log_is_closed(tmp_path: Path) -> None:
    with RowLog(tmp_path / "metrics.jsonl") as log:
        log.write([row(metric="loss")])
        assert len(read(tmp_path).rows) == 1


def test_a_file_shorter_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [row(metric="loss")])
    with pytest.raises(UserError, match=r"metrics\.jsonl has \d+ bytes but its checkpoint 9999"):
        RowLog(path, 9999)


def test_a_missing_record_and_a_damaged_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"no metrics\.jsonl in {tmp_path}"):
        read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:1 is not a row"):
        read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("\n{}")
    with pytest.raises(UserError, match=r"metrics\.jsonl:1 is not JSON"):
        read(tmp_path)


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs.json").write_text(json.dumps({"gone": {studies.ROWS: [0, 9]}}))
    with pytest.raises(UserError, match=r"cannot read .*rows\.jsonl\.gz: No such file"):
        read(tmp_path / "gone")
    (tmp_path / "metrics.jsonl").write_text("{}\n")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"cannot read .*metrics\.jsonl: Permission denied; bring it back, or give"):
        read(tmp_path)


def test_rows_of_several_runs_form_one_table(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        write(tmp_path / name, [row(metric="loss", run=name, total=3, count=2, extra={"after": 1})])
    found = evalkit.rows(tmp_path / "a", str(tmp_path / "b"))
    assert found == evalkit.rows(tmp_path) == evalkit.rows([tmp_path / "a"], tmp_path / "b")
    assert [entry["run"] for entry in found] == ["a", "b"]
    assert [entry["folder"] for entry in found] == [str(tmp_path / name) for name in "ab"]
    assert [(entry["value"], entry["sequences"], entry["extra_after"]) for entry in found] == [(1.5, 2, 1)] * 2


@given(entries=st.lists(ROWS, min_size=1, max_size=5))
def test_a_tidy_record_says_what_its_row_says(tmp_path_factory: pytest.TempPathFactory, entries: list[Row]) -> None:
    folder = tmp_path_factory.mktemp("run")
    write(folder, entries)
    for record, entry in zip(tidy.records([folder]), entries, strict=True):
        kept = {name for name in FIELDS if name not in ("total", "count", "extra")}
        assert tuple(record)[: len(tidy.COLUMNS)] == tidy.COLUMNS
        assert {name: record[name] for name in kept} == {name: entry[name] for name in kept}
        assert record["value"] == value(entry) or (math.isnan(record["value"]) and math.isnan(value(entry)))
        assert {name[6:]: told for name, told in record.items() if name.startswith("extra_")} == entry["extra"]


@pytest.mark.parametrize("total", [math.inf, -math.inf])
def test_a_total_that_is_not_finite_is_told(tmp_path: Path, total: float) -> None:
    write(tmp_path, [row(metric="loss", total=total, count=1)])
    (found,) = tidy.records([tmp_path])
    assert found["value"] == total and tuple(found) == tidy.COLUMNS


@pytest.mark.slow
def test_a_data_frame_of_the_records_has_integers_and_every_column_by_a_dot(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    extra = {name: 1 for found in OLD for entry in read(found).rows[-2:] for name in entry["extra"]}
    write(tmp_path, [row(metric="loss", seed=0, step=2, length=n, total=1, count=4, extra=extra) for n in (16, 32)])
    table = pandas.DataFrame(evalkit.rows(tmp_path))
    assert {name: str(table[name].dtype) for name in ("seed", "step", "length", "sequences", "value")} == {
        **dict.fromkeys(("seed", "step", "length", "sequences"), "int64"),
        "value": "float64",
    }
    assert not [name for name in table.columns if name in dir(pandas.DataFrame)]
    assert table.length.tolist() == [16, 32] and extra


def test_the_verb_rows_writes_the_same_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = {"right": [1, 2]}
    entries = [row(metric="loss", split="test", step=1, total=1, count=4), row(metric="accuracy", extra=extra)]
    write(tmp_path, entries)
    assert main(["rows", str(tmp_path), f"csv={tmp_path / 'all.csv'}"]) == 0
    assert capsys.readouterr().out == f"written to {tmp_path / 'all.csv'}\n"
    found = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert [(entry["folder"], entry["metric"], entry["value"]) for entry in found] == [
        (str(tmp_path), "loss", "0.25"),
        (str(tmp_path), "accuracy", ""),
    ]
    assert [entry["extra_right"] for entry in found] == ["", "[1, 2]"]
    assert main(["rows", str(tmp_path), "split=test"]) == 0
    assert next(csv.DictReader(capsys.readouterr().out.splitlines()))["step"] == "1"
    for words in (["csv=x"], ["nowhere"], [str(tmp_path), "metric=los"]):
        assert main(["rows", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*missing"):
        RowLog(tmp_path / "missing" / "metrics.jsonl")


def test_a_full_disk_is_one_clear_line_and_leaves_whole_rows(tmp_path: Path) -> None:
    limit = 1000
    program = (
        "import resource, sys; from pathlib import Path; from evalkit.core.errors import UserError\n"
        "from evalkit.core.rows import RowLog, row\n"  # before the limit: it would cut the byte code that Python keeps
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "log = RowLog(Path(sys.argv[1]))\n"
        "try:\n    log.write(row(metric='loss', step=step) for step in range(100))\n"
        "except UserError as error:\n    print(error); sys.exit(error.exit_code)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "metrics.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.count("\n") == 1
    assert "metrics.jsonl: File too large" in done.stdout
    found = read(tmp_path).rows
    assert [entry["step"] for entry in found] == list(range(len(found)))
    assert found
    assert (tmp_path / "metrics.jsonl").read_bytes().endswith(b"\n")


def test_a_header_comes_back_as_written_and_is_no_row(tmp_path: Path) -> None:
    entry = row(metric="loss", step=1)
    with RowLog(tmp_path / "metrics.jsonl") as log:
        log.begin(HEADER)
        log.write([entry])
        with pytest.raises(ValueError, match="a header is the first line"):
            log.begin(HEADER)
    assert read(tmp_path) == (HEADER, [entry])
    first = (tmp_path / "metrics.jsonl").read_text().splitlines()[0]
    assert first == encode_header(HEADER) and "metric" not in json.loads(first)


def test_a_record_is_cut_after_so_many_rows(tmp_path: Path) -> None:
    entries = [row(metric="loss", step=step) for step in range(3)]
    path = tmp_path / "metrics.jsonl"
    with RowLog(path) as log:
        log.begin(HEADER)
        log.write(entries)
    RowLog(path, offset_after(tmp_path, 2)).close()
    assert read(tmp_path) == (HEADER, entries[:2])


def test_an_empty_extra_is_written_as_null_and_read_as_a_dictionary(tmp_path: Path) -> None:
    assert json.loads(encode(row(metric="loss")))["extra"] is None
    write(tmp_path, [row(metric="loss")])
    assert read(tmp_path).rows[0]["extra"] == {}


@pytest.mark.parametrize("folder", sampled(OLD, 5), ids=[str(path.relative_to(RESULTS)) for path in OLD])
def test_a_record_of_before_the_header_is_read(folder: Path) -> None:
    """The first line of each has the metric `parameters` and the facts in `extra`."""
    first, *others = map(json.loads, record_bytes(folder).splitlines())
    header, found = read(folder)
    assert (header.run, header.task, header.model) == (first["run"], first["task"], first["model"])
    assert header.parameters == first["total"] > 0
    assert {name: getattr(header, name) for name in ("train_length", "window", "chance", "steps", "text")} == {
        name: first["extra"].get(name) for name in ("train_length", "window", "chance", "steps", "text")
    }
    assert (list(header.notes), list(header.seeds)) == (first["extra"]["notes"], first["extra"]["seeds"])
    recall = any(entry["metric"] in recall_rows.RAW for entry in others)
    assert header.kind == (TEXT if folder.parent.name == "text" else RECALL if recall else ACCURACY)
    assert [entry | {"extra": entry["extra"] or None} for entry in found] == others


def test_the_metrics_that_tell_recall_are_its_own() -> None:
    assert set(recall_rows.RAW) == RECALL_METRICS

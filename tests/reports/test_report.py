"""What a report says is what the rows hold, whatever part of a run is missing; terminals show every word of a table."""

import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.lines import Line2D
from rich.console import Console

from evalkit.core.errors import UserError
from evalkit.core.rows import Header, Record, RowLog, row
from evalkit.core.statistics import wilson
from evalkit.evaluations.extrapolation.report import scaled_tables, span_tables
from evalkit.evaluations.extrapolation.summary import extrapolation_curve, learning_curve, probe_lengths, summarise
from evalkit.reports import page
from evalkit.reports.canvas import length_label, settle
from evalkit.reports.curves import Frame, length_figure, save, seed_figure, svg
from evalkit.reports.numbers import Curve, Point
from evalkit.reports.pooling import Line, Run
from evalkit.reports.terminal import print_table
from evalkit.reports.writer import report
from support.made_up_runs import LADDER, SEQUENCES, STEPS, falls, learns, run_record, scores, write_run

NAMES: dict[str, Any] = {"run": "griffin-1", "task": "induction_heads", "model": "griffin"}


def printed(folder: Path) -> str:
    console = Console(file=io.StringIO(), width=100)
    report(folder, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line_of(record: Record) -> Line:
    """The line of one run, as a page of it alone has."""
    return Line("griffin", [Run(Path(), record, {})], alone=True)


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def test_steps_to_a_level_are_the_first_validation_that_has_it() -> None:
    first, second = summarise(run_record(seeds=(0, 1)))["seeds"]
    assert first["steps_to"] == {"0.5": 50, "0.7": 50, "0.9": 50, "0.99": 100, "1.0": 100}
    assert [second["steps_to"][level] for level in ("0.9", "0.99", "1.0")] == [100, 150, 150]


def test_the_area_is_the_mean_accuracy_over_the_steps() -> None:
    """Between the first validation and the last; a level that is reached a step sooner changes it little."""
    found = summarise(run_record(seeds=(0, 1)))
    for seed in (0, 1):
        right = [learns(step, seed) / SEQUENCES for step in STEPS]
        assert found["seeds"][seed]["area"] == pytest.approx(np.trapezoid(right, STEPS) / (STEPS[-1] - STEPS[0]))
    header, rows = run_record()
    alone = summarise(Record(header, [entry for entry in rows if entry["step"] in (None, STEPS[0])]))
    assert alone["seeds"][0]["area"] is None and alone["aggregate"]["area"]["seeds"] == 0


def test_a_level_that_was_not_reached_is_null_and_takes_the_mean_away() -> None:
    header, rows = run_record(seeds=(0, 1))
    summary = summarise(Record(header, [entry for entry in rows if entry["step"] is None or entry["step"] < 150]))
    assert summary["seeds"][1]["steps_to"] == {"0.5": 100, "0.7": 100, "0.9": 100, "0.99": None, "1.0": None}
    assert summary["aggregate"]["steps_to"]["0.99"] == {
        "mean": None,
        "median": None,
        "min": 100,
        "max": None,
        "seeds": 1,
    }
    assert summary["aggregate"]["steps_to"]["0.9"]["mean"] == 75


def test_the_ladder_holds_each_length_and_seed_with_its_interval() -> None:
    summary = summarise(run_record(seeds=(0, 1), not_run=[2048]))
    assert [(record["length"], record["seed"]) for record in summary["extrapolation"]] == [
        (length, seed) for length in LADDER for seed in (0, 1)
    ]
    for record in summary["extrapolation"]:
        right = falls(record["length"], record["seed"])
        assert record["accuracy"] == right / SEQUENCES
        assert (record["low"], record["high"]) == wilson(right, SEQUENCES)
        assert record["sequences"] == SEQUENCES
    assert summary["not_run"] == [{"length": 2048, "reason": "quadratic"}]
    last = summary["aggregate"]["extrapolation"][-1]
    assert (last["accuracy"]["min"], last["accuracy"]["max"]) == (15 / 64, 16 / 64)


def test_validation_at_the_training_length_is_told_from_probes() -> None:
    record = run_record()
    assert probe_lengths(record) == [512]
    assert [point.x for point in learning_curve(record).seeds[0]] == list(STEPS)
    assert learning_curve(record).seeds[0][-1].value == 1.0
    assert learning_curve(record, 512).seeds[0][-1].value == 0.5


def test_what_is_late_is_the_median_of_the_last_four_looks_at_a_longer_length() -> None:
    record = run_record()
    for number, step in enumerate((50, 100, 150, 200, 250)):
        record.rows.extend(scores(10 * number, "validation", step, 1024, 0, NAMES))
    found = {entry["length"]: entry for entry in summarise(record)["late"]}
    assert found[1024] == {"length": 1024, "seed": 0, "looks": 4, "accuracy": 25 / 64} and set(found) == {512, 1024}


def test_a_later_evaluation_replaces_an_earlier_one_and_makes_up_for_a_length_not_run() -> None:
    record = run_record(not_run=[2048])
    record.rows.extend(scores(3, "test", STEPS[-1], 64, 0, NAMES) + scores(2, "test", 9999, 2048, 0, NAMES))
    summary, curve = summarise(record), extrapolation_curve(record)
    assert [record["accuracy"] for record in summary["extrapolation"] if record["length"] == 64] == [3 / 64]
    assert summary["not_run"] == []
    assert (curve.seeds[0][0].value, curve.seeds[0][-1].x, list(curve.not_run)) == (3 / 64, 2048, [])


def test_rows_of_another_task_and_of_single_positions_stay_out() -> None:
    other = scores(1, "test", STEPS[-1], 64, 0, {**NAMES, "task": "phonebook"})
    place: dict[str, Any] = {"split": "test", "length": 64, "step": STEPS[-1], "seed": 0, "position": 3, "count": 64}
    record = run_record()
    record.rows.extend([*other, row(**NAMES, **place, metric="accuracy", total=0)])
    assert summarise(record)["extrapolation"] == summarise(run_record())["extrapolation"]


def test_accuracy_is_scaled_where_a_guess_is_often_right() -> None:
    """A guess has 0, all right 1; at a chance of 1/16 accuracy says enough, and of two lines one may have a chance."""
    record = run_record(seeds=(0,))
    assert not scaled_tables([line_of(record)])
    half = record._replace(header=replace(record.header, chance=0.5))
    (table,) = scaled_tables([line_of(record), line_of(half)])
    accuracies = [at["accuracy"]["median"] for at in summarise(half)["aggregate"]["extrapolation"]]
    assert table.lines == [["griffin", *(f"{2 * accuracy - 1:.3f}" for accuracy in accuracies)]]


def test_spans_of_positions_have_a_table() -> None:
    """Of the longest sequences, the median over seeds; and none where no row is of a span."""
    record = run_record(seeds=(0, 1))
    assert "spans" not in summarise(record) and not span_tables([line_of(record)])
    for length, last, seed, total in ((40, 20, 0, 9), (40, 40, 0, 3), (40, 40, 1, 1), (20, 20, 1, 5)):
        place: dict[str, Any] = {"split": "test", "length": length, "step": 150, "seed": seed, "position": last}
        record.rows.append(row(**NAMES, **place, metric="accuracy", total=total, count=10, extra={"first": last - 19}))
    found = [(span["length"], span["first"], span["last"], span["seed"]) for span in summarise(record)["spans"]]
    assert found == [(20, 1, 20, 1), (40, 1, 20, 0), (40, 21, 40, 0), (40, 21, 40, 1)]
    (table,) = span_tables([line_of(record)])
    assert (table.header, table.lines) == (["positions up to", "20", "40"], [["griffin", "0.900", "0.200"]])


def test_spans_stand_beside_those_of_sequences_as_long(tmp_path: Path) -> None:
    """Of the longest length that all lines have; a table a length where they share none."""

    def line(label: str, *lengths: int) -> Line:
        record = run_record(seeds=(0,))
        for length in lengths:
            place: dict[str, Any] = {"split": "test", "length": length, "step": 150, "seed": 0, "position": 20}
            scored = {"total": 100 // length, "count": 10, "extra": {"first": 1}}
            record.rows.append(row(**NAMES, **place, metric="accuracy", **scored))
        return Line(label, [Run(Path(), record, {})])

    (table,) = span_tables([line("a", 20, 40), line("b", 20)])
    assert table.heading.endswith("of 20 tokens") and table.lines == [["a", "0.500"], ["b", "0.500"]]
    first, second = span_tables([line("a", 40), line("b", 20)])
    assert (first.lines, second.lines) == ([["b", "0.500"]], [["a", "0.200"]])


def test_of_two_validations_at_one_step_the_one_on_more_sequences_counts() -> None:
    """An older run looked at its training length, too."""
    header, rows = run_record(seeds=(0,))
    looks = [
        {**entry, "total": 0.0, "count": 1}
        for entry in rows
        if (entry["split"], entry["length"]) == ("validation", header.train_length)
    ]
    assert looks and summarise(Record(header, [*rows, *looks])) == summarise(Record(header, rows))


def test_the_median_over_seeds_can_ask_for_every_seed() -> None:
    both, one = Point(1, 0.5, 0, 1, 9), Point(2, 1.0, 0, 1, 9)
    curve = Curve("", {0: [both, one], 1: [Point(1, 0.7, 0, 1, 9)]})
    assert curve.over_seeds(complete=True) == [(1, pytest.approx(0.6), 0.5, 0.7)]
    assert curve.over_seeds()[-1] == (2, 1.0, 1.0, 1.0)


def test_a_report_writes_its_files_and_says_the_numbers(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", run_record(not_run=[2048], notes=["Trained with a length curriculum."]))
    text = printed(folder)
    results = json.loads((folder / "results.json").read_text())
    assert results == summarise(run_record(not_run=[2048], notes=["Trained with a length curriculum."]))
    assert (results["schema"], results["task"], results["model"]) == (1, "induction_heads", "griffin")
    for said in ("243,776", "length curriculum", "256 (trained)", "0.943 – 1.000", "not run (quadratic): 2,048"):
        assert said in text
    for name in ("extrapolation.png", "training.png"):
        width, height = png_size(folder / name)
        assert width == 1920
        assert 1000 < height < 1700


def test_the_page_needs_nothing_from_outside_and_holds_the_numbers(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", run_record(notes=["a <b> & c"]))
    (folder / "environment.json").write_text('{"command": "python -m evalkit task=<x>", "jax": "0.10.2"}')
    (folder / "config.yaml").write_text("seed: 7\n")
    printed(folder)
    html = (folder / "report.html").read_text()
    assert not re.findall(r"https?:", re.sub(r'xmlns(:\w+)?="[^"]*"', "", html))
    assert not re.findall(r'(?:src|href)="(?!#)', html)
    assert html.count("<svg") == 2
    for said in ("a &lt;b&gt; &amp; c", "task=&lt;x&gt;", "seed: 7", "prefers-color-scheme: dark"):
        assert said in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html))
    assert {first or second for first, second in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html)} <= set(ids)
    embedded = re.search(r'id="results">(.*?)</script>', html, re.DOTALL)
    assert embedded is not None
    assert json.loads(embedded[1]) == json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("kept", range(6))
def test_a_run_that_stopped_early_still_reports(tmp_path: Path, kept: int) -> None:
    header, rows = run_record(not_run=[2048])
    told, part = [(False, 0), (True, 0), (True, 1), (True, 6), (False, len(rows)), (False, -1)][kept]
    with RowLog(tmp_path / "metrics.jsonl") as log:
        if told:
            log.begin(header)
        log.write(rows[:part] if part >= 0 else rows[part:])
    folder = tmp_path
    assert printed(folder)
    assert json.loads((folder / "results.json").read_text())["schema"] == 1


def test_a_loss_that_is_not_a_number_reports_as_missing(tmp_path: Path) -> None:
    record = run_record()
    for entry in record.rows:
        if entry["metric"] == "loss":
            entry["total"] = math.nan
    folder = write_run(tmp_path / "run", record)
    printed(folder)
    assert json.loads((folder / "results.json").read_text())["extrapolation"][0]["loss"] is None


NAN: dict[str, list[dict[str, Any]]] = {
    "remembrance": [
        {"metric": "changed", "split": "test", "length": length, "position": kept, "count": 4}
        for length in (256, 1024)
        for kept in (1, 2)
    ],
    "phonebook": [
        {"metric": metric, "split": "test", "count": 4, "extra": {"answer": "all", "entries": 3, "prompt_tokens": 9.0}}
        for metric in ("exact_match", "digit_accuracy", "log_probability")
    ],
    "text": [
        *(
            {"metric": "loss", "position": at, "split": "test", "extra": {"document": name, "bytes_per_token": 1.0}}
            for at in (32, 128, 256)
            for name in "ab"
        ),
        *({"metric": metric, "split": "validation"} for metric in ("loss", "bits_per_byte")),
    ],
    "recall": [
        {"metric": "recalled", "position": 2, "extra": {"before": 0, "right": [1], "asked": [2]}},
        {"metric": "forgetting", "extra": {"block": 0, "channel": 0, "share": "nan"}},
    ],
}


@pytest.mark.parametrize("kind", NAN)
def test_every_kind_of_report_shows_what_is_no_number_as_missing(kind: str, tmp_path: Path) -> None:
    """As of a model that overflows: its other numbers are not lost with these."""
    names: dict[str, Any] = {**NAMES, "train_length": 256, "kind": f"evalkit.evaluations.{kind}.report"}
    facts: dict[str, Any] = {"text": {"used": "a text", "digest": "0"}} if kind == "text" else {}
    rows = [
        row(**{"length": 256, "split": "test", "step": 0, "seed": 0, "count": 2, **entry}, total=math.nan)
        for entry in NAN[kind]
    ]
    folder = write_run(tmp_path / "run", Record(Header(**names, **facts), rows))
    assert "nan" not in printed(folder)
    assert json.loads((folder / "results.json").read_text())["model"] == "griffin"


def test_a_total_rounded_beyond_its_count_still_has_an_interval() -> None:
    record = run_record()
    record.rows[-2]["total"] = SEQUENCES + 1e-5
    assert summarise(record)["extrapolation"][-1]["high"] == 1.0


def test_a_header_is_no_markup() -> None:
    console = Console(file=io.StringIO(), width=60)
    print_table(console, ["metric", "names=[piqa]", "a[/b]"], [["acc", "1", "2"]])
    assert isinstance(console.file, io.StringIO)
    assert "names=[piqa]  a[/b]" in console.file.getvalue()


def test_a_folder_without_rows_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no metrics\.jsonl in"):
        printed(tmp_path)


@pytest.mark.slow
def test_figures_are_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    """In this one, which has drawn others before, and in a fresh one."""
    program = (
        "from pathlib import Path; from support.made_up_runs import run_record\n"
        "from evalkit.evaluations.extrapolation import report as accuracy; from evalkit.reports.curves import save\n"
        "from evalkit.reports.pooling import Line, Run\n"
        "lines = [Line('griffin', [Run(Path(), run_record(seeds=(0, 1)), {})], alone=True)]\n"
        "for name, drawing in accuracy.figures(lines, 'title', ['note']).items():\n"
        "    [save(drawing.figure, Path(folder) / f'{name}{kind}') for kind in ('.svg', '.png')]\n"
    )
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    exec(program, {"folder": tmp_path / "first"})
    fresh = f"import sys; sys.path[:0] = {sys.path!r}; folder = {str(tmp_path / 'second')!r}\n"
    subprocess.run([sys.executable, "-c", fresh + program], check=True)
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert files == ["extrapolation.png", "extrapolation.svg", "training.png", "training.svg"]
    for name in files:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_a_figure_draws_no_point_outside_the_paper(tmp_path: Path) -> None:
    points = [Point(2**power, 1.0, 0.9, 1.0, 64) for power in range(6, 21)]
    curves = [Curve(f"a rather long name, number {index}", {0: points}, [2**21]) for index in range(8)]
    frame = Frame(trained=[256, 512], windows=[128, 1024], chance=1 / 16)
    figure = length_figure(curves, frame, "title", ["a note " * 60])
    settle(figure)
    page = figure.bbox
    for text in [*figure.texts, *figure.axes[0].texts, *figure.axes[0].get_xticklabels()]:
        extent = text.get_window_extent()
        assert page.x0 <= extent.x0 < extent.x1 <= page.x1
        assert page.y0 <= extent.y0 < extent.y1 <= page.y1
    assert svg(figure, "a-").startswith("<svg")
    with pytest.raises(UserError, match=r"cannot write .*missing"):
        save(figure, tmp_path / "missing" / "figure.png")


@pytest.mark.parametrize("ends", [(0.062, 0.078, 0.09), (1.0, 0.99, 0.97), (0.52, 0.48)])
def test_what_was_not_run_is_said_of_each_curve_where_none_covers_another(ends: Sequence[float]) -> None:
    curves = [
        Curve(f"curve {end}", {0: [Point(256, 1.0, 0.9, 1.0, 64), Point(4096, end, end, end, 64)]}, [65536])
        for end in ends
    ]
    others = [Curve("other", {0: [Point(256, 1.0, 0.9, 1.0, 64), Point(65536, 0.7, 0.6, 0.8, 64)]})]
    figure = length_figure([*curves, *others], Frame(trained=[256]))
    settle(figure)
    told = [text for text in figure.axes[0].texts if text.get_text().startswith("not run beyond")]
    boxes = sorted((text.get_window_extent().y0, text.get_window_extent().y1) for text in told)
    assert len({text.get_color() for text in told}) == len(boxes) == len(ends)
    assert all(below[1] < above[0] for below, above in pairwise(boxes))


@pytest.mark.parametrize("curves", [7, 32])
def test_no_two_curves_of_a_search_are_drawn_alike(curves: int) -> None:
    points = [Point(64, 0.5, 0.4, 0.6, 64), Point(128, 0.6, 0.5, 0.7, 64)]
    lines = [Curve(f"trial_{number}", {0: points}) for number in range(curves)]
    for figure in (length_figure(lines, Frame(trained=[128])), seed_figure(lines, Frame().while_training())):
        legend = figure.axes[0].get_legend()
        assert legend is not None
        keys = [key for key in legend.legend_handles if isinstance(key, Line2D)]
        assert len({(key.get_color(), str(vars(key)["_unscaled_dash_pattern"])) for key in keys}) == curves


@pytest.mark.parametrize(
    ("task", "title"), [("induction_heads", "Induction heads"), ("books", "Books"), ("arxiv", "arXiv")]
)
def test_tasks_are_titled_as_people_write_them(task: str, title: str) -> None:
    assert page.display_name(task) == title


@pytest.mark.parametrize(
    ("length", "label"),
    [
        (64, "64"),
        (1000, "1000"),
        (1024, "1K"),
        (16384, "16K"),
        (2**20, "2^20"),
        (3 * 2**20, "3072K"),
        (10001, "10,001"),
    ],
)
def test_lengths_are_labelled_as_people_say_them(length: int, label: str) -> None:
    assert length_label(length) == label


HEADER = ["control", "to", "difference", "95% interval", "documents"]
LINES = [
    ["far context from another document, minus its own", "8,192", "+0.0007", "-0.0042 – +0.0055", "10"],
    ["tokens that long context helps most (chosen by the same losses)", "8,192", "-0.3059", "–", "10"],
]
STEPS_TO = ["seed", "steps to 90%", "steps to 99%", "steps to 100%", "last accuracy", "last loss", "at step"]


def wrapped(width: int, header: list[str], lines: list[list[str]], heading: str | None = None) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_table(console, header, lines, heading)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_every_word_of_every_cell_is_printed_whole(width: int) -> None:
    text = wrapped(width, HEADER, LINES)
    assert "…" not in text
    for word in " ".join([*HEADER, *LINES[0], *LINES[1]]).split():
        assert word in text, word


def test_words_are_wrapped_before_columns_go_elsewhere() -> None:
    assert wrapped(80, HEADER, LINES).count("control") == 1
    assert wrapped(60, HEADER, LINES).count("control") == 2


def test_a_table_that_fits_is_not_wrapped() -> None:
    assert LINES[0][0] in wrapped(200, HEADER, LINES)


def test_a_name_is_never_broken() -> None:
    name = "induction_heads_griffin_long"
    assert wrapped(40, ["run", *"abcdefgh"], [[name, *["0.5000"] * 8]]).count(name) > 1


def test_words_of_the_header_are_wrapped_before_columns_go_elsewhere() -> None:
    text = wrapped(80, STEPS_TO, [["0", "> 1,500", "> 1,500", "> 1,500", "0.000", "2.69", "1,500"]], "While training")
    assert text.count("While training") == 1 and "to 100%" in text and "steps to 100%" not in text
    wide = wrapped(120, STEPS_TO, [["0", "> 1,500", "> 1,500", "> 1,500", "0.000", "2.69", "1,500"]])
    assert all(name in wide for name in STEPS_TO)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_table_is_without_a_heading_or_wider_than_the_terminal(width: int) -> None:
    header = ["model", *[f"{2**power}K" for power in range(20)]]
    text = wrapped(width, header, [["griffin · 1,500 steps", *["0.500"] * 20]], "Accuracy")
    assert max(map(len, text.splitlines())) <= width
    tables = text.strip().split("\n\n")
    assert len(tables) > 1
    assert [table.splitlines()[0] for table in tables] == ["Accuracy", *["Accuracy (continued)"] * (len(tables) - 1)]

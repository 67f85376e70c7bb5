"""A kind of report is a name in the header: one outside the package is reported and compared like any other.

Curves of training by steps, tokens, FLOPs and seconds, against sums by hand.
"""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from evalkit.commands import compare as command
from evalkit.core import trust
from evalkit.core.errors import UserError
from evalkit.core.moved import BENCHMARKS
from evalkit.core.rows import Record, row
from evalkit.evaluations.extrapolation.report import figures
from evalkit.evaluations.extrapolation.summary import learning_curve
from evalkit.reports.along import WORDS, along, omitted
from evalkit.reports.comparison import compare
from evalkit.reports.pooling import Line, load, pool
from evalkit.reports.search import _places
from evalkit.reports.writer import report
from support.made_up_runs import STEPS, run_record, write_run

MINE = """
from evalkit.reports.curves import Frame, length_figure
from evalkit.reports.kinds import Drawing, Table, facts_of

def summarise(record):
    return {**facts_of(record), "measured": len(record.rows)}

def tables(lines):
    return [Table("Mine", ["model", "measured"], [[line.label, str(len(line.record.rows))] for line in lines])]

def figures(lines, title, notes):
    return {"mine": Drawing("Mine", "of my own", length_figure([], Frame(), title, notes))}

def records(lines):
    return [{"model": line.label, "measured": len(line.record.rows)} for line in lines]
"""


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_kind_outside_the_package_is_reported_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "somebodys_kind.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    trust.remember(["somebodys_kind"])
    folders = []
    for model in ("hawk", "griffin"):
        record = run_record(model, kind="somebodys_kind")
        folder = write_run(tmp_path / model, record)
        console = Console(file=io.StringIO(), width=80)
        assert report(folder, console)["measured"] == len(record.rows)
        assert json.loads((folder / "results.json").read_text())["model"] == model
        assert (folder / "mine.png").is_file() and "of my own" in (folder / "report.html").read_text()
        assert "measured" in printed(console)
        folders.append(folder)
    compare(folders, tmp_path / "out", Console(quiet=True))
    count = len(record.rows)
    assert (tmp_path / "out" / "compare.csv").read_text() == f"model,measured\nhawk,{count}\ngriffin,{count}\n"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"compare.csv", "compare.html", "mine.png"}


@pytest.mark.parametrize(
    ("kind", "words"), [("nowhere.kind", "'nowhere.kind' cannot be imported"), ("json", "json is no kind of report")]
)
def test_a_kind_that_is_none_is_one_line(tmp_path: Path, kind: str, words: str) -> None:
    folder = write_run(tmp_path / "run", run_record(kind=kind))
    with pytest.raises(UserError, match=words) as error:
        report(folder, Console(quiet=True))
    assert "\n" not in str(error.value) and not (folder / "results.json").exists()


def test_every_report_says_how_it_was_made(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", run_record(kind=BENCHMARKS)._replace(rows=[]))
    (folder / "environment.json").write_text('{"command": "python -m evalkit task=x", "jax": "0.10.2"}')
    (folder / "config.yaml").write_text("seed: 7\n")
    report(folder, Console(quiet=True))
    html = (folder / "report.html").read_text()
    for said in ("How it was made", "python -m evalkit task=x", "0.10.2", "seed: 7"):
        assert said in html


def test_benchmarks_are_a_row_a_metric(tmp_path: Path) -> None:
    folders = []
    for model, right in (("small", 3), ("large", 4)):
        header = replace(run_record(model).header, kind=BENCHMARKS, task="downstream")
        names = {"run": header.run, "task": header.task, "model": model, "split": "benchmark"}
        rows = [row(**names, metric="piqa/acc", total=right, count=5, extra={"num_fewshot": 0})]
        folders.append(write_run(tmp_path / model, Record(header, rows)))
    assert report(folders[0], Console(quiet=True))["results"] == {"piqa": {"acc": 0.6}}
    console = Console(file=io.StringIO(), width=80)
    compare(folders, tmp_path / "out", console)
    assert "piqa/acc" in printed(console) and "0.8" in printed(console)
    first = (tmp_path / "out" / "compare.csv").read_text().splitlines()[1]
    assert first == "small-1,small,piqa/acc,0.6,5,0"


BATCH = 4
CURRICULUM = {50: 64, 100: 256, 150: 256}
"""The training length of each fifty steps; an answer of one token follows."""
TOKENS = [0, 50 * BATCH * 65, 50 * BATCH * (65 + 257), 50 * BATCH * (65 + 257 + 257)]


def line(folder: Path, name: str, by: str, seeds: tuple[int, ...] = (0, 1)) -> Line:
    header, rows = run_record(name, seeds=seeds, flops_per_token=1_000_000)
    names: dict[str, Any] = {
        "run": header.run,
        "task": header.task,
        "model": header.model,
        "split": "train",
        "metric": "loss",
    }
    trained = [
        row(**names, seed=seed, step=step, length=length, total=1.0, count=50 * BATCH)
        for step, length in CURRICULUM.items()
        for seed in seeds
    ]
    write_run(folder / name, Record(header, trained + rows))
    (alone,) = pool([load(folder / name)])
    return replace(alone, by=by)


@pytest.mark.parametrize(
    ("by", "places"),
    [
        ("steps", list(STEPS)),
        ("tokens", TOKENS),
        ("flops", [3_000_000 * count for count in TOKENS]),
        ("seconds", [round(579 * count / TOKENS[-1]) for count in TOKENS]),
    ],
)
def test_every_point_keeps_its_value_and_moves_to_its_place(tmp_path: Path, by: str, places: list[int]) -> None:
    drawn = line(tmp_path, "hawk", by)
    (tmp_path / "hawk" / "timing.json").write_text(json.dumps({"training": 579.0}))
    before = learning_curve(drawn.record)
    moved = along(before, drawn)
    for seed in (0, 1):
        assert [point.value for point in moved.seeds[seed]] == [point.value for point in before.seeds[seed]]
        assert [point.x for point in moved.seeds[seed]] == places
    drawings = figures([drawn, drawn], "", [])
    assert drawings["learning"].figure.axes[0].get_xlabel() == WORDS[by]


def test_a_line_whose_seconds_are_not_known_is_left_out_and_named(tmp_path: Path) -> None:
    known, unknown = line(tmp_path, "hawk", "seconds"), line(tmp_path, "mqa", "seconds")
    (tmp_path / "hawk" / "timing.json").write_text(json.dumps({"training": 60.0}))
    (note,) = omitted([known, unknown])
    assert "mqa" in note and "hawk" not in note
    assert not along(learning_curve(unknown.record), unknown).seeds
    with pytest.raises(UserError, match="--by=seconds"):
        omitted([unknown])


def test_seeds_that_took_other_times_have_one_median(tmp_path: Path) -> None:
    """Also where the seconds of one of them are not known."""
    runs = [line(tmp_path, f"run-{seed}", "seconds", seeds=(seed,)).runs[0] for seed in range(3)]
    for seed, seconds in ((0, 400.0), (1, 500.0)):
        (tmp_path / f"run-{seed}" / "timing.json").write_text(json.dumps({"training": seconds}))
    both, three = (Line("hawk", runs[:count], by="seconds") for count in (2, 3))
    drawn = along(learning_curve(both.record), both)
    assert [x for x, *_ in drawn.over_seeds(complete=True)] == [round(450 * count / TOKENS[-1]) for count in TOKENS]
    assert omitted([both]) == []
    assert omitted([three]) == ["hawk: the seconds are not known of some seeds, which are left out."]
    assert list(along(learning_curve(three.record), three).seeds) == [0, 1]


def test_numbers_that_were_chosen_among_are_drawn_in_their_order() -> None:
    axes = Figure().subplots()
    assert _places(axes, ["8", "16", "32"], False) == [0, 1, 2]
    assert _places(axes, ["1e-3", "none", "1e-4"], False) == [1, 2, 0]


def test_the_command_offers_what_can_be_drawn() -> None:
    with pytest.raises(UserError, match=", ".join(map(repr, WORDS)).replace("'", "'?")):
        command.main(["runs", "--by", "epochs"])

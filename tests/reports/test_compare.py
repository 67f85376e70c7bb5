"""Comparing runs: what is pooled, what is told apart, what is refused."""

import csv
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.axes import Axes

from evalkit.__main__ import main
from evalkit.configuration import catalogue
from evalkit.configuration.account import completed
from evalkit.configuration.saved import save
from evalkit.configuration.schema import completed as with_defaults
from evalkit.core.errors import UserError
from evalkit.core.moved import RECALL
from evalkit.core.rows import Header, Record, row
from evalkit.evaluations.downstream import report as benchmarks
from evalkit.evaluations.extrapolation.report import COLUMNS, against, comparison_table, tables
from evalkit.evaluations.extrapolation.summary import extrapolation_curve, learning_curve
from evalkit.evaluations.recall.rows import RECALLED
from evalkit.evaluations.remembrance import report as remembrance
from evalkit.reports.curves import MARKERS
from evalkit.reports.pooling import LATER, Line, find_runs, left_out, load, notes_of, pool
from support.made_up_runs import falls, perfect, run_record, write_run
from support.sharing import blank_figures
from support.shrunk import experiment, shrunk

COSTS = {"cache_bytes": {"256": 20_480, "1024": 81_920}, "flops_per_token": 500_000}


def lines(*folders: Path) -> list[Line]:
    return pool([load(folder) for folder in find_runs(folders)])


def test_it_writes_figures_a_table_and_a_page_that_needs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = ["Trained with a length curriculum."]
    mqa = write_run(tmp_path / "mqa", run_record("mqa", test=falls, notes=notes, not_run=[2048]))
    hawk = write_run(tmp_path / "hawk", run_record("hawk", test=perfect))
    out = tmp_path / "out"
    assert main(["compare", str(mqa), str(hawk), "--out", str(out)]) == 0
    files = ["compare.csv", "compare.html", "compare.png", "growth-512.png", "learning.png"]
    assert sorted(path.name for path in out.iterdir()) == files
    printed = capsys.readouterr().out
    for said in ("mqa: Trained with a length curriculum.", "243,776", "not run"):
        assert said in printed
    html = (out / "compare.html").read_text()
    assert not re.findall(r"https?:", re.sub(r'xmlns(:\w+)?="[^"]*"', "", html))
    assert html.count("<svg") == 3 and "The same at 512 tokens." in html
    embedded = re.search(r'id="results">(.*?)</script>', html, re.DOTALL)
    assert embedded is not None
    assert json.loads(embedded[1])["schema"] == 1
    for name in ("compare.png", "learning.png"):
        assert int.from_bytes((out / name).read_bytes()[16:20]) == 1920


@pytest.mark.usefixtures("blank")
def test_the_csv_is_tidy(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", run_record("hawk", seeds=(0, 1), test=falls))
    main(["compare", str(folder), "--out", str(tmp_path / "out")])
    with (tmp_path / "out" / "compare.csv").open() as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == ("run", "model", *COLUMNS)
    assert {(line["length"], line["seed"]): line["accuracy"] for line in table}["1024", "1"] == str(15 / 64)
    assert len(table) == 10


def test_the_table_has_a_row_a_model_and_a_column_a_length(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", run_record("mqa", seeds=(0, 1), not_run=[2048], **COSTS))
    write_run(tmp_path / "runs" / "b", run_record("hawk", test=perfect))
    table = comparison_table(lines(tmp_path / "runs"))
    header, cells = table.header, table.lines
    lengths = ["64", "128", "256", "512", "1K", "2K"]
    assert header == ["model", "parameters", "state bytes", "FLOPs/token", "seeds", "steps to 99%", *lengths]
    medians = ["1.000", "1.000", "1.000", "0.492", "0.242", "not run"]
    assert cells[0] == ["mqa", "243,776", "20,480", "500,000", "2", "125", *medians]
    assert cells[1] == ["hawk", "243,776", "–", "–", "1", "100", *["1.000"] * 5, "–"]


def test_how_fast_each_learns_and_which_is_higher_are_tables_of_their_own(tmp_path: Path) -> None:
    """The higher of two stands first, whichever was named first; one seed has no test."""
    write_run(tmp_path / "runs" / "a", run_record("mqa", seeds=(0, 1, 2), test=falls))
    write_run(tmp_path / "runs" / "b", run_record("hawk", seeds=(0, 1, 2), test=perfect))
    write_run(tmp_path / "runs" / "c", run_record("griffin", test=perfect))
    learning, which = tables(lines(tmp_path / "runs"))[2:]
    assert learning.header == ["model", *(f"steps to {n}%" for n in (50, 70, 90, 99, 100)), "area under the curve"]
    assert [line[0] for line in learning.lines] == ["mqa", "hawk", "griffin"]
    assert "Mann and Whitney" in which.heading
    ((higher, lower, length, apart, p, least),) = which.lines
    assert (higher, lower, length, p, least) == ("hawk", "mqa", "1K", "0.1", "0.1") and float(apart) > 0.5


def test_the_order_of_the_runs_changes_no_p(tmp_path: Path) -> None:
    """Equal medians, and one family with two seeds that fail."""
    for name, right in (("a", lambda _, seed: 64 if seed < 3 else 20), ("b", perfect)):
        write_run(tmp_path / name, run_record(f"model_{name}", seeds=range(5), test=right))
    found = [tables(lines(tmp_path / one, tmp_path / other))[-1].lines[0] for one, other in ("ab", "ba")]
    assert found[0][2:] == found[1][2:] and found[0][4] == "0.44"


def test_the_p_of_several_pairs_are_adjusted_and_the_heading_says_so(tmp_path: Path) -> None:
    for number, right in enumerate((perfect, falls, lambda *_: 1)):
        write_run(tmp_path / str(number), run_record(f"model_{number}", seeds=range(4), test=right))
    table = tables(lines(tmp_path))[-1]
    assert table.heading.endswith("adjusted for 3 pairs")
    assert [line[4:] for line in table.lines] == 3 * [["0.086", "0.086"]]  # 3 times 2 / 70


def made_up(
    folder: Path, kind: str, model: str, measurements: Sequence[dict[str, Any]], seed: int = 0, **facts: Any
) -> Path:
    """A run of another kind of report than accuracy by length."""
    told: dict[str, Any] = {"run": folder.name, "task": "t", "model": model}
    header = Header(**told, kind=f"evalkit.evaluations.{kind}.report", seeds=(seed,), steps=2, **facts)
    return write_run(folder, Record(header, [row(**told, seed=seed, step=2, **one) for one in measurements]))


def test_what_the_past_moves_is_compared_at_one_length_or_each_says_its_own(tmp_path: Path) -> None:
    for name, lengths in (("hawk", (64, 256)), ("mqa", (256, 1024)), ("lstm", (512,))):
        at = [
            {"split": "test", "metric": "changed", "length": n, "position": 1, "total": n, "count": 4} for n in lengths
        ]
        made_up(tmp_path / name, "remembrance", name, at)
    pair = remembrance.tables(lines(tmp_path / "hawk", tmp_path / "mqa"))[0]
    assert pair.heading.endswith("of sequences of 256") and [line[-1] for line in pair.lines] == ["64.000", "64.000"]
    every = remembrance.tables(lines(*(tmp_path / name for name in ("hawk", "lstm"))))[0]
    assert [line[0] for line in every.lines] == ["hawk, of 256 tokens", "lstm, of 512 tokens"]


def test_seeds_that_read_other_texts_are_no_seeds_of_one_recipe(tmp_path: Path) -> None:
    for seed, digest in enumerate(("aaaaaaaaaa", "bbbbbbbbbb")):
        at = {"split": "test", "metric": "loss", "length": 256, "position": 128, "total": 1.0, "count": 1}
        text = {"used": "a text", "digest": digest}
        made_up(
            tmp_path / digest,
            "text",
            "hawk",
            [at | {"extra": {"document": "d", "bytes_per_token": 1.0}}],
            seed=seed,
            text=text,
        )
    assert [line.label for line in lines(tmp_path)] == ["hawk · text=aaaaaaaa", "hawk · text=bbbbbbbb"]


def test_benchmarks_say_how_many_documents_were_asked(tmp_path: Path) -> None:
    for name, count in (("a", 10), ("b", 1838)):
        asked = {"split": "benchmark", "metric": "piqa/acc", "total": 0.7 * count, "count": count}
        made_up(tmp_path / name, "downstream", name, [asked])
    assert benchmarks.tables(lines(tmp_path))[0].lines[-1] == [
        "piqa/acc",
        "0.7 (10 documents)",
        "0.7 (1,838 documents)",
    ]
    alone = replace(lines(tmp_path / "a")[0], alone=True)
    assert benchmarks.tables([alone])[0].lines == [["piqa/acc", "0.7", "0.397 – 0.892", "10"]]


def test_a_length_that_some_seeds_have_is_told_and_not_drawn(tmp_path: Path) -> None:
    header, rows = run_record(seeds=(1,), name="b", test=lambda *_: 10)
    write_run(tmp_path / "a", run_record(seeds=(0,), name="a", test=perfect))
    write_run(tmp_path / "b", Record(header, [one for one in rows if one["split"] != "test" or one["length"] <= 512]))
    [line] = lines(tmp_path)
    assert comparison_table([line]).lines[0][-2:] == ["0.578", "1.000 (1 of 2 seeds)"]
    assert extrapolation_curve(line.record).over_seeds(complete=True)[-1][0] == 512


def test_an_area_stands_beside_areas_of_the_same_steps_alone(tmp_path: Path) -> None:
    header, rows = run_record("mqa")
    write_run(tmp_path / "a", run_record("hawk"))
    write_run(tmp_path / "b", Record(header, [entry for entry in rows if entry["step"] != 150]))
    (learning,) = tables(lines(tmp_path / "a", tmp_path / "b"))[2:]
    assert learning.header[-1] == "steps to 100%" and {len(line) for line in learning.lines} == {6}


def test_seeds_of_one_recipe_become_one_line(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        folder = write_run(tmp_path / str(seed), run_record(name=f"run-{seed}", seeds=(seed,), test=falls))
        (folder / "config.yaml").write_text(f"seed: {seed}\ntrain: {{learning_rate: 0.003, log_every: {seed + 1}}}\n")
    [line] = lines(tmp_path)
    assert line.label == "griffin"
    assert list(extrapolation_curve(line.record).seeds) == [0, 1, 2]
    assert extrapolation_curve(line.record).over_seeds()[-1] == (1024, pytest.approx(15 / 64), 14 / 64, 16 / 64)
    assert list(learning_curve(line.record).seeds) == [0, 1, 2]


def test_recipes_that_differ_stay_apart_and_say_how(tmp_path: Path) -> None:
    for name, rate in (("a", 0.003), ("b", 0.001)):
        folder = write_run(tmp_path / name, run_record(name=name))
        (folder / "config.yaml").write_text(f"train: {{learning_rate: {rate}}}\n")
    assert [line.label for line in lines(tmp_path)] == [
        "griffin · learning_rate=0.003",
        "griffin · learning_rate=0.001",
    ]


def test_seeds_of_recipes_that_differ_in_more_than_a_label_shows_stay_lines(tmp_path: Path) -> None:
    rates = dict(learning_rate=(0.003, 0.001), b1=(0.9, 0.8), b2=(0.99, 0.9), weight_decay=(0.1, 0.2))
    for number, values in enumerate(itertools.product(*rates.values())):
        for seed in range(2):
            folder = write_run(tmp_path / f"{number}-{seed}", run_record(name=f"{number}-{seed}", seeds=(seed,)))
            text = yaml.safe_dump({"train": dict(zip(rates, values, strict=True))})
            (folder / "config.yaml").write_text(text, encoding="utf-8")
    found = lines(tmp_path)
    assert [line.seeds for line in found] == 16 * [[0, 1]]
    assert len({line.label for line in found}) == 16 and all(" · weight_decay=" in line.label for line in found)


def test_models_of_another_task_or_measured_otherwise_are_told(tmp_path: Path) -> None:
    """Their vocabulary and length, and so their chance, may be the same."""
    for name, pairs, passage in (("hawk", 4, 64), ("mqa", 16, 64), ("griffin", 16, 128)):
        folder = write_run(tmp_path / name, run_record(name, name=name, task_version=1 + (name == "mqa")))
        config = {"task": {"_target_": "t.T", "pairs": pairs}, "eval": {"passage": passage, "lengths": [pairs]}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert notes_of(lines(*(tmp_path / name for name in ("hawk", "mqa")))) == [
        "The version of the task differs: hawk 1, mqa 2.",
        "task.pairs differs: hawk 4, mqa 16.",
    ]
    assert "eval.passage differs, so what is measured is not the same: 64 for mqa; 128 for griffin." in notes_of(
        lines(*(tmp_path / name for name in ("mqa", "griffin")))
    )


def test_a_measurement_of_no_length_that_was_not_run_is_told(tmp_path: Path) -> None:
    header, rows = run_record()
    skipped = row(run="r", task="t", model="m", metric="probe", split="test", count=0, extra={"not_run": "no room"})
    write_run(tmp_path / "a", Record(header, [*rows, skipped]))
    assert left_out(lines(tmp_path)[0]) == ["not run (no room): probe"]


def test_a_list_stands_in_a_label_as_it_is_typed(tmp_path: Path) -> None:
    for name, pattern in (("a", "[recurrent]"), ("b", "[recurrent, recurrent]")):
        folder = write_run(tmp_path / name, run_record("hawk", name=name))
        (folder / "config.yaml").write_text(f"model: {{pattern: {pattern}}}\n")
    assert [line.label for line in lines(tmp_path)] == [
        "hawk · pattern=[recurrent]",
        "hawk · pattern=[recurrent,recurrent]",
    ]


def test_runs_of_one_name_and_recipe_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for place, right in (("a", falls), ("b", perfect), ("c", perfect)):
        write_run(tmp_path / place / "hawk", run_record("hawk", name="hawk", seeds=(0, 1, 2), test=right))
    found = lines(tmp_path)
    assert [line.label for line in found] == ["hawk · a/hawk", "hawk · b/hawk", "hawk · c/hawk"]
    assert len(tables(found)[-1].lines) == 3, "each pair is tested"


def test_an_earlier_checkpoint_is_no_seed_of_the_whole_training(tmp_path: Path) -> None:
    header, rows = run_record(seeds=(0,), test=falls)
    early = [entry if entry["split"] != "test" else {**entry, "step": 50} for entry in rows]
    write_run(tmp_path / "early", Record(header, early))
    write_run(tmp_path / "whole", run_record(seeds=(1,), test=perfect))
    assert [(line.label, line.seeds) for line in lines(tmp_path)] == [("griffin · at step 50", [0]), ("griffin", [1])]
    for place in ("early", "whole"):  # where training ends once it is solved, each seed has a step of its own
        (tmp_path / place / "config.yaml").write_text("train: {stop_when_solved: 3}\n")
    assert [line.seeds for line in lines(tmp_path)] == [[0, 1]]


def test_a_run_under_old_names_is_of_the_same_recipe(tmp_path: Path) -> None:
    for seed, target in enumerate(("models.build", "evalkit.models.build")):
        folder = write_run(tmp_path / str(seed), run_record(name=f"run-{seed}", seeds=(seed,)))
        (folder / "config.yaml").write_text(f"model: {{_target_: {target}}}\n")
    [line] = lines(tmp_path)
    assert list(extrapolation_curve(line.record).seeds) == [0, 1]


def test_a_run_from_before_a_setting_is_of_the_same_recipe_and_what_is_set_is_the_label(tmp_path: Path) -> None:
    """What `LATER` says of older runs is what the defaults are."""
    defaults = with_defaults(
        yaml.safe_load((catalogue.directory() / "config.yaml").read_text(encoding="utf-8"))["train"]
    )
    assert {name: defaults[name] for name in LATER} == LATER
    older, newer, other = ({"steps": 6, **more} for more in ({}, LATER, {**LATER, "state_passing": 0.5}))
    for seed, train in enumerate((older, newer, other)):
        folder = write_run(tmp_path / str(seed), run_record(seeds=(seed,)))
        (folder / "config.yaml").write_text(yaml.safe_dump({"train": train}), encoding="utf-8")
    assert [(line.label, line.seeds) for line in lines(tmp_path)] == [
        ("griffin", [0, 1]),
        ("griffin · state_passing=0.5", [2]),
    ]


def test_notes_that_differ_stay_apart_and_are_the_label(tmp_path: Path) -> None:
    write_run(tmp_path / "a", run_record())
    write_run(tmp_path / "b", run_record(seeds=(1,), notes=["length curriculum"]))
    assert [line.label for line in lines(tmp_path)] == ["griffin", "griffin · length curriculum"]


def test_a_given_name_is_the_label_and_sets_runs_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, run_record(name=name, seeds=(seed,))) for seed, name in enumerate("ab")]
    one, other = ([load(folder, name) for folder, name in zip(folders, names, strict=True)] for names in ("xx", "xy"))
    assert [line.label for line in pool(one)] == ["x"] and [line.label for line in pool(other)] == ["x", "y"]


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_what_asks_by_distance_is_left_out_and_alone_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", run_record())
    header, _ = run_record(kind=RECALL)
    told = {"before": 0, "asked": [4], "right": [3]}
    place = {"task": header.task, "seed": 0, "length": 9, "position": 4, "split": "test"}
    measured = row(metric=RECALLED, **place, total=3, count=4, extra=told)
    asked = write_run(tmp_path / "a_recall", Record(header, [measured]))
    assert main(["compare", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "left out, for its report is of another kind (evalkit.evaluations.recall.report)" in capsys.readouterr().out
    assert main(["compare", str(asked), "--out", str(tmp_path / "other")]) == 0
    files = {path.name for path in (tmp_path / "other").iterdir()}
    assert files == {"distance.png", "compare.csv", "compare.html"}


def test_the_same_seed_twice_is_two_lines_not_more_evidence(tmp_path: Path) -> None:
    for name in ("before", "after"):
        write_run(tmp_path / name, run_record(name=name))
    assert [line.label for line in lines(tmp_path)] == ["griffin · after", "griffin · before"]


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", run_record())
    assert find_runs([folder, tmp_path, folder / ".." / "a"]) == [folder]


@pytest.mark.usefixtures("blank")
def test_training_lengths_that_differ_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", run_record("hawk"))
    write_run(tmp_path / "b", run_record("griffin", train_length=512))
    assert main(["compare", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "The training length differs: hawk 256, griffin 512." in capsys.readouterr().out


@pytest.mark.usefixtures("blank")
def test_what_all_runs_say_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model, own in (("hawk", []), ("mqa", ["length curriculum"])):
        write_run(tmp_path / model, run_record(model, notes=["preset=cpu", *own]))
    main(["compare", str(tmp_path / "hawk"), str(tmp_path / "mqa"), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert printed.count("note: preset=cpu") == 1 and "note: mqa: length curriculum" in printed
    assert printed.count("preset=cpu") == 1


@pytest.mark.usefixtures("blank")
def test_what_several_runs_say_is_said_once_with_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model, own in (("hawk", ["length curriculum"]), ("mamba", []), ("mqa", ["length curriculum"])):
        write_run(tmp_path / model, run_record(model, notes=own))
    main(["compare", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "note: hawk, mqa: length curriculum" in capsys.readouterr().out


def test_different_tasks_are_refused_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", run_record())
    write_run(tmp_path / "b", run_record(task="selective_copying"))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "induction_heads" in said
    assert "selective_copying" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("blank")
def test_of_a_folder_of_runs_what_is_no_run_of_its_own_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_run(tmp_path / "runs" / "one", run_record())
    inner = write_run(one / "evaluate" / "later", run_record(task="selective_copying"))
    shorter = write_run(one / "before" / "20", run_record())
    empty = tmp_path / "runs" / "stopped"
    empty.mkdir()
    (empty / "metrics.jsonl").touch()
    assert main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert (
        printed.count("left out") == 3
        and f"an evaluation within a run (give its folder to compare it): {inner}" in printed
    )
    assert f"a shorter training of a run (give its folder to compare it): {shorter}" in printed
    assert f"left out: {empty / 'metrics.jsonl'} holds no rows" in printed
    assert main(["compare", str(inner), "--out", str(tmp_path / "other")]) == 0, "named, it is a run as any other"


@pytest.mark.usefixtures("blank")
def test_runs_of_other_lengths_of_training_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, steps in (("a", 150), ("b", 1500)):
        write_run(tmp_path / name, run_record(name=name, seeds=(steps,), steps=steps))
    assert main(["compare", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "note: The number of training steps differs." in capsys.readouterr().out
    assert [line.label for line in lines(tmp_path)] == ["griffin · 150 steps", "griffin · 1,500 steps"]


def test_a_folder_without_rows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metrics.jsonl").touch()
    assert main(["compare", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert f"no metrics.jsonl in or below {tmp_path}" in first
    assert "holds no rows" in second
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "a", run_record())
    (tmp_path / "file").write_text("")
    assert main(["compare", str(folder), "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith(f"evalkit: cannot write {tmp_path / 'file'}")


@pytest.mark.usefixtures("blank")
def test_runs_that_only_began_can_be_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", run_record("mqa")._replace(rows=[]))
    hawk = run_record("hawk")
    write_run(tmp_path / "b", hawk._replace(rows=hawk.rows[:3]))
    assert main(["compare", str(tmp_path), "--out", str(tmp_path / "out")]) == 0


@pytest.mark.slow
def test_accuracy_is_drawn_against_what_the_models_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"cache_bytes": {"256": 4096, "1024": 4096}, "flops_per_token": 300_000}
    write_run(tmp_path / "runs" / "a", run_record("mqa", seeds=(0, 1), test=perfect, **COSTS))
    write_run(tmp_path / "runs" / "b", run_record("hawk", seeds=(0, 1, 2), **small))
    write_run(tmp_path / "runs" / "c", run_record("other"))
    arguments = ["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--x"]
    assert main([*arguments, "cache_bytes", "--at", "1024"]) == 0
    page = (tmp_path / "out" / "compare.html").read_text()
    assert (tmp_path / "out" / "accuracy-cache_bytes.png").is_file() and "not known: other" in page
    with blank_figures():
        assert main([*arguments, "flops"]) == 0
    assert "Accuracy at 256 tokens against cost" in (tmp_path / "out" / "compare.html").read_text()
    found = {
        (x, at): points_of(against(lines(tmp_path / "runs"), x, at, "", []).figure.axes[0])
        for x, at in (("cache_bytes", 1024), ("cache_bytes", 256), ("flops", 1024))
    }
    assert found["cache_bytes", 1024] == [(4096, 15 / 64), (81_920, 1)]
    assert found["cache_bytes", 256] == [(4096, 1), (20_480, 1)]
    assert found["flops", 1024] == [(300_000, 15 / 64), (500_000, 1)]
    capsys.readouterr()


def points_of(axes: Axes) -> list[tuple[float, float]]:
    """Where the markers of a figure are, from left to right."""
    drawn = [line for line in axes.lines if line.get_marker() in MARKERS]
    return sorted((float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in drawn)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--x", "bytes"], "invalid choice: 'bytes'"),
        (["--at", "256"], "--at=256 is the length of --x=cache_bytes or --x=flops"),
        (["--x", "flops", "--at", "300"], "--at=300: nothing was measured there; measured: 64, 128, 256, 512, 1024"),
        (["--x", "flops"], "--x=flops is known of none of these runs"),
    ],
)
def test_a_cost_that_is_not_known_is_one_line(
    tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "a", run_record())
    assert main(["compare", str(folder), "--out", str(tmp_path / "out"), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_what_an_older_run_costs_is_computed_from_its_configuration(tmp_path: Path) -> None:
    """Of a run that can be built; another stays without."""
    built = experiment("griffin")
    (tmp_path / "a").mkdir()
    save(built.config, tmp_path / "a" / "config.yaml")
    header = run_record().header
    headers = completed([(tmp_path / "a", header), (tmp_path / "b", header)], 512)
    assert headers[1] == header
    model = shrunk("griffin")
    assert headers[0].flops_per_token == round(model.flops(256) / 256)
    assert headers[0].state_bytes() == model.cache_bytes(1, 256) and headers[0].state_bytes(512)
    (tmp_path / "a" / "config.yaml").write_text("task: 1")
    assert completed([(tmp_path / "a", header)]) == [header]


def test_it_needs_no_jax() -> None:
    program = "import sys, evalkit.reports.comparison; sys.exit('jax' in sys.modules or 'flax' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("content", [b"# caf\xe9\n", b"task: [\n", b"- a list\n"])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    run = write_run(tmp_path / "hawk", run_record("hawk", test=perfect))
    (run / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"hawk/config\.yaml (cannot be read: |is no run's configuration)"):
        lines(run)

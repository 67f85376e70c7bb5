"""`task=phonebook checkpoint=…`: its record, its figure, going on with it, refusals; looks while training."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalkit.__main__ import main
from evalkit.core.during import DURING, curves, name_of
from evalkit.core.errors import UserError
from evalkit.core.rows import FILE, Row, read, row
from evalkit.evaluations.phonebook.measure import METRICS
from evalkit.evaluations.phonebook.report import LABELS, figures
from evalkit.reports.pooling import Line, load
from evalkit.session import run, subjects
from evalkit.session.gates import refuse_run_in
from evalkit.session.loop import MAX_LOOK_SHARE, LookCosts
from support.language_models import Reader, pretrained

SETTINGS = (
    *("eval.lengths=[200,400]", "eval.prompts=3", "eval.new_tokens=12", "eval.batch_size=3", "eval.chunk=64"),
    "wandb.mode=disabled",
)
READER = pretrained(Reader(250), {})
pytestmark = pytest.mark.usefixtures("shared")


@pytest.fixture(autouse=True)
def a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that looks answers up within 250 characters, in place of any checkpoint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subjects, "load_for_text", lambda checkpoint, dtype, allow_targets: READER)


def look_up(*overrides: str) -> int:
    return main(["task=phonebook", "checkpoint=some/reader", *SETTINGS, *overrides])


def test_a_lookup_writes_rows_numbers_a_figure_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert look_up("hydra.run.dir=out", "task.depth=1", "format=json") == 0
    header, rows = read("out")
    assert (header.window, header.train_length) == (250, 256)
    wanted = {(metric, where) for metric in METRICS for where in ("all", "inside")}  # the last entry is near the end
    assert {(entry["metric"], entry["extra"]["answer"]) for entry in rows} == wanted
    assert {(entry["length"], entry["count"]) for entry in rows} == {(200, 3), (400, 3)}
    assert Path("out/lookup.png").stat().st_size > 10_000 and "depth: 1" in Path("out/config.yaml").read_text()
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert "exact match" in printed.err and found.pop("folder") == str(Path("out").absolute())
    assert found == json.loads(Path("out/results.json").read_text())
    assert [record["all"]["exact_match"] for record in found["lengths"]] == [1.0, 1.0]
    assert found["lengths"][0]["outside"] is None


@pytest.mark.slow
def test_a_lookup_that_was_stopped_goes_on_after_its_last_whole_length(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_up("hydra.run.dir=whole") == look_up("hydra.run.dir=out") == 0
    log = Path("out") / FILE
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-2]))
    for name in ("lookup.png", "results.json"):
        Path("out", name).unlink()
    seen = []
    monkeypatch.setattr(run.EvaluationProgress, "describe", lambda self, length, done, of: seen.append(length))
    assert main(["resume=out"]) == 0
    assert log.read_text() == "".join(lines) and set(seen) == {400} and Path("out/lookup.png").exists()
    assert [{**entry, "run": "out"} for entry in read("whole").rows] == read("out").rows
    assert main(["resume=out", "eval.prompts=5"]) == 2
    before = log.read_bytes()
    assert main(["resume=out"]) == 0 and log.read_bytes() == before, "a finished evaluation was made again"


def test_a_lookup_does_not_go_on_with_other_parameters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert look_up("hydra.run.dir=out") == 0
    log = Path("out") / FILE
    log.write_text(log.read_text().replace('"identity":"', '"identity":"1'))
    Path("out/results.json").unlink()
    assert main(["resume=out"]) == 2
    assert "some/reader is another model than out began with; start a new run" in capsys.readouterr().err
    assert main(["evaluate=out"]) == 2
    assert "out was measured on a checkpoint; give task= and checkpoint= again" in capsys.readouterr().err


@pytest.mark.slow
def test_the_figure_marks_the_window_and_the_training_length_and_has_a_line_a_group() -> None:
    assert look_up("hydra.run.dir=out", "eval.lengths=[300,600]", "eval.prompts=12") == 0
    [drawing] = figures([Line("reader", [load(Path("out"))], alone=True)], "title", []).values()
    axes = drawing.figure.axes[0]
    words = [text.get_text() for text in axes.texts]
    assert any("window 250" in word for word in words) and any("trained at 256" in word for word in words)
    legend = axes.get_legend()
    assert legend is not None and axes.get_ylabel() == "exact match"
    assert [text.get_text() for text in legend.get_texts()] == list(LABELS.values())


@pytest.mark.slow
def test_lookups_of_several_models_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        assert main(["task=phonebook", f"checkpoint=some/{name}", *SETTINGS, f"hydra.run.dir=runs/{name}"]) == 0
    capsys.readouterr()
    assert main(["compare", "runs/one", "runs/two", "--out", "together"]) == 0
    printed = capsys.readouterr().out
    assert "one" in printed and "two" in printed and Path("together/compare.png").stat().st_size > 10_000
    assert len(Path("together/compare.csv").read_text().splitlines()) == 1 + 2 * 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["task.dept=1"], "unknown key 'task.dept'; the nearest valid one is 'task.depth'"),
        (["eval.prompts=0"], "prompts=0; allowed: 1 or more"),
        (["eval.lengths=[]"], "lengths=[]; allowed: one length or more"),
        (["task.variant=x"], "task.variant='x'; allowed: jelassi"),
        (["eval.chunk=many"], "eval.chunk='many'; allowed: int"),
        (["eval.lengths=[20]"], "length=20; allowed: at least"),
        (["format=xml"], "format='xml'; allowed: text, json"),
        (["-m"], "task=phonebook takes one checkpoint at a time"),
        (["task.length=3"], "unknown key 'task.length'"),
        (["train.steps=3"], "train.steps=3, but checkpoint=some/reader is trained already"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(
    settings: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert look_up(*settings) == 2
    message = capsys.readouterr().err
    assert words in message and message.count("\n") == 1


def test_a_checkpoint_goes_with_a_task_that_reads_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task=induction_heads", "checkpoint=x"]) == 2
    told = capsys.readouterr().err
    readers = "task=arxiv, task=books, task=downstream, task=needle, task=phonebook"
    assert f"checkpoint= goes with {readers}, not with task=ind" in told
    assert main(["task=phonebook", "eval.lengths=[200]"]) == 2
    assert "model is missing" in capsys.readouterr().err


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    with pytest.raises(UserError, match="holds a run already; go on with it: python -m evalkit resume"):
        refuse_run_in(tmp_path)


def test_a_curve_is_a_mean_over_documents_whatever_they_weigh() -> None:
    def entry(document: str, total: float, count: int, **more: Any) -> Row:
        return row(metric="loss", seed=0, step=5, split=DURING, position=8, total=total, count=count, **more)

    assert curves([entry("a", 2.0, 2), entry("b", 12.0, 4)]) == {"loss@8": {0: {5: 2.0}}}
    assert name_of(row(metric="exact_match", length=64, extra={"answer": "inside"})) == "exact_match@64/inside"
    assert curves([row(metric="loss", split="test", step=5, total=1.0, count=1)]) == {}


@pytest.mark.parametrize(("of_look", "of_training"), [(1.0, 4.0), (3.0, 2.9), (5.0, 0.5), (30.0, 10.0)])
def test_a_look_that_takes_too_much_is_told_with_what_would_do(of_look: float, of_training: float) -> None:
    said, now = list[str](), [0.0]
    costs = LookCosts(said.append, eval_every=50, clock=lambda: now[0])

    def look(seconds: float) -> Iterator[Row]:
        now[0] += seconds
        yield row(metric="loss")

    def trained_for(every: int, seconds_a_step: float) -> float:
        """The share of looks of such an interval."""
        return of_look / (of_look + every * seconds_a_step)

    costs.timed("eval.during.every", look(100 * of_look), 100)  # which compiles
    assert not said
    for step in range(200, 2000, 100):
        now[0] += of_training
        costs.timed("eval.during.every", look(of_look), step)
    a_step = of_training / 100
    if trained_for(100, a_step) <= MAX_LOOK_SHARE:
        assert not said
    else:
        (line,) = said
        every = int(line.split("eval.during.every=")[1].split()[0])
        assert every % 50 == 0 and trained_for(every, a_step) <= MAX_LOOK_SHARE < trained_for(every - 50, a_step)
    assert costs.seconds == pytest.approx(118 * of_look)


def test_a_look_that_was_not_due_costs_nothing() -> None:
    costs = LookCosts(print, eval_every=1)
    assert costs.timed("eval.during.every", iter(()), 3) == [] and costs.seconds == 0

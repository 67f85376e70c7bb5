"""The package of a user's own in docs/extending.md, made and used as the page says it, its evaluation included."""

import csv
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalkit.__main__ import main
from evalkit.core.rows import read
from support import tiny
from support.extending import FILES, PAGE, made

COMMANDS = [
    shlex.split(line)[3:]
    for block in re.findall(r"^```bash\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
SHORT = [*tiny.TRAIN, *tiny.EVAL, "eval.lengths=[64]", "wandb.mode=disabled"]
SETTINGS = [text for text in tiny.OVERRIDES if not text.startswith("eval.")]
# One small block.
SMALL = {
    "model=qrnn": ["model.width=8", "model.pattern=[qrnn]"],
    "model=hawk": ["model.width=8", "model.pattern=[recurrent]", "model.mixers.recurrent.gate_blocks=4"],
}
pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with made(tmp_path, monkeypatch) as folder:
        yield folder


def test_a_mixer_is_at_most_60_lines_a_task_50_and_an_optimiser_25() -> None:
    lines = {name: len(text.splitlines()) for name, text in FILES.items()}
    assert lines["mine/qrnn.py"] + lines["conf/model/qrnn.yaml"] <= 60
    assert lines["mine/running_sum.py"] + lines["conf/task/running_sum.yaml"] <= 50
    assert lines["mine/cautious.py"] + lines["conf/optimizer/cautious.yaml"] <= 25


def test_a_sink_is_at_most_25_lines() -> None:
    assert max(len(FILES[name].splitlines()) for name in ("mine/table.py", "conf/log/table.yaml")) <= 25


def assert_every_row_once(run: Path) -> None:
    with (run / "mine.csv").open(newline="") as file:
        table = [line[:3] for line in csv.reader(file)]
    assert table == [[str(row[name]) for name in ("seed", "step", "metric")] for row in read(run).rows]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_sink_of_ones_own_has_every_row_once_after_a_resume(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished run is trained further, so that its last rows give way to others, as `check` looks at below."""
    words = ["--config-dir", "conf", *tiny.OVERRIDES, "log=[table,tensorboard]", "sinks.table.name=mine"]
    run = package / "run"
    assert main([*words, f"hydra.run.dir={run}"]) == 0
    assert f"table: {run / 'mine.csv'}" in capsys.readouterr().out
    assert main(["resume", str(run), "train.steps=8"]) == 0
    assert_every_row_once(run)
    assert read(run).rows[-1]["step"] == 8


@pytest.mark.slow
def test_the_package_is_shown_checked_trained_and_compared(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of the page, trainings a few steps long."""
    first = ["--config-dir", "--config-dir", "check", "--config-dir", "--config-dir", "compare"]
    assert [words[0] for words in COMMANDS] == first
    for words in COMMANDS:
        small = [setting for word in words for setting in SMALL.get(word, [])]
        short = SHORT if words[0] == "check" or any(word.startswith("train.") for word in words) else []
        sinks = ["log=[table]"] if words[0] == "check" else []
        assert main([*words, *small, *short, *sinks]) == 0
        printed = capsys.readouterr().out
        if words[-1] == "--help":
            assert re.search(r"^ +qrnn +A QRNN in two blocks", printed, flags=re.MULTILINE)
            assert re.search(r"^ +running_sum +At every digit", printed, flags=re.MULTILINE)
        if words[0] == "check":
            assert printed.count("kept") > 25 and "log=table" in printed and "broken" not in printed
    assert "qrnn" in (package / "runs" / "compare" / "running_sum" / "compare.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("part", [slice(5), pytest.param(slice(5, None), marks=pytest.mark.exhaustive)])
def test_the_promises_hold_in_a_test_of_ones_own(package: Path, part: slice) -> None:
    """`evalkit check` looks at all of them above."""
    block = next(text for text in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "LOOKED_AT" in text)
    found: dict = {}
    exec(compile(block, "extending.md", "exec"), found)
    promises = found["EVERY_PROMISE_OF_MODELS"][part]
    assert promises
    for promise in promises:
        found["test_qrnn"](promise)


def test_every_promise_is_explained() -> None:
    from evalkit import contract

    parts = (contract.PROMISES_OF_TASKS, contract.PROMISES_OF_EVALUATIONS, contract.PROMISES_OF_SINKS)
    of_parts = [group for part in parts for group in part]
    groups = (contract.EVERY_PROMISE_OF_MODELS, contract.OF_ONE_MIXER, *of_parts)
    rows = re.findall(r"^\| ([^|]+) \|", PAGE, flags=re.MULTILINE)
    explained = {name.strip() for row in rows for name in row.split(",")} | {"causality by gradients"}
    assert {promise.name for group in groups for promise in group} <= explained


def test_it_takes_three_files_of_at_most_80_lines() -> None:
    """The evaluation, here and in what follows."""
    assert (
        sum(len(FILES[name].splitlines()) for name in ("mine/measure.py", "mine/report.py", "conf/eval/sureness.yaml"))
        <= 80
    )


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_what_its_code_raises_is_one_line_with_its_place(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After training, whose state is kept."""
    report = package / "mine" / "report.py"
    report.write_text(report.read_text().replace('row["metric"] == "sureness"', 'row["metrik"] == "sureness"'))
    assert main(["--config-dir", "conf", "eval=sureness", *SETTINGS, "hydra.run.dir=out"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("evalkit: KeyError: 'metrik' (report.py:8); mend it, then go on with: python -m evalkit")
    assert printed.count("\n") == 1 and "Traceback" in (package / "out" / "evalkit.log").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_it_is_reported_and_compared(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its rows in a sink of one's own, too."""
    own = ["--config-dir", "conf", "eval=sureness", "log=[table]", "sinks.table.name=mine"]
    for seed in (0, 1):
        assert main([*own, *SETTINGS, f"seed={seed}", f"hydra.run.dir=out/{seed}"]) == 0
        assert "Sureness" in capsys.readouterr().out
        assert_every_row_once(package / "out" / str(seed))
        seeds = json.loads((package / "out" / str(seed) / "results.json").read_text())["seeds"]
        assert [record["seed"] for record in seeds] == [seed] and seeds[0]["sureness"] < 0
        assert "log-probability" in (package / "out" / str(seed) / "report.html").read_text()
    assert main(["compare", "out/0", "out/1", "--out", "together"]) == 0
    assert "Sureness" in capsys.readouterr().out
    assert len((package / "together" / "compare.csv").read_text().splitlines()) == 1 + 2
    assert "Sureness" in (package / "together" / "compare.html").read_text()

"""An evaluation of a user's own, from a folder outside the repository: three files, at most 80 lines."""

import json
import sys
from pathlib import Path

import pytest

from evalkit.__main__ import main
from support import tiny

SETTINGS = [text for text in tiny.OVERRIDES if not text.startswith("eval.")]
pytestmark = pytest.mark.usefixtures("shared", "blank_figures")

MEASURE = '''
"""How sure the model is of its answers: the mean log-probability of the right one."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from evalkit.core.contracts import Evaluation
from evalkit.core.streams import TEST


@dataclass(frozen=True)
class Sureness(Evaluation):
    """`sequences` held-out sequences at the training length."""

    kind = "mine.report"
    sequences: int = 8

    def run(self, trained):
        length = trained.task.length
        batch = trained.feed.held_out(TEST, 0, self.sequences, length)
        for seed, params in zip(trained.seeds, trained.params, strict=True):
            logits, _ = jax.jit(trained.model.apply)(params, jnp.asarray(batch.tokens))
            right = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(batch.targets)[..., None], axis=-1)
            total = float((right[..., 0] * batch.mask).sum())
            place = {"seed": seed, "step": trained.step, "split": "test", "length": length}
            yield trained.make_row(metric="sureness", total=total, count=self.sequences, **place)
'''
REPORT = '''
"""The kind of report: one number a seed."""

from evalkit.core.rows import value
from evalkit.reports.kinds import Table


def summarise(record):
    rows = [row for row in record.rows if row["metric"] == "sureness"]
    return {"seeds": [{"seed": row["seed"], "sureness": value(row)} for row in rows]}


def tables(lines):
    cells = [[line.label, f"{record['seed']}", f"{record['sureness']:.3f}"] for line, record in _found(lines)]
    return [Table("Sureness", ["model", "seed", "log-probability"], cells)]


def figures(lines, title, notes):
    return {}


def records(lines):
    return [{"model": line.label, **record} for line, record in _found(lines)]


def _found(lines):
    return [(line, record) for line in lines for record in summarise(line.record)["seeds"]]
'''
CONF = """
# How sure the model is of its answers.
_target_: mine.measure.Sureness
sequences: 8
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "conf" / "eval").mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "measure.py").write_text(MEASURE.lstrip())
    (tmp_path / "mine" / "report.py").write_text(REPORT.lstrip())
    (tmp_path / "conf" / "eval" / "mine.yaml").write_text(CONF.lstrip())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("mine", "mine.measure", "mine.report"):
        sys.modules.pop(name, None)


def test_it_takes_three_files_of_at_most_80_lines() -> None:
    assert sum(len(text.strip().splitlines()) for text in (MEASURE, REPORT, CONF)) <= 80


def test_what_its_code_raises_is_one_line_with_its_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After training, whose state is kept."""
    report = folder / "mine" / "report.py"
    report.write_text(report.read_text().replace('row["metric"] == "sureness"', 'row["metrik"] == "sureness"'))
    assert main(["--config-dir", "conf", "eval=mine", *SETTINGS, "hydra.run.dir=out"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("evalkit: KeyError: 'metrik' (report.py:8); mend it, then go on with: python -m evalkit")
    assert printed.count("\n") == 1 and "Traceback" in (folder / "out" / "evalkit.log").read_text()


@pytest.mark.slow
def test_it_is_reported_and_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        given = ["--config-dir", "conf", "eval=mine", *SETTINGS, f"seed={seed}", f"hydra.run.dir=out/{seed}"]
        assert main(given) == 0
        assert "Sureness" in capsys.readouterr().out
        found = json.loads((folder / "out" / str(seed) / "results.json").read_text())["seeds"]
        assert [record["seed"] for record in found] == [seed] and found[0]["sureness"] < 0
        assert "log-probability" in (folder / "out" / str(seed) / "report.html").read_text()
    assert main(["compare", "out/0", "out/1", "--out", "together"]) == 0
    assert "Sureness" in capsys.readouterr().out
    assert len((folder / "together" / "compare.csv").read_text().splitlines()) == 1 + 2
    assert "Sureness" in (folder / "together" / "compare.html").read_text()

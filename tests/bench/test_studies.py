"""Programs of studies that draw: modules' gates are the closed forms, made-up runs lie on the law that made them."""

import csv
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from evalkit.core.errors import UserError
from evalkit.core.rows import Header, RowLog, row

ROOT = Path(__file__).parents[2]


def script(study: str, name: str) -> ModuleType:
    """A program of a study as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "studies" / study / "figures" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gates = script("synthetic", "gates")
C, DECAYS = gates.C, gates.DECAYS
R = gates.RATES.astype(np.float64)
CLOSED = {
    "RG-LRU": lambda a: (a ** (C * R), np.sqrt(1 - a ** (2 * C * R))),
    "LRU, a": lambda a: (np.full(R.shape, a), np.full(R.shape, np.sqrt(1 - a**2))),
    "LRU, a^c": lambda a: (np.full(R.shape, a**C), np.full(R.shape, np.sqrt(1 - a ** (2 * C)))),
    "GRU": lambda a: (1 - R, R),
    "Mamba": lambda a: ((1 - R) ** a, -np.log1p(-R)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", gates.GATES)
@pytest.mark.parametrize("a", DECAYS)
def test_modules_are_the_closed_forms(name: str, a: float) -> None:
    found, (keeps, enters) = gates.GATES[name](a), CLOSED[name](a)
    np.testing.assert_allclose(found.keeps, keeps, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found.enters, enters, rtol=2e-5, atol=1e-6)


@pytest.mark.slow  # of the same modules
def test_the_figure_and_its_rows_are_written(tmp_path: Path) -> None:
    gates.main(tmp_path)
    assert (tmp_path / "gates.png").stat().st_size > 10_000
    header, *lines = (tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()
    assert header == "gate,a,r,keeps,enters"
    assert len(lines) == len(gates.GATES) * len(DECAYS) * R.size


draw = script("scaling", "draw")
STEPS, BATCH, LENGTH = 10, 4, 8


def run(folder: Path, family: str, size: int, rate: float, worse: float = 1.0, exponent: float = 0.1) -> None:
    """A run of which a token costs `size` FLOPs, and whose loss is a power of its compute, or so many times worse."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"seed: 0\ntrain:\n  batch_size: {BATCH}\n  learning_rate: {rate}\n")
    flops = 3 * size * STEPS * BATCH * LENGTH
    told = {
        "kind": "evalkit.evaluations.text.report",
        "train_length": LENGTH,
        "seeds": [0],
        "steps": STEPS,
        "window": size // 1000,
    }
    with RowLog(folder / "metrics.jsonl") as log:
        log.begin(Header("run", "books", family, parameters=size, flops_per_token=size, **told))
        at = {"run": "run", "task": "books", "model": family, "seed": 0, "split": "validation", "metric": "loss"}
        log.write(
            [
                row(step=step, length=LENGTH, count=1, total=loss, **at)
                for step, loss in ((5, 9.0), (STEPS, worse * 5 * flops**-exponent))
            ]
        )


def test_the_law_that_made_the_runs_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for family, exponent in (("hawk", 0.1), ("mqa", 0.2)):
        for size in (1000, 3000, 9000):
            run(tmp_path / "runs" / f"{family}_{size}", family, size, 2e-3, exponent=exponent)
            run(tmp_path / "runs" / f"{family}_{size}_worse", family, size, 8e-3, worse=1.5, exponent=exponent)
    draw.draw_compute(tmp_path / "runs", tmp_path / "out")
    assert "hawk: loss falls as compute to the −0.100 (0.100 to 0.100)" in capsys.readouterr().out
    with (tmp_path / "out" / "compute.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 12
    assert {line["rate"] for line in found if line["chosen"] in ("True", "true")} == {"0.002"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"compute.csv", "compute_fits.csv", "compute.png"}


def test_a_best_rate_at_an_edge_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A better one may lie outside; a run that is not finished is left out by name."""
    for size in (1000, 3000, 9000):
        for rate, worse in ((2e-3, 1.1), (4e-3, 1.0), (8e-3, 0.9 if size == 3000 else 1.2)):
            run(tmp_path / "runs" / f"{size}_{rate}", "hawk", size, rate, worse=worse)
    unfinished = tmp_path / "runs" / "9000_0.008"
    lines = (unfinished / "metrics.jsonl").read_text().splitlines()
    (unfinished / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    draw.draw_compute(tmp_path / "runs", tmp_path / "out")
    said = capsys.readouterr().out
    assert "left out: " in said and "9000_0.008 has no validation at its last step" in said
    assert "hawk of 3,000 parameters: the best rate, 0.008, is at an edge of its grid" in said
    assert "hawk of 1,000 parameters" not in said and "hawk of 9,000 parameters: the best rate, 0.004" in said


def test_an_interval_says_how_far_points_are_from_a_line() -> None:
    points = [draw.Trained("hawk", n, 1e-3, 0, 10.0**n, 2.0 * (1 + 0.02 * (-1) ** n)) for n in range(6, 10)]
    found = draw.fit(points)
    assert found.low < found.exponent < found.high and found.high - found.low > 0.01
    with pytest.raises(ValueError, match="needs 3"):
        draw.fit(points[:2])


def test_a_run_that_is_not_finished_is_named(tmp_path: Path) -> None:
    run(tmp_path / "run", "hawk", 1000, 1e-3)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(ValueError, match="no validation at its last step"):
        draw.trained(tmp_path / "run")


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give folders of runs"):
        draw.draw_compute(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_page_shows_the_fits_of_the_kept_runs() -> None:
    study = ROOT / "studies" / "scaling"
    chosen = draw.best(draw.finished(study / "fig1a", draw.trained))
    page = (study / "scaling.md").read_text(encoding="utf-8")
    shown = re.search(r"\| power laws \| exponents (.*?);", page)
    assert shown is not None
    fits = {name: draw.fit([run for run in chosen if run.family == name]) for name in ("griffin", "hawk", "mqa")}
    assert shown[1] == ", ".join(
        f"{fit.exponent:.2f} ({fit.low:.2f} to {fit.high:.2f}) for {draw.named(name)}" for name, fit in fits.items()
    )


def test_every_window_of_every_family_has_its_line(tmp_path: Path) -> None:
    for family in ("griffin", "mqa"):
        for size in (1000, 3000):
            run(tmp_path / "runs" / f"{family}_{size}", family, size, 2e-3)
    draw.draw_windows(tmp_path / "runs", tmp_path / "out")
    with (tmp_path / "out" / "windows.csv").open(encoding="utf-8") as file:
        found = [(line["family"], line["window"], line["length"]) for line in csv.DictReader(file)]
    assert found == [(family, window, str(LENGTH)) for family in ("griffin", "mqa") for window in ("1", "3")]
    assert (tmp_path / "out" / "windows.png").is_file()
    labels = [draw.Measured(*run, LENGTH, 1.0).label for run in (("griffin", 64), ("mqa", 64), ("mqa", None))]
    assert labels == ["Griffin, window 64", "MQA, window 64 alone", "MQA, global"]

"""The evaluation of docs/extending.md, from a folder outside the repository: three files, at most 80 lines."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalkit.__main__ import main
from support import tiny
from support.extending import FILES, made

SETTINGS = [text for text in tiny.OVERRIDES if not text.startswith("eval.")]
pytestmark = pytest.mark.usefixtures("shared", "blank_figures")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with made(tmp_path, monkeypatch) as folder:
        yield folder


def test_it_takes_three_files_of_at_most_80_lines() -> None:
    assert (
        sum(len(FILES[name].splitlines()) for name in ("mine/measure.py", "mine/report.py", "conf/eval/sureness.yaml"))
        <= 80
    )


@pytest.mark.slow
def test_what_its_code_raises_is_one_line_with_its_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After training, whose state is kept."""
    report = folder / "mine" / "report.py"
    report.write_text(report.read_text().replace('row["metric"] == "sureness"', 'row["metrik"] == "sureness"'))
    assert main(["--config-dir", "conf", "eval=sureness", *SETTINGS, "hydra.run.dir=out"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("evalkit: KeyError: 'metrik' (report.py:8); mend it, then go on with: python -m evalkit")
    assert printed.count("\n") == 1 and "Traceback" in (folder / "out" / "evalkit.log").read_text()


@pytest.mark.slow
def test_it_is_reported_and_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        given = ["--config-dir", "conf", "eval=sureness", *SETTINGS, f"seed={seed}", f"hydra.run.dir=out/{seed}"]
        assert main(given) == 0
        assert "Sureness" in capsys.readouterr().out
        seeds = json.loads((folder / "out" / str(seed) / "results.json").read_text())["seeds"]
        assert [record["seed"] for record in seeds] == [seed] and seeds[0]["sureness"] < 0
        assert "log-probability" in (folder / "out" / str(seed) / "report.html").read_text()
    assert main(["compare", "out/0", "out/1", "--out", "together"]) == 0
    assert "Sureness" in capsys.readouterr().out
    assert len((folder / "together" / "compare.csv").read_text().splitlines()) == 1 + 2
    assert "Sureness" in (folder / "together" / "compare.html").read_text()

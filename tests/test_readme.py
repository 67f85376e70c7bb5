"""Every command of the README, of docs/commands.md and of docs/quickstart.md runs or composes.

`.ci/run` reads the same test command.
"""

import re
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest

from evalkit.__main__ import main
from evalkit.commands import VERBS
from evalkit.core.rows import read
from evalkit.evaluations.extrapolation.effective import shown
from evalkit.evaluations.extrapolation.summary import summarise
from evalkit.session import plan
from support import tiny

ROOT = Path(__file__).parent.parent
README, PAGE, QUICKSTART = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/commands.md", "docs/quickstart.md")
)
MAIN, TESTS, *COMMANDS = (
    line for block in re.findall(r"```bash\n(.*?)```", README, re.S) for line in block.splitlines()
)
GRIFFIN = "studies/first_runs/induction_heads/griffin"
ALL_COMMANDS, QUICK_COMMANDS = (
    [line for block in re.findall(r"```bash\n(.*?)```", page, re.S) for line in block.splitlines()]
    for page in (PAGE, QUICKSTART)
)
SHARED = [text for text in tiny.OVERRIDES if not text.startswith(("task=", "model"))]
HAWK = ["model.width=16", "model.mlp_expansion=1", "model.pattern=[recurrent]"]
HAWK += ["model.mixers.recurrent.width_rnn=16", "model.mixers.recurrent.gate_blocks=4"]
SMALL = {
    "model=griffin": [*SHARED, *HAWK],  # its attention is in tests/training/test_train.py
    "model=hawk": [*SHARED, *HAWK],
    "evaluate": ["eval.lengths=[16,24]"],
    "quick=true": ["task=parity", "dry_run=true"],  # tests/session/test_suite.py trains one
}
ON_THE_HUB = "checkpoint=google/recurrentgemma-2b"  # 5 GB


def words_of(line: str) -> list[str]:
    """What follows `python -m evalkit`."""
    python, *words = shlex.split(line, comments=True)
    assert python.endswith("python") and words[:2] == ["-m", "evalkit"]
    return words[2:]


def test_it_is_one_page_that_begins_with_the_two_commands() -> None:
    assert len(README.splitlines()) <= 90
    for line in (MAIN, TESTS):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install -q -e ")
    assert " -m pytest" in TESTS and words_of(MAIN.rpartition("&&")[2]) == ["task=induction_heads", "model=griffin"]


def test_the_table_on_the_terminal_is_that_of_the_kept_run() -> None:
    (table,) = re.findall(r"```text\n(.*?)```", README, re.S)
    kept = {f"{point['length']:,}": point for point in summarise(read(ROOT / GRIFFIN))["extrapolation"]}
    for line in table.splitlines()[1:]:
        length, *shown = line.replace(" (trained)", "").replace(" – ", " ").split()
        point = kept[length]
        numbers = [f"{point[name]:.3f}" for name in ("accuracy", "low", "high", "exact_match")]
        assert shown == [*numbers, str(point["sequences"]), f"{point['loss']:.3g}"]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("readme/griffin", r"`griffin` and `hawk` keep .+? to (.+?) tokens, the longest"),
        ("readme/hawk", r"`griffin` and `hawk` keep .+? to (.+?) tokens, the longest"),
        ("readme/mqa", r"`mqa` to (.+?): their"),
        ("fig6b/hawk", r"Hawk is perfect .* effective length (.+?) \|"),
        ("fig6b/griffin", r"Griffin is nearly perfect .* effective length (.+?) \|"),
    ],
)
def test_effective_lengths_are_those_of_the_kept_rows(run: str, said: str) -> None:
    summary = summarise(read(ROOT / "studies/synthetic" / run))
    assert re.findall(said, README) == [shown(summary["aggregate"]["effective_length"]["0.85"])]


@pytest.mark.slow
@pytest.mark.usefixtures("shared", "blank_figures")
def test_the_main_job_and_the_commands_after_it_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, with a tiny model and few steps; setting up is what `.ci/run` does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "_seconds_measured", Mock(return_value=1.0))
    for line in (MAIN.rpartition("&&")[2], *COMMANDS):
        words = words_of(line)
        small = [text for word, settings in SMALL.items() if word in words for text in settings]
        composing = ["--cfg", "job"] if ON_THE_HUB in words else []
        assert main([*words, *small, *composing]) == 0, line
    (first,) = (tmp_path / "runs" / "induction_heads" / "griffin").iterdir()
    for name in ("report.html", "extrapolation.png", "results.json", "metrics.jsonl"):
        assert (first / name).is_file()
    assert "griffin" in (tmp_path / "runs" / "all" / "compare.csv").read_text()
    for words in map(words_of, ALL_COMMANDS):
        if words[0] in ("rows", "archive", "example"):
            assert main(words) == 0


@pytest.mark.parametrize("line", dict.fromkeys([*ALL_COMMANDS, *QUICK_COMMANDS]))
def test_a_command_of_a_page_composes(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever trains is composed with every key; of another verb, it exists and has a page."""
    words = words_of(line)
    if words[0] in VERBS:
        assert main([words[0], *(["run"] if words[0] == "lm-eval" else []), "--help"]) == 0
    elif "-m" not in words and not any(word.startswith("experiment=") for word in words):
        assert main([*words, *([] if "--cfg" in words else ["--cfg", "job"])]) == 0
    assert capsys.readouterr().err == ""


def test_every_command_is_on_the_page() -> None:
    assert {words_of(line)[0] for line in ALL_COMMANDS} >= set(VERBS) - {"run"}

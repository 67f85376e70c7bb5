"""What pages name, link and show is there, what docs/python.md and docs/quickstart.md show
runs; and each planted mistake is of the code as it is."""

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import evalkit
from evalkit import api
from evalkit.__main__ import main
from evalkit.configuration import grammar
from evalkit.core.rows import read, with_records
from support import tiny
from support.mutations import MUTATIONS, PLANTED

ROOT = Path(__file__).parent.parent
WRITTEN = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *(ROOT / "docs").glob("*.md")]
PAGES = sorted({*WRITTEN, *(ROOT / "studies").rglob("*.md")})
SHOWN = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
LINKED = re.compile(r"\[[^]]*\]\((?!https?:|#)([^)#]+)")
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(
    r"`((?:evalkit|models|tasks|kernels|conf|tests|benchmarks|docs|studies)/[\w/.-]+\.(?:py|md|yaml|sh|json))`"
)


def test_the_files_that_pages_name_are_there() -> None:
    recipes = ("recipe/running_sum", "optimizer/cautious", "eval/sureness", "log/table")
    a_users = ("mixer/theirs", "experiment/mine", "model/qrnn", "task/running_sum", *recipes)
    own = {f"conf/{name}.yaml" for name in a_users}
    named = {(page, name) for page in PAGES for name in NAMED.findall(page.read_text(encoding="utf-8"))}
    assert [(page, name) for page, name in named if name not in own and not (ROOT / name).exists()] == []


def test_what_pages_link_is_there() -> None:
    linked = [(page, name) for page in PAGES for name in LINKED.findall(FENCED.sub("", page.read_text("utf-8")))]
    assert [(page, name) for page, name in linked if not (page.parent / name).exists()] == []


def test_the_figures_that_a_page_shows_are_there_and_no_others() -> None:
    shown = {(page.parent / name).resolve() for page in PAGES for name in SHOWN.findall(page.read_text("utf-8"))}
    kept = {path.resolve() for path in (ROOT / "studies").rglob("*.png")}
    assert shown - {path for path in shown if path.is_file()} == set()
    assert kept - shown == set()


def test_the_runs_that_are_kept_can_be_read_and_the_tree_stays_small() -> None:
    runs = with_records(ROOT / "studies")
    assert len(runs) > 200 and all(read(run).rows for run in runs[::10])
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [path for name in listed.split("\0")[:-1] if (path := ROOT / name).is_file()]
    assert len(files) <= 710 and sum(path.stat().st_size for path in files) <= 12e6


@pytest.mark.slow
@pytest.mark.usefixtures("shared", "blank_figures")
def test_the_python_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks in order, as one program; every run of them is as small as can be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    own = [text for text in tiny.OVERRIDES if not text.startswith(("task=", "model=", "wandb"))]
    small = {override.key_or_group: override.value() for override in grammar.parse(own)}
    of_evaluation = {name: value for name, value in small.items() if name.startswith("eval")}
    of_hawk = {"model.pattern": ["recurrent"]}

    def train(task: Any, model: Any = None, settings: Mapping[str, Any] | None = None, **given: Any) -> evalkit.Run:
        shared = {name: value for name, value in small.items() if model != "hawk" or "attention" not in name}
        return api.train(
            task, model, settings={**(settings or {}), **shared, **(of_hawk if model == "hawk" else {})}, **given
        )

    def evaluate(run: Any, **given: Any) -> evalkit.Run:
        return api.evaluate(run, settings=of_evaluation, **given)

    def resume(run: Any, **given: Any) -> evalkit.Run:
        return api.resume(run, settings={"train.steps": small["train.steps"] + 2}, **given)

    for name, smaller in (("train", train), ("evaluate", evaluate), ("resume", resume)):
        monkeypatch.setattr(evalkit, name, smaller, raising=False)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    known: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(block, "docs/python.md", "exec"), known)
    assert known["more"].step == known["run"].step + 2 == 8
    assert [str(known["table"][name].dtype) for name in ("length", "seed", "sequences")] == ["int64"] * 3
    assert set(known["table"].model) == {"griffin", "hawk"}
    assert (tmp_path / "runs" / "griffin-and-hawk" / "compare.csv").is_file()
    assert {record["length"] for record in evalkit.rows(known["longer"])} == {16, 32}


QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", QUICKSTART, flags=re.DOTALL)
SHARED = [text for text in tiny.OVERRIDES if not text.startswith(("task=", "model"))]
RECALL = [
    "eval.length=64",
    "eval.before=[0,10]",
    "eval.chunk=2",
    "eval.sequences=6",
    "eval.pairs=2",
    "eval.pair_length=99",
]
SIZES = {
    "model=griffin": [text for text in tiny.MODEL if text != "model=griffin"],
    "model=mqa": ["model.width=16", "model.mlp_expansion=1", "model.pattern=[attention]"],
}


def smaller(words: list[str]) -> list[str]:
    """The command with settings that take seconds; those of the page's own that are large are replaced."""
    sizes = next((SIZES[word] for word in words if word in SIZES), None)
    if sizes is not None:
        return [*words, *SHARED, *sizes]
    if words[0] == "evaluate":
        few = RECALL if "eval=recall" in words else ["eval.lengths=[16,24]"]
        return [*(word for word in words if not word.startswith("eval.lengths")), *few]
    return ["train.steps=8" if word.startswith("train.steps=") else word for word in words]


# Its commands are README's, and compose, in tests/test_readme.py; its Python is of the page above.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("shared", "blank_figures")
def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "docs/quickstart.md", "exec"), known)
            continue
        for line in block.splitlines():
            words = shlex.split(line)
            assert words[:3] == ["python", "-m", "evalkit"]
            assert main(smaller(words[3:])) == 0, line
    assert known["run"].step == 8 and known["logits"].shape == (1, 64, 16)
    assert {record["model"] for record in known["records"]} == {"griffin", "mqa"}
    for name in ("report.html", "extrapolation.png", "training.png", "metrics.jsonl", "results.json", "config.yaml"):
        assert f"`{name}`" in QUICKSTART and (tmp_path / "runs" / "first" / name).is_file()
    assert (tmp_path / "runs" / "both" / "compare.html").is_file()


def test_each_mistake_can_be_planted() -> None:
    """Mistakes that are planted on purpose are of the code as it is; `support/mutations.py` tries the tests on them."""
    counts = {one.name: (ROOT / one.file).read_text(encoding="utf-8").count(one.right) for one in MUTATIONS}
    assert counts == dict.fromkeys(counts, 1) and len(counts) == 20


@pytest.mark.fault
def test_every_planted_defect_has_its_place() -> None:
    for mutation in PLANTED:
        assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.right) == 1, mutation.name

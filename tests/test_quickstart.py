"""The blocks of docs/quickstart.md, in order, as they stand; only smaller."""

import re
import shlex
from pathlib import Path

import pytest

from evalkit.__main__ import main
from support import tiny

PAGE = (Path(__file__).parents[1] / "docs" / "quickstart.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", PAGE, flags=re.DOTALL)
SHARED = [text for text in tiny.OVERRIDES if not text.startswith(("task=", "model"))]
RECALL = ["eval.length=64", "eval.before=[0,9]", "eval.sequences=6", "eval.pairs=2", "eval.pair_length=99"]
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


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
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
        assert f"`{name}`" in PAGE and (tmp_path / "runs" / "first" / name).is_file()
    assert (tmp_path / "runs" / "both" / "compare.html").is_file()

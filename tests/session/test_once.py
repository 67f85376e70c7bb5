"""One command reads its words once, makes one plain configuration of them, and builds one experiment."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from evalkit.__main__ import main
from evalkit.configuration import experiment as configuration
from evalkit.configuration import grammar, hydra_private
from evalkit.core.rows import read
from evalkit.session import run
from evalkit.session.session import Outcome
from evalkit.tasks.induction_heads import InductionHeads
from support import tiny

PARTS = {"task", "model", "train", "eval"}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often words are parsed, configurations composed and resolved, and what they describe is built."""
    found: Counter[str] = Counter()

    def count(owner: Any, attribute: str, names: Callable[..., Sequence[str]]) -> None:
        original = getattr(owner, attribute)

        def counting(*arguments: Any, **settings: Any) -> Any:
            found.update(names(*arguments, **settings))
            return original(*arguments, **settings)

        monkeypatch.setattr(owner, attribute, counting)

    def is_whole(config: Any, *, resolve: bool = False, **_: Any) -> Sequence[str]:
        return ["plain"] if resolve and set(config) >= PARTS else []

    count(hydra_private, "loaded", lambda *_: ["composed"])
    # Of the words that choose files Hydra reads its own copy.
    count(
        OverridesParser,
        "parse_overrides",
        lambda _, overrides: [w for w in overrides if w.startswith(("train.", "eval."))],
    )
    count(OmegaConf, "to_container", is_whole)
    count(InductionHeads, "__post_init__", lambda _: ["task"])
    count(configuration, "model_of", lambda *_: ["model"])
    count(configuration.Experiment, "__init__", lambda *_, **__: ["experiment"])
    return found


def test_a_new_run_is_read_and_built_once(
    counted: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_trained", lambda launch, *_: Outcome(launch.folder))
    monkeypatch.setattr(run, "_fresh", lambda launch, pool: None)
    assert main([*tiny.OVERRIDES, f"hydra.run.dir={tmp_path / 'run'}"]) == 0
    values = Counter(word for word in tiny.OVERRIDES if word.startswith(("train.", "eval.")))
    assert counted == values | Counter(("composed", "plain", "task", "model", "experiment"))


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    ("words", "plain"), [(["resume"], 0), (["resume", "wandb.mode=offline"], 1), (["evaluate", "eval.lengths=[16]"], 1)]
)
def test_a_run_that_is_there_is_built_once(
    words: list[str], plain: int, counted: Counter[str], tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    monkeypatch.setattr(run, "_measure_state", lambda *_: pytest.fail("it is measured") if plain == 0 else None)
    monkeypatch.setattr(run.Session, "guard", lambda session, work: Outcome(session.folder))
    verb, *changes = words
    counted.clear()  # the tiny run may have been made just now
    assert main([verb, str(folder), *changes]) == 0
    built = {name: counted[name] for name in ("composed", "plain", "task", "model", "experiment")}
    assert built == {"composed": 0, "plain": plain, "task": 1, "model": 1, "experiment": 1}
    assert all(counted[word] == 1 for word in changes if word.startswith("eval."))
    assert read(folder).rows == read(tiny_run).rows
    assert grammar.parse(grammar.parse(changes)) == grammar.parse(changes)

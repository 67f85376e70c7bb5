"""One command composes one configuration and builds one task and one model."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evalkit.__main__ import main
from evalkit.configuration import composition, hydra_private
from evalkit.configuration import experiment as configuration
from evalkit.models import model as models
from evalkit.tasks.induction_heads import InductionHeads
from support import tiny


def test_one_command_composes_and_builds_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: Counter[str] = Counter()

    def count(name: str, owner: Any, attribute: str) -> None:
        original = getattr(owner, attribute)

        def counting(*arguments: Any, **settings: Any) -> Any:
            counted[name] += 1
            return original(*arguments, **settings)

        monkeypatch.setattr(owner, attribute, counting)

    count("configurations", hydra_private, "loaded")
    count("parsed", composition.OverridesParser, "parse_overrides")
    count("tasks", InductionHeads, "__post_init__")
    count("models", models.LanguageModel, "__init__")
    count("experiments", configuration.Experiment, "__post_init__")
    monkeypatch.setattr("evalkit.session.run.start", lambda experiment, folder: 0)
    assert main([*tiny.OVERRIDES, f"hydra.run.dir={tmp_path / 'run'}"]) == 0
    assert counted.pop("parsed") == 2  # all words by evalkit, then those that choose options by Hydra
    assert counted == {"configurations": 1, "tasks": 1, "models": 1, "experiments": 1}

"""What the tests of W&B have in common."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb


@pytest.fixture
def own_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test has a W&B of its own, with no key, no settings and no files of the machine's user."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))
    wandb.teardown()
    yield
    wandb.teardown()

"""A warning is shown once, however many runs of one command have it, and stands in the log of each."""

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console

from evalkit.session import logs


def test_a_warning_is_shown_once_and_kept_by_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger, console = logging.getLogger("evalkit.record.wandb"), Console(file=io.StringIO(), width=100)
    root = logging.StreamHandler()  # as a library adds one
    logging.getLogger().addHandler(root)
    try:
        with logs.shown(console):
            for name in "ab":
                with logs.shown(console), logs.kept(tmp_path / name):
                    logger.warning("W&B logs offline: no API key")
    finally:
        logging.getLogger().removeHandler(root)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("W&B logs offline") == 1
    assert all((tmp_path / name).read_text().count("W&B logs offline") == 1 for name in "ab")
    assert capsys.readouterr().err == ""
    assert logging.getLogger("evalkit").propagate

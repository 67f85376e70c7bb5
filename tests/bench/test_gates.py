"""`gates.py` of the study `synthetic`: what the modules keep and let in is what the closed forms of figure 7 say."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("gates", ROOT / "studies" / "synthetic" / "figures" / "gates.py")
assert SPEC is not None and SPEC.loader is not None
gates = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gates)
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

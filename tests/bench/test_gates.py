"""`bench gates`: what the modules keep and let in is what the closed forms of figure 7 say."""

import numpy as np
import pytest

from evalkit.__main__ import main
from evalkit.bench import gates
from evalkit.bench.gates import DECAYS, RATES, C
from evalkit.core.tidy import as_csv

R = RATES.astype(np.float64)
CLOSED = {
    "RG-LRU": lambda a: (a ** (C * R), np.sqrt(1 - a ** (2 * C * R))),
    "LRU, a": lambda a: (np.full(R.shape, a), np.full(R.shape, np.sqrt(1 - a**2))),
    "LRU, a^c": lambda a: (np.full(R.shape, a**C), np.full(R.shape, np.sqrt(1 - a ** (2 * C)))),
    "GRU": lambda a: (1 - R, R),
    "Mamba": lambda a: ((1 - R) ** a, -np.log1p(-R)),
}


@pytest.mark.parametrize("name", gates.GATES)
@pytest.mark.parametrize("a", DECAYS)
def test_modules_are_the_closed_forms(name: str, a: float) -> None:
    found, (keeps, enters) = gates.GATES[name](a), CLOSED[name](a)
    np.testing.assert_allclose(found.keeps, keeps, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found.enters, enters, rtol=2e-5, atol=1e-6)


def test_the_figure_and_its_rows_are_written(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gates", f"out={tmp_path}"]) == 0
    assert "RG-LRU" in capsys.readouterr().out
    assert (tmp_path / "gates.png").stat().st_size > 10_000
    header, *lines = (tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()
    assert header == as_csv([dict.fromkeys(("gate", "a", "r", "keeps", "enters"), 0)]).splitlines()[0]
    assert len(lines) == len(gates.GATES) * len(DECAYS) * RATES.size

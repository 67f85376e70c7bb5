"""Draws figure 7: how much of its state each gate keeps, and how much of its input it lets in.

    python studies/synthetic/figures/gates.py studies/synthetic/figures

Nothing is timed. One step is `h_t = α(r) h_{t-1} + β(r) x_t`, and α and β are read off the modules themselves. They
have a channel for each r, whose gate before its sigmoid is the logit of r, and whose weights are zero.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from flax import nnx
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evalkit.core.tidy import as_csv
from evalkit.models.layers.modules import CausalConv1D, Linear
from evalkit.models.mixers.lru import LRU
from evalkit.models.mixers.mingru import MinGRUBlock
from evalkit.models.mixers.rglru import RGLRU, C
from evalkit.models.mixers.s6 import S6Block
from evalkit.reports.canvas import GRID, STYLE
from evalkit.reports.curves import COLOURS, save

DECAYS = (0.5, 0.9, 0.99)
RATES = np.arange(1, 200) / 200
ONE_OF_SILU = 1.2784645  # silu of it is 1
ALL_IN = 30.0  # a gate before its sigmoid that is open


class Gate(NamedTuple):
    """α and β of one module at each of `RATES`."""

    keeps: np.ndarray
    enters: np.ndarray


def rglru(a: float) -> Gate:
    """The RG-LRU with an open input gate: `α = a^{c r}` and `β = sqrt(1 − α²)` (eqs. 1–4)."""
    unit = RGLRU(RATES.size, RATES.size, rngs=nnx.Rngs(0))
    for gate, before in ((unit.recurrence_gate, _logit(RATES)), (unit.input_gate, ALL_IN)):
        gate.kernel[...] *= 0
        gate.bias[...] = jnp.broadcast_to(before, RATES.shape)
    unit.decay[...] = jnp.broadcast_to(_logit(a), RATES.shape)
    return _of_unit(unit)


def lru(a: float) -> Gate:
    """The LRU without gates: `α = a` and `β = sqrt(1 − a²)` (Orvieto et al. 2023), whatever r is."""
    unit = LRU(RATES.size, rngs=nnx.Rngs(0))
    unit.decay[...] = jnp.broadcast_to(_logit(a), RATES.shape)
    return _of_unit(unit)


def lru_to_the_c(a: float) -> Gate:
    """The LRU with the decay that the RG-LRU has at r = 1."""
    return lru(a**C)


def mingru(a: float) -> Gate:
    """The minGRU, a GRU whose gate does not see the state: `α = 1 − r` and `β = r`; it has no a."""
    block = MinGRUBlock(1, width_rnn=RATES.size, rngs=nnx.Rngs(0))
    _shift(block.gate, _logit(RATES))
    _shift(block.candidate, jnp.full(RATES.shape, 0.5))  # g of it is 1
    return _of_decays(block.decays(jnp.zeros((1, 1, 1))))


def mamba(a: float) -> Gate:
    """S6 with A = −a, B = 1 and Δ = softplus(logit r): `α = (1 − r)^a` and, as Mamba's code has it, β = Δ."""
    size = RATES.size
    block = S6Block(size, expand=1, states=1, step_rank=1, rngs=nnx.Rngs(0))
    for each in (block.input, block.step):
        each.kernel[...] *= 0
    _shift(block.conv, jnp.full((size,), ONE_OF_SILU))
    _shift(block.step, _logit(RATES))
    block.select.kernel[...] = jnp.full((size, 3), 1 / size)
    block.log_rate[...] = jnp.full((size,), np.log(a))
    return _of_decays(block.decays(jnp.zeros((1, 1, size))))


GATES: Mapping[str, Callable[[float], Gate]] = {
    "RG-LRU": rglru,
    "LRU, a": lru,
    "LRU, a^c": lru_to_the_c,
    "GRU": mingru,
    "Mamba": mamba,
}


def rows_of(found: Mapping[tuple[str, float], Gate]) -> list[dict[str, Any]]:
    """A row for each gate, a and r."""
    return [
        {"gate": name, "a": a, "r": float(r), "keeps": float(keeps), "enters": float(enters)}
        for (name, a), gate in found.items()
        for r, keeps, enters in zip(RATES, gate.keeps, gate.enters, strict=True)
    ]


def main(folder: Path) -> None:
    """Writes the rows and the figure."""
    found = {(name, a): gate(a) for name, gate in GATES.items() for a in DECAYS}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.csv").write_text(as_csv(rows_of(found)), encoding="utf-8")
    save(_figure(found), folder / "gates.png")


def _figure(found: Mapping[tuple[str, float], Gate]) -> Figure:
    """α above and β below, a column for each a; dashed, β of Mamba by the paper's formula."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.6), layout="constrained")
        FigureCanvasAgg(figure)
        panels: Any = figure.subplots(2, len(DECAYS), sharex=True, sharey="row")
        for column, a in enumerate(DECAYS):
            for index, name in enumerate(GATES):
                gate = found[name, a]
                label = name if column == 0 else None
                panels[0, column].plot(RATES, gate.keeps, color=COLOURS[index], lw=1.6, label=label)
                panels[1, column].plot(RATES, gate.enters, color=COLOURS[index], lw=1.6)
            printed = (1 - found["Mamba", a].keeps) / a
            label = "Mamba's β by (1 − α) / a" if column == 0 else None
            panels[1, column].plot(RATES, printed, color=COLOURS[len(GATES) - 1], lw=1.2, ls="--", label=label)
            panels[0, column].set_title(f"a = {a}", fontsize=8.5)
            panels[1, column].set(xlabel="r", ylim=(-0.03, 2.05))
            for panel in panels[:, column]:
                panel.grid(color=GRID, linewidth=0.6)
        panels[0, 0].set_ylabel("α: kept of the state")
        panels[1, 0].set_ylabel("β: let in of the input")
        figure.legend(loc="outside upper center", ncols=3, borderaxespad=1)
        return figure


def _logit(p: float | np.ndarray) -> jax.Array:
    return jnp.asarray(np.log(p) - np.log1p(-np.asarray(p)), jnp.float32)


def _shift(layer: Linear | CausalConv1D, bias: jax.Array) -> None:
    assert layer.bias is not None
    layer.bias[...] = bias


def _of_unit(unit: RGLRU | LRU) -> Gate:
    """What a unit makes of a state of one without input, and of an input of one without state."""
    one, zero = jnp.ones((1, 1, RATES.size)), jnp.zeros((1, 1, RATES.size))
    kept, _ = unit(zero, None, one[0])
    entered, _ = unit(one, None, zero[0])
    return Gate(np.asarray(kept[0, 0]), np.asarray(entered[0, 0]))


def _of_decays(found: Sequence[jax.Array]) -> Gate:
    """The same of a block that says its decays −log α, and the states after one step from nothing."""
    delta, states = found
    return Gate(np.exp(-np.asarray(delta[0, 0])), np.asarray(states[0, 0]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Any model of `conf/model/` at width 16 and window 8, so that what holds for the big one is tested in seconds."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import jax
import pytest
from omegaconf import OmegaConf

from evalkit.configuration import catalogue, composition
from evalkit.configuration import experiment as config
from evalkit.configuration.spec import Spec
from evalkit.core.contracts import LanguageModel, Params

TEXTS = ("arxiv", "books")
DRAWN = [name for name in catalogue.options("task") if name not in TEXTS]
"""The tasks that are sampled, not read."""
OFTEN = ("griffin", "mqa", "hawk_complex", "mamba", "mamba2", "mingru", "deltaproduct", "kda")
"""Models of most mixers and kinds of cache; others have tests of their own, and `-m exhaustive` looks at all."""
WINDOW = 8
SIZES = {"width": 16, "width_rnn": 16, "gate_blocks": 4, "head_dim": 4, "window": WINDOW}


def every_model(often: Sequence[str] = OFTEN) -> list[Any]:
    """The names of all models as parameters of a test; those that are not in `often` are exhaustive."""
    return [
        pytest.param(name, marks=() if name in often else pytest.mark.exhaustive) for name in catalogue.options("model")
    ]


def sampled(names: Sequence[str], every: int) -> list[Any]:
    """Every so many of the names as parameters of a test; the others are exhaustive."""
    return [
        pytest.param(name, marks=() if number % every == 0 else pytest.mark.exhaustive)
        for number, name in enumerate(names)
    ]


@lru_cache
def experiment(model: str, *overrides: str) -> config.Experiment:
    """Induction heads with that model, shrunk, and `overrides` on top: built, and its programs compiled, once."""
    return Spec.of(["task=induction_heads", f"model={model}", *overrides_of(model), *overrides]).experiment


@lru_cache
def shrunk(model: str, *overrides: str) -> LanguageModel:
    """The model of `experiment`."""
    built = experiment(model, *overrides).model
    assert built is not None
    return built


@lru_cache
def params_of(model: LanguageModel, seed: int = 0) -> Params:
    """Fresh parameters of a seed."""
    return jax.jit(model.init)(jax.random.key(seed))


@lru_cache
def applied(model: LanguageModel) -> Callable[..., Any]:
    """`model.apply`, compiled once for each shape."""
    return jax.jit(model.apply)


@lru_cache
def overrides_of(name: str) -> tuple[str, ...]:
    """The overrides that shrink the model `name`: each setting with a name in `SIZES` gets the value there."""
    plain = OmegaConf.to_container(composition.compose(["task=induction_heads", f"model={name}"]).config.model)
    return tuple(_differences(plain, _shrink(plain), "model"))


def _shrink(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    shrunk = {key: _shrink(value) for key, value in node.items()}
    shrunk |= {key: size for key, size in SIZES.items() if node.get(key) is not None}
    if "pattern" in node:  # one block a mixer: half the compile time, the same contract
        shrunk["pattern"] = list(dict.fromkeys(node["pattern"]))
        shrunk["mlp_expansion"] = round(node["mlp_expansion"] * SIZES["width"]) / SIZES["width"]
    if node.get("depth") is not None:
        shrunk["depth"] = len(shrunk["pattern"])
    return shrunk


def _differences(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict):
        for key in before:
            yield from _differences(before[key], after[key], f"{path}.{key}")
    elif before != after:
        yield f"{path}={after}".replace("'", "").replace(" ", "")

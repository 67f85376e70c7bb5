"""Any model of `conf/model/` at width 16 and window 8, so that what holds for the big one is tested in seconds."""

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from evalkit.configuration import catalogue, composition
from evalkit.configuration import experiment as config
from evalkit.tasks.text import Text

DRAWN = [name for name in catalogue.options("task") if not isinstance(config.build_task(name), Text)]
"""The tasks that are sampled, not read."""
WINDOW = 8
SIZES = {"width": 16, "width_rnn": 16, "gate_blocks": 4, "head_dim": 4, "window": WINDOW}


def overrides_of(name: str) -> list[str]:
    """The overrides that shrink the model `name`: whatever a mixer calls a size is what `SIZES` calls it."""
    plain = OmegaConf.to_container(composition.compose(["task=induction_heads", f"model={name}"]).config.model)
    return list(_differences(plain, _shrink(plain), "model"))


def _shrink(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    shrunk = {key: _shrink(value) for key, value in node.items()}
    shrunk |= {key: size for key, size in SIZES.items() if node.get(key) is not None}
    if "pattern" in node:  # one block a mixer: half the compile time, the same contract
        shrunk["pattern"] = list(dict.fromkeys(node["pattern"]))
    return shrunk


def _differences(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict):
        for key in before:
            yield from _differences(before[key], after[key], f"{path}.{key}")
    elif before != after:
        yield f"{path}={after}".replace("'", "").replace(" ", "")

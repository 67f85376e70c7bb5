"""How each parameter is divided over the model axis of a mesh: one table, by the parameter's path.

Megatron's rules (Shoeybi et al. 2019; De et al. 2024, sec. 4.1): maps into a mixer or an MLP are divided by outputs,
maps out of it by inputs. What lies between is divided by heads, channels or blocks, and needs no other device.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax

from evalkit.core.contracts import Params
from evalkit.core.errors import UserError


class Rule(NamedTuple):
    """What a device of the model axis has of a parameter.

    `axis` is that of the parameter which is divided; None: every device has all of it. With `partial`, the gradient on
    a device is one term of a sum. With `once`, every device adds the parameter to its term of a sum, so it adds a part.
    """

    axis: int | None
    partial: bool = False
    once: bool = False


WHOLE, TERM, ONCE = Rule(None), Rule(None, partial=True), Rule(None, partial=True, once=True)
FIRST, SECOND = Rule(0), Rule(1)

BRANCHES: tuple[Mapping[str, Mapping[str, Rule]], ...] = (
    {  # the gated MLP, over its width
        "gate": {"kernel": SECOND, "bias": FIRST},
        "up": {"kernel": SECOND, "bias": FIRST},
        "down": {"kernel": FIRST, "bias": ONCE},
    },
    {  # multi-query attention, over query heads; all of them share the keys and values
        "query": {"kernel": SECOND},
        "key": {"kernel": TERM},
        "value": {"kernel": TERM},
        "output": {"kernel": FIRST, "bias": ONCE},
    },
    {  # the recurrent block, over channels; a gate's block mixes its own alone
        "input": {"kernel": SECOND, "bias": FIRST},
        "gate": {"kernel": SECOND, "bias": FIRST},
        "conv": {"kernel": SECOND, "bias": FIRST},
        "rglru": {
            "recurrence_gate.kernel": FIRST,
            "recurrence_gate.bias": FIRST,
            "input_gate.kernel": FIRST,
            "input_gate.bias": FIRST,
            "decay": FIRST,
        },
        "output": {"kernel": FIRST, "bias": ONCE},
    },
)
"""The parts of each residual branch that can be divided, and the rules of their parameters."""


def rules_of(params: Params, model: int) -> Params:
    """Returns the rule of every parameter on a mesh whose model axis has `model` devices.

    Raises UserError for a branch without rules, and for one whose heads, channels or blocks do not divide.
    """
    rules = jax.tree.map(lambda _: WHOLE, params)
    if model == 1:
        return rules
    for number, block in params["blocks"].items():
        for name, branch in block.items():
            if name in ("mixer", "mlp"):
                place = f"blocks.{number}.{name}"
                rules["blocks"][number][name] = _of_branch(branch, place)
                _refuse_undivided(branch, place, model)
    return rules


def _of_branch(branch: Params, place: str) -> Params:
    table = next((table for table in BRANCHES if set(table) == set(branch)), {})

    def rule(path: tuple[Any, ...], _: Any) -> Rule:
        part, *rest = (str(key.key) for key in path)
        found = table.get(part, {}).get(".".join(rest))
        if found is None:
            raise UserError(
                f"no rule divides {place}.{'.'.join([part, *rest])} over the model axis; give a mesh with model: 1"
            )
        return found

    return jax.tree_util.tree_map_with_path(rule, branch)


def _refuse_undivided(branch: Params, place: str, model: int) -> None:
    for name, count in _units(branch):
        if count % model:
            raise UserError(f"mesh: model: {model} does not divide the {count} {name} of {place}; give a divisor of it")


def _units(branch: Params) -> Iterator[tuple[str, int]]:
    """What of a branch must stay together, by its name in words, and how many there are."""
    if "up" in branch:
        yield "channels", branch["up"]["kernel"].shape[1]
    elif "query" in branch:
        yield "heads", branch["query"]["kernel"].shape[1] // branch["key"]["kernel"].shape[1]
    else:
        yield "channels", branch["input"]["kernel"].shape[1]
        for name, gate in branch["rglru"].items():
            if name.endswith("_gate"):
                yield "blocks of the gates", gate["kernel"].shape[0]

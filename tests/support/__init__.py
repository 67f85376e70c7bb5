"""Helpers of the tests, and the type checker that `pyproject.toml` names: beartype, behind jaxtyping's import hook."""

from typing import Any, Self


def __getattr__(name: str) -> Any:
    """Makes `check` when pytest asks for it: `benchmarks/gpu.py` runs where beartype is not installed."""
    if name != "check":
        raise AttributeError(name)
    from beartype import BeartypeConf, FrozenDict, beartype

    # An int is a float, as PEP 484 says. The hook checks functions one by one, where beartype knows no `Self`.
    configuration = BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({Self: Any}))
    globals()[name] = check = beartype(conf=configuration)
    return check

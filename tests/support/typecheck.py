"""The run-time type checker of the tests, named in `pyproject.toml`: beartype, behind jaxtyping's import hook."""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

# An int is a float, as PEP 484 says. The hook checks functions one by one, where beartype knows no `Self`.
check = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({Self: Any})))

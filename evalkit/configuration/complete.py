"""A configuration with every key that there is: what YAML leaves out stands with its constructor's default."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from evalkit.configuration.schema import INSTRUCTIONS, constructor, parameters_of, settings_of


def completed(node: Any, path: str = "") -> Any:
    """`node`, plain data, with the defaults of each constructor that it names, but for those that no YAML can say.

    >>> sorted(completed({"_target_": "evalkit.training.settings.Training", "steps": 5}))[:4]
    ['_target_', 'b1', 'b2', 'batch_size']
    """
    if not isinstance(node, Mapping):
        return node
    known = {name: completed(value, f"{path}.{name}" if path else name) for name, value in node.items()}
    if "_target_" not in node:
        return known
    taken, defaults = settings_of(node, path), _defaults(constructor(node, path))
    return known | {name: defaults[name] for name in taken if name in defaults and name not in known}


def _defaults(built: Any) -> dict[str, Any]:
    defaults = {
        name: parameter.default
        for name, parameter in parameters_of(built).items()
        if parameter.default is not parameter.empty and name not in INSTRUCTIONS
    }
    if dataclasses.is_dataclass(built):  # whose signature hides what a factory makes
        factories = [field for field in dataclasses.fields(built) if callable(field.default_factory)]
        defaults |= {field.name: field.default_factory() for field in factories}  # type: ignore[misc]
    plain = {name: _plain(default) for name, default in defaults.items()}
    return {name: value for name, value in plain.items() if value is not NotImplemented}


def _plain(default: Any) -> Any:
    """A default as YAML writes it; NotImplemented where it cannot."""
    if default is None or isinstance(default, str | int | float):
        return default
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        kind = type(default)
        settings = {field.name: _plain(getattr(default, field.name)) for field in dataclasses.fields(default)}
        return {"_target_": f"{kind.__module__}.{kind.__qualname__}"} | {
            name: value for name, value in settings.items() if value is not NotImplemented
        }
    values = default.values() if isinstance(default, Mapping) else default if isinstance(default, Sequence) else None
    if values is None:
        return NotImplemented
    plain = [_plain(value) for value in values]
    if NotImplemented in plain:
        return NotImplemented
    return dict(zip(default, plain, strict=True)) if isinstance(default, Mapping) else plain

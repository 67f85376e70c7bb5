"""Models alone, without a task to train them on: what `evalkit bench` prices and times."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evalkit.configuration import catalogue, composition, grammar, nodes
from evalkit.configuration.experiment import model_of
from evalkit.configuration.schema import verify
from evalkit.core.contracts import LanguageModel
from evalkit.core.errors import UserError

FAMILIES = "model=mqa,hawk,griffin"
SCALES = "scale=100m,200m,400m,1b,3b,7b,14b"
"""The three families of the paper, and the rows of its table 2."""
ALLOWED = ("model", "scale", "+mixer", "hydra.searchpath")


class Sized(NamedTuple):
    """A model by its name, the other words that chose it (scale and settings), and its resolved configuration."""

    name: str
    words: str
    node: Mapping[str, Any]

    def built(self, vocab_size: int) -> LanguageModel:
        """The model; raises UserError with its constructor's own message."""
        return model_of(self.node, vocab_size)


def chosen(settings: Sequence[str]) -> list[Sized]:
    """Every combination of the models, scales and values that commas separate in `settings`, as a sweep has them.

    Raises UserError, before anything is built, for a setting that is not a model's.

    >>> [(model.name, model.words, model.node["width"]) for model in chosen(["model=hawk", "scale=100m,14b"])]
    [('hawk', 'scale=100m', 768), ('hawk', 'scale=14b', 5120)]
    """
    for override in grammar.parse(settings):
        key = f"{'+' * override.is_add()}{override.key_or_group}"
        if key.lstrip("+").partition(".")[0] not in ALLOWED and key not in ALLOWED:
            raise UserError(f"{override.input_line} is of a run; allowed here: model=…, scale=… and settings of these")
    return [_sized(words) for words in grammar.combinations(settings)]


def _sized(words: Sequence[str]) -> Sized:
    composed = composition.compose(words)
    name = composed.config.model_name
    if name is None:
        raise UserError(f"model is missing; give model={' or model='.join(catalogue.options('model'))}")
    plain = {part: nodes.plain(composed.config)[part] for part in ("model", "scale")}
    verify(plain, composed.base, {"model": LanguageModel, "scale": dict[str, Any]})
    rest = [word for word in words if word.partition("=")[0] not in ("model", "+mixer", "hydra.searchpath")]
    return Sized(name, " ".join(rest), plain["model"])

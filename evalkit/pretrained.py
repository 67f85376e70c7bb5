"""A model with its parameters and tokenizer, wherever they come from: what text tasks and lm-eval are run on."""

from dataclasses import dataclass

from evalkit.protocols import LanguageModel, Params
from evalkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class Pretrained:
    """`source` is the folder or hub name; `digest` names the parameters; `train_length` is None where unknown."""

    model: LanguageModel
    params: Params
    tokenizer: Tokenizer
    source: str
    digest: str
    train_length: int | None

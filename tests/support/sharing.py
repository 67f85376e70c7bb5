"""Models and trainers that all runs of one process share, so that each is made once.

Programs belong to the model and the trainer that they were traced for, so they are shared too. Tests that start
processes check what a fresh run does.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from evalkit.checkpoints import loading
from evalkit.configuration import experiment as config
from evalkit.configuration.experiment import Experiment
from evalkit.core.contracts import LanguageModel
from evalkit.reports import curves
from evalkit.tasks.text import Text
from evalkit.training.trainer import Trainer

MOST_TRAINERS = 12
NOT_OURS = re.compile(r'"_target_": "(?!evalkit\.)')
BUILD, TRAIN = config.model_of, loading.trainer_of
# One white pixel, which W&B takes for a picture.
PIXEL = (
    "0000000d49484452000000010000000108000000003a7e9b550000000a49"
    "444154789c63f80f0001010100b138f6140000000049454e44ae426082"
)
BLANK = {"svg": b"<svg></svg>", "png": b"\x89PNG\r\n\x1a\n" + bytes.fromhex(PIXEL)}


class Shared:
    """The models and trainers made so far; within `here`, runs use them again."""

    def __init__(self) -> None:
        self._models: dict[str, LanguageModel] = {}
        self._trainers: dict[str, Trainer] = {}

    @contextmanager
    def here(self) -> Iterator[None]:
        """Within, every run of this process uses the shared models and trainers."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(config, "model_of", self.model_of)
            for user in ("evalkit.checkpoints.loading", "evalkit.session.gates"):
                patch.setattr(f"{user}.trainer_of", self.trainer_of)
            yield

    def model_of(self, node: Mapping[str, Any], vocab_size: int) -> LanguageModel:
        """A shared model, if all its parts are ours; a user's own code may change, so its model is built anew."""
        key = json.dumps([node, vocab_size], sort_keys=True, default=str)
        if NOT_OURS.search(key):
            return BUILD(node, vocab_size)
        return _kept(self._models, key, lambda: BUILD(node, vocab_size))

    def trainer_of(self, experiment: Experiment) -> Trainer:
        """A shared trainer, if its model is shared and its task is drawn; otherwise a new one."""
        if isinstance(experiment.task, Text) or experiment.model not in self._models.values():
            return TRAIN(experiment)
        parts = [experiment.config[name] for name in ("task", "model", "train", "matmul_precision")]
        key = json.dumps([*parts, experiment.all_seeds], sort_keys=True)
        if key not in self._trainers and len(self._trainers) == MOST_TRAINERS:  # each holds its programs
            del self._trainers[next(iter(self._trainers))]
        return _kept(self._trainers, key, lambda: TRAIN(experiment))


def _kept(kept: dict[str, Any], key: str, make: Callable[[], Any]) -> Any:
    """What is kept under `key`, which now comes last: what was not asked for longest goes first."""
    kept[key] = kept.pop(key) if key in kept else make()
    return kept[key]


@contextmanager
def blank_figures() -> Iterator[None]:
    """Within, figures are made and written as blank files: drawing them is most of a report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "_rendered", lambda figure, kind, metadata: BLANK[kind])
        yield

"""How to train: the settings of `train`, and the stages that they make of a run."""

from dataclasses import dataclass, field
from typing import NamedTuple

from evalkit.core.checks import above, at_least, at_least_or_null, one_of
from evalkit.training.optimizer import SCHEDULES


class Stage(NamedTuple):
    """Steps `start` to `stop` at one length and batch size."""

    start: int
    stop: int
    length: int
    batch_size: int


@dataclass(frozen=True)
class Training:
    """How to train. The paper gives AdamW and nothing else for its synthetic tasks; the rest is measured here.

    `curriculum`: stages `{length, steps, batch_size}` of lengths below the task's, which come first and count within
    `steps`. A dispatch is `log_every` steps; validation and checkpoints fall on its multiples; checkpoints at
    multiples of `keep_every` are kept for good. `stop_when_solved`: end after so many validations in a row with
    accuracy 1 (off by default: extrapolation goes on growing after the task is solved).
    `microbatch`: sequences whose gradient is taken at a time on one device, the gradients then added up; None is as
    many as have 512 tokens on a CPU, so that activations stay in its cache, and all of them elsewhere.
    Raises ValueError for a value that cannot be.
    """

    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int = 100
    schedule: str = "cosine"
    final_fraction: float = 0.05
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.98
    clip: float = 1.0
    log_every: int = 25
    eval_every: int = 100
    checkpoint_every: int = 100
    keep_every: int | None = None
    validation_sequences: int = 256
    curriculum: list[dict[str, int]] = field(default_factory=list)
    stop_when_solved: int | None = None
    microbatch: int | None = None

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "batch_size", "log_every", "eval_every", "checkpoint_every", "validation_sequences")
        above(self, 0, "learning_rate", "clip")
        for name in ("eval_every", "checkpoint_every"):
            if getattr(self, name) % self.log_every:
                raise ValueError(
                    f"{name}={getattr(self, name)} is no multiple of log_every={self.log_every}; make it one"
                )
        if self.keep_every is not None and (self.keep_every < 1 or self.keep_every % self.checkpoint_every):
            raise ValueError(
                f"keep_every={self.keep_every}; allowed: multiples of checkpoint_every={self.checkpoint_every}, or null"
            )
        one_of(self, "schedule", SCHEDULES)
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: from 0, below 1")
        if self.warmup_steps < 0 or self.weight_decay < 0:
            raise ValueError(f"warmup_steps={self.warmup_steps}, weight_decay={self.weight_decay}; allowed: 0 or more")
        at_least_or_null(self, 1, "stop_when_solved", "microbatch")
        for stage in self.curriculum:
            if set(stage) != {"length", "steps", "batch_size"} or min(stage.values()) < 1:
                raise ValueError(f"curriculum stage {stage}; give length, steps and batch_size, each 1 or more")

    def stages(self, length: int) -> list[Stage]:
        """The stages in order, the last one at the task's own `length`; they cover steps 0 to `steps`.

        Those of the curriculum that are not shorter are left out: a recipe's curriculum serves shorter tasks too.
        """
        stages, start = [], 0
        for stage in (stage for stage in self.curriculum if stage["length"] < length):
            stop = min(start + stage["steps"], self.steps)
            stages.append(Stage(start, stop, stage["length"], stage["batch_size"]))
            start = stop
        stages.append(Stage(start, self.steps, length, self.batch_size))
        return [stage for stage in stages if stage.stop > stage.start]

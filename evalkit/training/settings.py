"""How to train: the settings of `train`, and the stages that they make of a run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd
from typing import Any, NamedTuple

import optax

from evalkit.checks import above, at_least, at_least_or_null, between_or_null, one_of
from evalkit.parallel.layouts.vectors import Layout, VectorLayout
from evalkit.training import optimizer
from evalkit.training.optimizer import OPTIMIZERS, SCHEDULES, Factory

DTYPES = ("float32", "bfloat16")
GATHERS = ("step", "layer")
FIRST_STATES = (PASSED := "passed", FITTED_NOISE := "fitted_noise", "noise")


class Stage(NamedTuple):
    """Steps `start` to `stop` at one length and batch size; with `shortest`, lengths are drawn from it to `length`."""

    start: int
    stop: int
    length: int
    batch_size: int
    shortest: int | None = None


@dataclass(frozen=True)
class Training:
    """How to train. The paper gives AdamW and nothing else for its synthetic tasks; the rest is measured here.

    A dispatch is `log_every` steps, and validation and checkpoints fall on its multiples. `stop_when_solved` is off by
    default, since extrapolation goes on growing after the task is solved. The default `microbatch` keeps activations
    in a CPU's cache. Raises ValueError for an invalid value.

    Options:
      steps (steps): updates of the parameters, those of the curriculum included.
      batch_size (sequences): sequences of a step.
      learning_rate: the highest learning rate, reached after the warm-up; a list has one for each of `seeds`, all of
        which one program trains.
      warmup_steps (steps): steps over which the learning rate rises from 0.
      schedule: the learning rate after the warm-up: `cosine` falls, `constant` stays, `wsd` stays and falls to 0 over
        the last fifth of the steps.
      final_fraction (× learning_rate): where the cosine ends.
      optimizer: `adamw`, `amsgrad` or `clipped_adamw`; or one of Optax, such as
        `{_target_: optax.lion, _partial_: true}` (`docs/training.md`).
      weight_decay: decay of the parameters; norms, biases, token vectors and what sets decays of states have none.
      b1: AdamW's β₁, the decay of the mean of gradients.
      b2: AdamW's β₂, the decay of the mean of their squares.
      clip (norm): gradients of all parameters together are scaled down to at most this.
      label_smoothing: the share of a target that is spread evenly over all tokens; rows have the loss without it.
      average: decay of a moving average of parameters, such as 0.999, which is evaluated; or a function for an
        optimiser's own; null: none.
      state_passing: sequences begin from states of streams of ordinary tokens, each begun anew at a step with this
        probability; null: from nothing.
      first_states: what `state_passing` begins from: states of streams (`passed`), noise with their mean and spread
        (`fitted_noise`), or noise around 0 (`noise`).
      stream_facts: the probability that the tokens of a stream at a step hold a fact.
      skip_nonfinite: whether a step with a non-finite loss or gradient is skipped and counted (`skipped`), instead of
        ending training, unless all steps between two rows are.
      log_every (steps): steps between two rows of loss and accuracy.
      eval_every (steps): steps between two validations; a multiple of `log_every`.
      checkpoint_every (steps): steps between two checkpoints, of which the last two stay; a multiple of `log_every`.
      keep_every (steps): checkpoints at multiples of this stay too, for `evaluate RUN step=…`; null: none.
      validation_sequences (sequences): sequences of a validation.
      curriculum: stages `{length: …, steps: …, batch_size: …}` of shorter lengths, which come first.
      lengths (tokens): the shortest random length, and the longest, which is `task.length`; null: no random lengths.
        Most tasks draw from 8 lengths.
      stop_when_solved (validations): training ends after so many in a row with accuracy 1; null: never.
      microbatch (sequences): sequences whose gradient is taken at once; null: 512 tokens of them on a CPU, elsewhere
        all.
      parameter_dtype: the dtype of matrices while a step computes the gradient, `float32` or `bfloat16`;
        vectors, such as norms, and the optimiser's stay float32.
      gather: when devices of a `mesh` gather parameters: `step`, all of them once a step, or `layer`, those of each
        layer forward and backward, which needs the least memory.
    """

    steps: int
    batch_size: int
    learning_rate: float | list[float]
    warmup_steps: int = 100
    schedule: str = "cosine"
    final_fraction: float = 0.05
    optimizer: str | Factory = "adamw"
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.98
    clip: float = 1.0
    label_smoothing: float = 0.0
    average: float | Callable[..., Any] | None = None
    state_passing: float | None = None
    first_states: str = PASSED
    stream_facts: float = 0.0
    skip_nonfinite: bool = False
    log_every: int = 25
    eval_every: int = 100
    checkpoint_every: int = 100
    keep_every: int | None = None
    validation_sequences: int = 256
    curriculum: list[dict[str, int]] = field(default_factory=list)
    lengths: list[int] | None = None
    stop_when_solved: int | None = None
    microbatch: int | None = None
    parameter_dtype: str = "float32"
    gather: str = "step"

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "batch_size", "log_every", "eval_every", "checkpoint_every", "validation_sequences")
        above(self, 0, "clip")
        self._check_rates()
        self._check_intervals()
        self._check_optimization()
        self._check_streams()
        for stage in self.curriculum:
            if set(stage) != {"length", "steps", "batch_size"} or min(stage.values()) < 1:
                raise ValueError(f"curriculum stage {stage}; give length, steps and batch_size, each 1 or more")
        if self.lengths is not None and (len(self.lengths) != 2 or not 1 <= self.lengths[0] <= self.lengths[1]):
            raise ValueError(f"lengths={self.lengths}; allowed: [shortest, longest] from 1, such as [1, 40], or null")

    def _check_intervals(self) -> None:
        for name in ("eval_every", "checkpoint_every"):
            if getattr(self, name) % self.log_every:
                raise ValueError(
                    f"{name}={getattr(self, name)} is no multiple of log_every={self.log_every}; make it one"
                )
        if self.skip_nonfinite and self.log_every == 1:
            raise ValueError("skip_nonfinite=True skips no step with log_every=1; give log_every=2 or more")
        if self.keep_every is not None and (self.keep_every < 1 or self.keep_every % self.checkpoint_every):
            raise ValueError(
                f"keep_every={self.keep_every}; allowed: multiples of checkpoint_every={self.checkpoint_every}, or null"
            )

    def _check_optimization(self) -> None:
        one_of(self, "schedule", SCHEDULES)
        if not callable(self.optimizer):
            one_of(self, "optimizer", OPTIMIZERS)
        one_of(self, "parameter_dtype", DTYPES)
        one_of(self, "gather", GATHERS)
        if not callable(self.average):
            between_or_null(self, 0, 1, "average")
        elif not callable(self.optimizer):
            raise ValueError(
                f"average is that of an optimiser of its own, and optimizer={self.optimizer}; give a decay"
            )
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction={self.final_fraction}; allowed: from 0 to 1")
        for name in ("b1", "b2", "label_smoothing", "stream_facts"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: from 0, below 1")
        if self.warmup_steps < 0 or not 0 <= self.weight_decay < float("inf"):
            raise ValueError(f"warmup_steps={self.warmup_steps}, weight_decay={self.weight_decay}; allowed: 0 or more")
        at_least_or_null(self, 1, "stop_when_solved", "microbatch")

    def _check_streams(self) -> None:
        between_or_null(self, 0, 1, "state_passing")
        one_of(self, "first_states", FIRST_STATES)
        if self.first_states != PASSED and self.state_passing is None:
            raise ValueError(f"first_states={self.first_states} without streams; give state_passing too, such as 0.1")
        if self.stream_facts and self.state_passing is None:
            raise ValueError(f"stream_facts={self.stream_facts} without streams; give state_passing too, such as 0.1")

    def _check_rates(self) -> None:
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise ValueError(f"learning_rate={self.learning_rate}; allowed: above 0, or a list of such, one a seed")
        if len(self.rates) > 1 and callable(self.optimizer):
            raise ValueError("learning_rate has several rates, and an optimiser of Optax takes one; give one")

    def check_seeds(self, seeds: int) -> None:
        """Raises ValueError for a list of learning rates that has not one for each seed."""
        if isinstance(self.learning_rate, list) and len(self.learning_rate) != seeds:
            raise ValueError(
                f"train.learning_rate has {len(self.learning_rate)} rates for seeds={seeds}; give one, or one a seed"
            )

    @property
    def rates(self) -> list[float]:
        """The learning rates: one of all seeds, or one for each."""
        return self.learning_rate if isinstance(self.learning_rate, list) else [self.learning_rate]

    def check_divided(self) -> None:
        """Raises ValueError for settings that need whole arrays, of which a device of a mesh has only parts."""
        if self.optimizer == "clipped_adamw" or callable(self.optimizer):
            name = self.optimizer if isinstance(self.optimizer, str) else "{_target_: …}"
            raise ValueError(
                f"train.optimizer={name} takes whole arrays, which a mesh divides; give adamw, or mesh=auto, by which "
                "all devices share the batch"
            )
        if self.state_passing is not None:
            raise ValueError(
                "train.state_passing keeps whole states, which a mesh divides; make it null, or give mesh=auto"
            )

    def layout(self, params: Any, decays: Any) -> Layout:
        """How the optimiser takes these parameters; `decays` is True where weight decay applies."""
        return (Layout if callable(self.optimizer) else VectorLayout)(params, decays, self.parameter_dtype)

    def transformation(self, layout: Layout) -> optax.GradientTransformation:
        """The optimiser for parameters in this `layout`, at the first of the learning rates."""
        rate = optimizer.schedule(self.schedule, self.rates[0], self.warmup_steps, self.steps, self.final_fraction)
        if callable(self.optimizer):
            return optimizer.from_factory(self.optimizer, rate, self.weight_decay, self.clip, layout.mask)
        return optimizer.optimizer(
            self.optimizer,
            rate,
            b1=self.b1,
            b2=self.b2,
            weight_decay=self.weight_decay,
            clip=self.clip,
            mask=layout.mask,
            by_array=layout.by_array,
        )

    def check_optimizer(self, params: Any, decays: Any) -> None:
        """Raises ValueError for an optimiser that takes no step of parameters of these shapes."""
        if callable(self.optimizer):
            layout = self.layout(params, decays)
            optimizer.refuse_unfit(lambda: self.transformation(layout), params, self.average)

    def stages(self, length: int) -> list[Stage]:
        """The stages in order, the last one at the task's own `length`; they cover steps 0 to `steps`.

        Stages of the curriculum that are not shorter are left out, so that one recipe also serves shorter tasks.
        A stage at a length below the shortest of `lengths` draws its own length alone.
        """
        stages, start = [], 0
        for stage in (stage for stage in self.curriculum if stage["length"] < length):
            stop = min(start + stage["steps"], self.steps)
            stages.append(Stage(start, stop, stage["length"], stage["batch_size"], self._shortest(stage["length"])))
            start = stop
        stages.append(Stage(start, self.steps, length, self.batch_size, self._shortest(length)))
        return [stage for stage in stages if stage.stop > stage.start]

    def streams(self, length: int) -> int:
        """How many streams `state_passing` keeps: the most that divide each stage's batch; `length` is the task's."""
        return gcd(*(stage.batch_size for stage in self.stages(length)))

    def _shortest(self, length: int) -> int | None:
        """The shortest length that a stage at `length` draws, None if it draws none but its own."""
        shortest = self.lengths[0] if self.lengths else length
        return shortest if shortest < length else None

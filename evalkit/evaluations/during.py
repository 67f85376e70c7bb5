"""Evaluations of a text model while it trains, besides its own: benchmarks of lm-eval, and lookups."""

from dataclasses import dataclass, field

from evalkit.evaluations.look import Given, Look, settings_in
from evalkit.evaluations.phonebook.measure import Lookup
from evalkit.tasks.phonebook import Phonebook


@dataclass
class Benchmarked:
    """Benchmarks of lm-eval while a model trains on text; raises ValueError for invalid settings.

    Options:
      during: `tasks`, and settings of `task=downstream`, as in `{every: 400, tasks: [piqa], limit: 200}`; `every` is a
        multiple of `train.eval_every`; `{}`: never.
    """

    during: Given = field(default_factory=dict)
    look: Look | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not self.during:
            return
        # Imported only if it is needed: importing lm-eval takes seconds.
        from evalkit.evaluations.downstream.benchmarks import Benchmarks
        from evalkit.evaluations.downstream.measure import Downstream

        setting = "downstream.during"
        # A calibration judges a whole run, not one step of it.
        if "calibrate" in self.during:
            raise ValueError(f"{setting}.calibrate is of a whole run; give task=downstream checkpoint=RUN")
        called = {"names": "tasks"}
        task, evaluation = settings_in(setting, self.during, Benchmarks, Downstream, called=called)
        if "names" not in task:
            raise ValueError(f"{setting} has no tasks; give some, such as '{setting}={{tasks: [lambada_openai], …}}'")
        self.look = Look.of(setting, self.during, Downstream(**evaluation), Benchmarks(**task))


@dataclass
class LookedUp:
    """Lookups in a phonebook in text while a model trains on text; raises ValueError for invalid settings.

    Options:
      during: settings of `task=phonebook`, as in `{every: 400, lengths: [256, 1024], prompts: 50}`; `every` is a
        multiple of `train.eval_every`; `{}`: never.
    """

    during: Given = field(default_factory=dict)
    look: Look | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not self.during:
            return
        setting = "lookup.during"
        task, evaluation = settings_in(setting, self.during, Phonebook, Lookup)
        if "lengths" not in evaluation:
            raise ValueError(f"{setting} has no lengths; give some, such as '{setting}={{lengths: [256, 1024], …}}'")
        self.look = Look.of(setting, self.during, Lookup(**evaluation), Phonebook(**task))

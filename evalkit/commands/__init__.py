"""The verbs of the command line, a file each; nothing heavy is imported to list them."""

from typing import NamedTuple


class Verb(NamedTuple):
    """A command: the module of this package whose `main(arguments)` runs it, and its purpose.

    A command that `composes` takes settings, among them the folder of the user's own YAML.
    """

    module: str
    purpose: str
    composes: bool = False


VERBS = {
    "run": Verb("run", "train and evaluate; the word run may be left out", composes=True),
    "resume": Verb("resume", "go on with a run that was stopped, exactly where it stopped", composes=True),
    "evaluate": Verb("evaluate", "evaluate a run again, at other lengths or on another task", composes=True),
    "search": Verb(
        "search", "settings that Optuna chooses, trial by trial, and fresh seeds of the best", composes=True
    ),
    "compare": Verb("compare", "the curves of several runs in one figure"),
    "rows": Verb("rows", "every measurement of runs as a CSV table"),
    "generate": Verb("generate", "what a run or a released model says after a prompt, or after each of a file"),
    "check": Verb("check", "whether a mixer, a task or an evaluation of your own keeps its promises", composes=True),
    "example": Verb("example", "list the tasks, or show an example of one, decoded", composes=True),
    "bench": Verb("bench", "how fast: a training step, the evaluation, the start, the recurrence alone", composes=True),
    "export": Verb("export", "a run of model=griffin_released as a folder for transformers"),
    "archive": Verb("archive", "the record and last parameters of a run, to be kept beside its results"),
    "select": Verb("select", "which trial of a search its protocol chooses"),
    "reproduce": Verb(
        "reproduce", "every claim of the paper: what was measured, does it hold, what does it cost", composes=True
    ),
    "calibrate": Verb("calibrate", "lm-eval's results of a released model against the published ones"),
    "lm-eval": Verb("lm_eval", "lm-eval's own command with our models and tasks in it"),
}

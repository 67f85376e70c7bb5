"""What every output must say about a run: where it differs from the paper's setting, and any curriculum."""

from evalkit.configuration.experiment import Experiment
from evalkit.core.contracts import LanguageModel


def notes_of(experiment: Experiment, model: LanguageModel) -> list[str]:
    """One line each, derived from the configuration that ran, so that an override cannot make it untrue.

    `model` is the one that is evaluated: the experiment's own, or that of its checkpoint.
    """
    limits = list(experiment.eval.limits(model))
    if experiment.train is None:
        return limits
    notes = [
        f"{name} {actual} instead of the paper's {expected}"
        for name, expected in experiment.paper.items()
        if (actual := experiment.config["task"].get(name, expected)) != expected
    ]
    lengths = [stage.length for stage in experiment.train.stages(experiment.task.length)]
    if len(lengths) > 1:
        notes.append("trained with a length curriculum: " + " → ".join(map(str, lengths)))
    notes += limits
    if experiment.preset != "paper":
        notes.append(f"preset={experiment.preset}")
    return notes

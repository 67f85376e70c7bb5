"""What every output must say about a run: where it differs from the paper's setting, and lengths of training."""

from evalkit.configuration.experiment import Experiment
from evalkit.core.contracts import LanguageModel

_EVALUATED = {
    "average": "the average of the parameters ({}) is evaluated",
    "last": "the last parameters are evaluated, not their average ({})",
}


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
    stages = experiment.train.stages(experiment.task.length)
    lengths = [stage.length for stage in stages]
    if len(lengths) > 1:
        notes.append("trained with a length curriculum: " + " → ".join(map(str, lengths)))
    if stages[-1].shortest is not None:
        notes.append(f"trained on lengths {stages[-1].shortest} to {stages[-1].length}")
    if experiment.train.state_passing is not None:
        probability, facts = experiment.train.state_passing, experiment.train.stream_facts
        held = f", which holds a fact at a step with probability {facts:g}" if facts else ""
        notes.append(
            "trained with state passing: a sequence begins from the state of one of "
            f"{experiment.train.streams(experiment.task.length)} streams of ordinary tokens, begun anew with "
            f"probability {probability:g}{held}"
        )
    if experiment.train.average is not None:
        decay = experiment.train.average
        kept = "the optimiser's own" if callable(decay) else f"decay {decay:g}"
        notes.append(_EVALUATED[experiment.parameters].format(kept))
    notes += limits
    if experiment.preset != "paper":
        notes.append(f"preset={experiment.preset}")
    return notes

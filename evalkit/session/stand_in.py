"""A model of the reader's own in the place of a family of an experiment, trained as that family is."""

from collections.abc import Sequence

from evalkit.configuration import catalogue, composition
from evalkit.configuration.overrides import overrides_of
from evalkit.configuration.recipes import GROUPS
from evalkit.core.errors import UserError

PARTS = ("train", "eval")


def word_of(run: str, model: str, words: Sequence[str]) -> str:
    """The setting that gives the run's place to `model`, an option of `model/` or of the user's `mixer/`.

    `words` choose the experiment and its preset. Steps, rates and lengths are those of the family whose place it is;
    what is the architecture's own stays the model's. Raises UserError for a run that trains nothing, and for a name
    that is no model.
    """
    base = composition.compose(words).base
    group = next(group for group in GROUPS if run in base.get(group, ()))
    planned = [str(word) for word in base[group][run]]
    families = [word for word in planned if word.startswith("model=")]
    if not families:
        raise UserError(f"{run}={model}: {run} trains no model, and measures another run; name one that is trained")
    family, choice = families[-1], _choice(run, model, words)
    theirs = composition.compose([*words, family]).base
    named = [f"selected_by={theirs['selected_by']}"] if theirs["selected_by"] else []
    mine = composition.compose([*words, choice, *named]).base
    taken = {
        f"{part}.{name}": value
        for part in PARTS
        for name, value in theirs[part].items()
        if mine[part].get(name) != value
    }
    rest = [word for word in planned if word not in families]
    return overrides_of({f"{group}.{run}": [choice, *named, *overrides_of(taken), *rest]})[0]


def _choice(run: str, model: str, words: Sequence[str]) -> str:
    own = composition.own_folder(words)
    if model in catalogue.options("model", own):
        return f"model={model}"
    mixers = catalogue.options("mixer", own)
    if model in mixers:
        return f"+mixer={model}"
    known = ", ".join([*catalogue.options("model", own), *mixers])
    raise UserError(f"{run}={model} is no model; choose one of {known}, or add your own in --config-dir FOLDER")

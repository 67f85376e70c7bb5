"""The runs of a claim made anew: the words of their experiment, and a reader's own model in a family's place."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evalkit.claims import anew
from evalkit.claims.claims import Claim
from evalkit.configuration import catalogue, composition, grammar
from evalkit.configuration.overrides import overrides_of
from evalkit.configuration.recipes import GROUPS
from evalkit.core.errors import UserError, typed_path

SHEET = ("out", "run", "studies")
"""The words that the sheet itself reads."""
DECIDED = ("experiment", "task", "model", "scale", "mixer", "checkpoint")
"""What the claim's experiment chooses."""
CHANGED = ("task.", "model.", "train.", "eval.", "parameters=", "matmul_precision=", "seed=", "seeds=")
"""The prefixes of keys whose settings make a run differ from the claim's."""
# What depends on the architecture: how far its cache reaches, and how many sequences fit into memory.
OF_MODEL = (("eval", "max_length"), ("eval", "batch_size"))


class Reproduction(NamedTuple):
    """The command that makes a claim's runs anew: its words, its folder, and how the runs differ from the kept ones."""

    words: list[str]
    folder: Path
    differs: str


def reproduction(claim: Claim, studies: Path, words: Sequence[str]) -> Reproduction:
    """The runs that a claim's test and control read, with the user's `words`; raises UserError for a wrong word.

    The word `RUN=MODEL` puts another model in place of one of these runs.
    """
    places = [word for word in words if word.startswith(grammar.SEARCHPATH)]
    settings = dict(word.split("=", 1) for word in words if "=" in word and word not in places)
    preset = settings.get("preset", claim.runs.preset)
    experiment = overrides_of({"experiment": anew.experiment(claim, studies), "preset": preset})
    chosen = [*experiment, *places]
    names = anew.needed(claim)
    base = composition.compose(chosen).base
    planned: dict[str, Sequence[Any]] = {name: run for group in GROUPS for name, run in base.get(group, {}).items()}
    groups = {name: group for group in GROUPS for name in base.get(group, {})}
    mine = {name: model for name, model in settings.items() if name in planned or name in catalogue.options("model")}
    for name in mine:
        _refuse_place(name, mine[name], claim, names)
    rest = [
        word for word in words if "=" in word and word not in places and _key(word) not in (*SHEET, "preset", *mine)
    ]
    for word in [word for word in words if word.startswith("~")] + rest:
        _refuse_decided(word, claim, names)
    if preset != claim.runs.preset:
        _refuse_other_lengths(claim, preset, [*chosen, *(word for word in planned[names[0]] if "model=" in str(word))])
    stand_ins = [_stand_in(f"{groups[name]}.{name}", planned[name], model, chosen) for name, model in mine.items()]
    left_out = [f"~{group}.{name}" for name, group in groups.items() if name not in names]
    other = ([preset] if preset != claim.runs.preset else []) + [f"{name}-{model}" for name, model in mine.items()]
    folder = typed_path(settings.get("out") or "-".join(["runs/reproduce/" + claim.id, *map(str, other)]))
    in_folder = overrides_of({grammar.RUN_FOLDER: folder})
    return Reproduction(
        [*chosen, *left_out, *stand_ins, *in_folder, *rest], folder, _differs(claim, preset, mine, rest)
    )


def _refuse_place(name: str, model: str, claim: Claim, names: Sequence[str]) -> None:
    """Raises UserError for a run whose place cannot be taken."""
    judged = anew.names(claim, claim.test)
    if name not in judged:
        is_control = name in names
        why = "is its control, which shows that the test can say yes" if is_control else "is not read by its test"
        raise UserError(f"{name}={model}: {name} {why}; claim {claim.id} judges {', '.join(judged)}")


def _refuse_decided(word: str, claim: Claim, names: Sequence[str]) -> None:
    """Raises UserError for a word that would make the runs others than those of the claim."""
    key = _key(word).lstrip("+")
    if word.startswith("~") or key in DECIDED or key.partition(".")[0] in GROUPS:
        raise UserError(
            f"{word}: the runs are those of claim {claim.id}; for another model in the place of one give "
            f"{' or '.join(f'{name}=MODEL' for name in names)}, or type the experiment itself: experiment=…"
        )
    if key == grammar.RUN_FOLDER:
        raise UserError(f"{word}: give out=FOLDER, where the verdict is read from, too")
    if key == "format":
        raise UserError(f"{word} is of the sheet; leave it out with run=true")


def _refuse_other_lengths(claim: Claim, preset: str | None, words: Sequence[str]) -> None:
    """Raises UserError for a preset whose runs are not measured where the claim's test reads."""
    asked = {one["length"] for part in claim.test for one in anew.measures(part) if "length" in one}
    evaluated = composition.compose(words).base["eval"].get("lengths", asked)
    if missing := sorted(asked - set(evaluated)):
        raise UserError(
            f"claim {claim.id} is judged at length {missing[0]}, and preset={preset} evaluates "
            f"{', '.join(map(str, evaluated))}; give preset={claim.runs.preset}"
        )


def _stand_in(key: str, planned: Sequence[Any], model: str, words: Sequence[str]) -> str:
    """The setting that gives a run's place to `model`, with the steps, rates and lengths of the family's own recipe."""
    name = key.partition(".")[2]
    family = next((str(word) for word in planned if str(word).startswith("model=")), None)
    if family is None or any(str(word).startswith("model.") for word in planned):
        raise UserError(f"{name}={model}: no other model can be trained as {name}, whose own parts are set")
    choice = _choice(name, model, words)
    theirs = composition.compose([*words, family]).base
    recipe = {"selected_by": theirs["selected_by"]} if theirs["selected_by"] else {}
    mine = composition.compose([*words, choice, *overrides_of(recipe)]).base
    changed = {
        f"{part}.{setting}": value
        for part in ("train", "eval")
        for setting, value in theirs[part].items()
        if mine[part].get(setting) != value and (part, setting) not in OF_MODEL
    }
    rest = [str(word) for word in planned if str(word) != family]
    return overrides_of({key: [choice, *overrides_of({**recipe, **changed}), *rest]})[0]


def _choice(name: str, model: str, words: Sequence[str]) -> str:
    """The word that chooses `model`, an option of `model/` or of the user's `mixer/`."""
    own = grammar.own_folder(words)
    models, mixers = catalogue.options("model", own), catalogue.options("mixer", own)
    if model in models and model in mixers:
        raise UserError(
            f"{name}={model}: there are a model and a mixer of this name; give your mixer/{model}.yaml another"
        )
    if model not in (*models, *mixers):
        known = ", ".join([*models, *mixers])
        raise UserError(f"{name}={model} is no model; choose one of {known}, or add your own in --config-dir FOLDER")
    return f"model={model}" if model in models else f"+mixer={model}"


def _differs(claim: Claim, preset: str | None, mine: Mapping[str, str], settings: Sequence[str]) -> str:
    """How the new runs differ from those of the claim as it was registered; empty where they do not."""
    parts = [f"{model} in the place of {name}, by its recipe" for name, model in mine.items()]
    if preset == catalogue.TOY:
        parts.append("a toy, which says nothing of the paper")
    elif preset != claim.runs.preset:
        parts.append(f"preset={preset}")
    parts += [word for word in settings if word.lstrip("+").startswith(CHANGED)]
    return "; ".join(parts)


def _key(word: str) -> str:
    return word.partition("=")[0]

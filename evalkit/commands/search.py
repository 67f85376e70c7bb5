"""`python -m evalkit search key=value …`: settings that Optuna chooses, trial by trial; `search resume FOLDER`."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.commands.guide import HELP, Page, refuse_no_folder
from evalkit.core.errors import UserError, typed_path

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ABOUT = """\
Search settings: Optuna chooses what each trial trains with. Needs pip install 'griffin-evalkit[search]'.

What is searched are words with several values; any setting, task=, model= or +mixer= may have some:
  train.weight_decay=0,0.1                        one of these
  'train.learning_rate=interval(1e-4,1e-2)'       a number between; by its logarithm where the ends are 10 times apart
  'model.width=int(interval(32,128))'             a whole number; tag(log,…) and tag(linear,…) say how it is drawn

Words of the search:
  trials=20           how many are tried
  seeds=2             of every trial, trained together
  by=…                what is judged: validation.accuracy (default, at the training length), validation.loss,
                      extrapolation.accuracy@1024; direction=maximize or minimize
  sampler=… pruner=…  Optuna's, by _target_; the pruner sees each validation and gives up trials
  final_seeds=3       so many fresh seeds of the best at the end; 0: none
  hydra.sweep.dir=…   its folder, by default runs/search/<task>-<time>

Further processes, and what goes on after a kill: python -m evalkit search resume FOLDER [trials=N]."""
EXAMPLES = (
    "search task=mqar model=hawk 'train.learning_rate=interval(1e-4,1e-2)' train.weight_decay=0,0.1 trials=20 seeds=2",
    "search resume runs/search/mqar-TIME",
    "search task=induction_heads model=hawk,mqa 'train.learning_rate=interval(1e-4,1e-2)' by=validation.loss "
    "'pruner={_target_: optuna.pruners.MedianPruner, n_warmup_steps: 300}'",
)
RESUME, FOLDER, HYDRA = "resume", "hydra.sweep.dir", ("hydra.", "hydra/")
REFUSED = {
    "experiment": "an experiment has its own runs",
    "checkpoint": "nothing is trained on a checkpoint",
    "distributed": "each process of a search trains a trial of its own",
    "hydra.run.dir": "each trial has a folder below hydra.sweep.dir=",
    "resume": "give search resume FOLDER",
}


def main(arguments: Sequence[str]) -> int:
    """Searches, or goes on with a search, and returns the exit code; raises UserError before anything is written."""
    if not arguments or set(arguments) & set(HELP):
        page = Page("search", ABOUT, *EXAMPLES, usage="key=value … | resume FOLDER")
        page.add_argument("words", nargs="*", metavar="key=value", help="a setting, or a word of the search")
        page.print_help()
        return 0
    from evalkit.session.study import refuse_missing

    refuse_missing()
    if arguments[0] == RESUME:
        return _resume(arguments[1:])
    return _begin(arguments)


def _begin(arguments: Sequence[str]) -> int:
    from evalkit.configuration.grammar import SEARCHPATH, parse, text_of
    from evalkit.session import search

    refuse_no_folder(arguments, [FOLDER])
    words = parse(arguments)
    for word in words:
        if word.key_or_group == FOLDER and "${" in text_of(word):
            raise UserError(f"{text_of(word)}: a search has one folder; write its name without ${{")
        if word.key_or_group in REFUSED:
            raise UserError(f"{text_of(word)}: {REFUSED[word.key_or_group]}; leave it out")
        if word.key_or_group.startswith(HYDRA) and word.key_or_group not in (FOLDER, SEARCHPATH):
            remedy = f"leave it out; search {RESUME} FOLDER starts further processes"
            raise UserError(f"{text_of(word)}: Hydra starts no run of a search; {remedy}")
        if word.key_or_group == FOLDER and word.is_sweep_override():
            raise UserError(f"{text_of(word)}: a search has one folder; give one, in quotes if its name has a comma")
    of_search = [word for word in words if _is_of_search(word)]
    trusted = [text_of(word) for word in words if word.key_or_group in search.TRUSTED]
    own = [word for word in words if word not in of_search and text_of(word) not in trusted]
    folder = next((typed_path(str(word.value())) for word in own if word.key_or_group == FOLDER), None)
    runs = [word for word in own if word.key_or_group != FOLDER]
    settings = search.Search(words=[text_of(word) for word in runs], **_settings(of_search))
    _prepare(runs)
    return search.begin(settings, folder or _new_folder(runs), trusted)


def _resume(arguments: Sequence[str]) -> int:
    if not arguments or ("=" in arguments[0] and not Path(arguments[0]).is_dir()):
        raise UserError("search resume needs the folder of a search, such as search resume runs/search/<task>-<time>")
    from evalkit.configuration.grammar import parse, text_of, value_of
    from evalkit.session import search

    words = parse(arguments[1:])
    for word in words:
        if word.key_or_group not in ("trials", *search.TRUSTED):
            raise UserError(f"{text_of(word)}: a search goes on with its own settings; allowed: trials=N")
    trusted = [text_of(word) for word in words if word.key_or_group in search.TRUSTED]
    folder = typed_path(arguments[0])
    _prepare(parse(search.saved(folder).words))
    return search.resume(folder, value_of(words, "trials", None), trusted)


def _prepare(words: "Sequence[Override]") -> None:
    from evalkit.configuration.experiment import AUTO
    from evalkit.configuration.grammar import value_of
    from evalkit.parallel import devices
    from evalkit.session.compilation import keep_programs

    devices.use_every_core()
    keep_programs(value_of(words, "compilation_cache", AUTO))


def _new_folder(words: "Sequence[Override]") -> Path:
    tasks = [str(word.value()) for word in words if word.key_or_group == "task" and not word.is_sweep_override()]
    return Path("runs", "search", f"{tasks[-1] if tasks else 'tasks'}-{datetime.now():%Y-%m-%d_%H-%M-%S-%f}")


def _is_of_search(word: "Override") -> bool:
    from evalkit.session.search import DEFAULTS

    return word.key_or_group.partition(".")[0] in DEFAULTS


def _settings(words: "Sequence[Override]") -> dict[str, Any]:
    """The search's own settings: its words over the defaults; `sampler=` replaces a sampler, `sampler.seed=` a key."""
    from omegaconf import OmegaConf

    from evalkit.configuration.grammar import text_of
    from evalkit.session.search import DEFAULTS

    config = OmegaConf.create(dict(DEFAULTS))
    for word in words:
        if word.is_sweep_override():
            raise UserError(f"{text_of(word)}: this is of the search itself; give one value")
        OmegaConf.update(config, word.key_or_group, word.value(), merge=False, force_add=True)
    plain = OmegaConf.to_container(config)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}

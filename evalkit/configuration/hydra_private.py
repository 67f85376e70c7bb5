"""All of Hydra that evalkit uses and that is private or global to the process; a test says when a version moves it."""

import copy
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from evalkit.configuration.catalogue import Stamp

# The base and the resolvers (`${now:…}`) are the process's. They are set once, so that threads see no change.
version.setbase("1.3")
setup_globals()


def loaded(directory: Path, options: Sequence[str], stamps: tuple[Stamp, ...] = ()) -> DictConfig:
    """What Hydra composes of `config.yaml` in `directory` and these options, its own part included.

    What it composed once in this process it does not compose again while `stamps`, the user's own files, are the same.
    """
    return copy.deepcopy(_composed(directory, tuple(options), stamps, Path.cwd()))  # since the caller writes into it


@functools.lru_cache(maxsize=64)
def _composed(directory: Path, options: tuple[str, ...], stamps: tuple[Stamp, ...], _: Path) -> DictConfig:
    """Composes with a loader of its own, without Hydra's global state, in any thread; the last argument is the cwd."""
    loader = ConfigLoaderImpl(create_config_search_path(str(directory)))
    return loader.load_configuration("config", list(options), RunMode.RUN)


def describe(config: DictConfig, words: Sequence[Override]) -> None:
    """Writes into Hydra's own part what was typed, for folders that are named by it."""
    of_hydra = [str(word.input_line) for word in words if word.is_hydra_override()]
    of_task = [word for word in words if not word.is_hydra_override()]
    how = config.hydra.job.config.override_dirname
    config.hydra.overrides.hydra = of_hydra
    config.hydra.overrides.task = [str(word.input_line) for word in of_task]
    name = get_overrides_dirname(of_task, how.exclude_keys, how.item_sep, how.kv_sep)
    config.hydra.job.override_dirname = name.replace("${hydra:", "${hydra.")


def place(config: DictConfig, job: int | None) -> None:
    """Writes into Hydra's own part the folder that Hydra would give the run, or the `job` of that number in a sweep."""
    own = config.hydra
    own.mode = RunMode.RUN if job is None else RunMode.MULTIRUN
    if job is not None:
        own.job.num, own.job.id = job, str(job)
    folder = own.run.dir if job is None else Path(own.sweep.dir, own.sweep.subdir)
    own.runtime.output_dir = str(Path(folder).absolute())


def answer(directory: Path, arguments: Sequence[str]) -> None:
    """Prints what Hydra itself answers to `--info`, `--hydra-help` or `-sc`, with the words of a run after them."""
    parser = get_args_parser()
    args = parser.parse_args(arguments)
    hydra = Hydra("evalkit", ConfigLoaderImpl(create_config_search_path(str(directory))))
    if args.hydra_help:
        hydra.hydra_help(config_name="config", args_parser=parser, args=args)
    elif args.info:
        hydra.show_info(args.info, config_name="config", overrides=args.overrides)
    else:
        hydra.shell_completion(config_name="config", overrides=args.overrides)


class _Loader(ConfigLoaderImpl):
    """Composes each job of a sweep by `whole`, as a run is; `words` are the whole sweep's, `first` its first job's."""

    def __init__(self, words: list[str], first: list[str], whole: Callable[[list[str]], DictConfig]) -> None:
        super().__init__(create_config_search_path(None))
        self.words, self.first, self.whole = words, first, whole

    def load_configuration(self, *_: Any, **__: Any) -> DictConfig:
        config = self.whole(self.first)
        config.hydra.overrides.task = self.words
        config.hydra.mode = RunMode.MULTIRUN
        return config

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        # As they were typed: ${hydra.job.num} is known to the job alone.
        of_hydra: Any = OmegaConf.to_container(master_config.hydra.overrides.hydra, resolve=False)
        config = self.whole([*of_hydra, *sweep_overrides])
        config.hydra.mode = RunMode.MULTIRUN
        OmegaConf.copy_cache(from_config=master_config, to_config=config)
        return config


def multirun(
    words: list[str], first: list[str], whole: Callable[[list[str]], DictConfig], work: Callable[[DictConfig], Any]
) -> list[Any]:
    """What `work` returns for each job that Hydra's sweeper makes of `words` and its launcher starts."""
    sweep = Hydra("evalkit", _Loader(words, first, whole))
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        batches = sweep.multirun(config_name="config", task_function=work, overrides=words)
    finally:  # Hydra gives the root logger a handler of its own, and leaves it there
        root.handlers[:] = handlers
        root.setLevel(level)
    return [done.return_value for batch in batches or [] for done in batch]

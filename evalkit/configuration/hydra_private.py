"""All that evalkit takes of Hydra that is private or the whole process's; a test says when a version moves it."""

from pathlib import Path

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import DictConfig

# The base and the resolvers (`${now:…}`) are the process's. They are set once, so that threads see no change.
version.setbase("1.3")
setup_globals()


def loader(directory: Path) -> ConfigLoaderImpl:
    """What finds and composes the YAML of `directory`, without Hydra's global state: any thread may have its own."""
    return ConfigLoaderImpl(create_config_search_path(str(directory)))


def loaded(directory: Path, options: list[str]) -> DictConfig:
    """What Hydra composes of `config.yaml` and these options, its own part included."""
    return loader(directory).load_configuration("config", options, RunMode.RUN)

"""Checks names and variables with the installed W&B before training; a later refusal would lose the log."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evalkit.core.credentials import masked
from evalkit.core.errors import UserError, first_line, typed_path, writing

if TYPE_CHECKING:
    import wandb

OFF, RUN_ID = "WANDB_DISABLED", "WANDB_RUN_ID"
FALSE = ("", "0", "false", "no", "off", "n", "f")
MEANING = {"run": "online", "dryrun": "offline"}
"""Older words of WANDB_MODE; the others mean what they say."""
LONGEST = 128
"""Characters of a name, a group or an id: the limit of W&B's server, which the package knows for projects alone."""
OF_ADDRESSES = frozenset("/\\#?%: ")


class Name(NamedTuple):
    """A name of a run: W&B's field for it, the variable that counts if the setting is null, and its length limit."""

    field: str
    variable: str
    longest: int = LONGEST


NAMES = {
    "project": Name("project", "WANDB_PROJECT"),
    "entity": Name("entity", "WANDB_ENTITY"),
    "name": Name("run_name", "WANDB_NAME"),
    "notes": Name("run_notes", "WANDB_NOTES", 2**20),
    "tags": Name("run_tags", "WANDB_TAGS"),
    "group": Name("run_group", "WANDB_RUN_GROUP"),
    "job_type": Name("run_job_type", "WANDB_JOB_TYPE", 64),
}


def is_off() -> bool:
    """Whether a variable switches W&B off; WANDB_DISABLED counts too, which W&B's package no longer reads."""
    mode = os.environ.get("WANDB_MODE")
    return mode == "disabled" or os.environ.get(OFF, "").strip().lower() not in FALSE


def known() -> "wandb.Settings":
    """What W&B's variables say now, and its files; raises UserError for what W&B refuses of them."""
    import wandb
    from wandb.sdk import wandb_setup

    if "WANDB_DIR" in os.environ:  # of a folder that is not there, W&B would complain on the console
        make(typed_path(os.environ["WANDB_DIR"]))
    alone = wandb.Settings()
    for variable, value in os.environ.items():
        with _refused(f"{variable}={value}", "give another value, or unset it"):
            alone.update_from_env_vars({variable: value})
    with _refused("the settings that `wandb` wrote", "mend the file that WANDB_CONFIG_DIR names, or ~/.config/wandb"):
        settings = wandb_setup.singleton().settings.model_copy()  # `wandb.setup` starts a process as well
    settings.update_from_env_vars(dict(os.environ))
    return settings


def make(folder: Path) -> None:
    """Makes a folder for W&B's files; raises UserError if that cannot be."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def refuse_no_home() -> None:
    """Raises UserError where W&B's package cannot keep its own files: it would lose figures after the training."""
    from wandb import env

    remedy = "set HOME to a folder that you can write, or give wandb.mode=disabled"
    try:
        folders = Path.home(), Path(env.get_data_dir()).expanduser(), env.get_cache_dir().expanduser()
    except RuntimeError as error:
        raise UserError(f"W&B keeps files below the home, which is not known; {remedy}") from error
    for folder in folders[1:]:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise UserError(f"W&B keeps files in {folder}, which cannot be written; {remedy}")


def refuse(settings: Mapping[str, Any], known: "wandb.Settings") -> None:
    """Raises UserError for a name of the `settings`, or else of what is `known`, that W&B or its server refuses."""
    for setting, name in NAMES.items():
        own, variable = settings[setting], getattr(known, name.field)
        if own or variable:
            _refuse(f"wandb.{setting}={own}" if own else f"{name.variable}={variable}", name, own or variable)
    if known.run_id:
        _refuse(f"{RUN_ID}={known.run_id}", Name("run_id", RUN_ID), known.run_id)
    import wandb

    with _refused("a variable such as WANDB_FORK_FROM", "unset it: evalkit goes on with a W&B run by itself"):
        known.model_copy().update_from_settings(wandb.Settings(resume="allow"))


def cut(text: str, ending: str = "", longest: int = LONGEST) -> str:
    """`text` with its `ending`, cut to `longest` bytes of UTF-8; a digest in place of the rest keeps names distinct.

    >>> cut("hawk-copying", "-s3"), len(cut("a" * 300, "-s3"))
    ('hawk-copying-s3', 128)
    """
    content, room = text.encode("utf-8", "replace"), longest - len(ending.encode())
    if len(content) > room:
        mark = f"-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}".encode()
        content = content[: room - len(mark)] + mark
    return content.decode("utf-8", "ignore") + ending


def _refuse(shown: str, name: Name, value: Any) -> None:
    import wandb

    texts: list[str] = [value] if isinstance(value, str) else list(value)
    is_path = name.field in ("project", "entity") and "/" in texts[0]
    remedy = "give wandb.entity=TEAM and wandb.project=NAME" if is_path else "give another"
    with _refused(shown, remedy):
        wandb.Settings.model_validate({name.field: value})
        for text in texts:
            if len(text) > name.longest:
                raise ValueError(f"it has {len(text)} characters, and at most {name.longest} are allowed")
            text.encode()
        if name.field == "entity" and not OF_ADDRESSES.isdisjoint(texts[0]):
            raise ValueError("a user or a team has none of / \\ # ? % : and no space")


@contextmanager
def _refused(shown: str, remedy: str) -> Iterator[None]:
    """Turns W&B's refusal of a value into a UserError."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{masked(shown)} is refused by W&B: {_reason(error)}; {remedy}") from error


def _reason(error: Exception) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):  # whose own text takes a line a field, and an address
        return masked("; ".join(str(one["msg"]) for one in error.errors()).replace("Value error, ", ""))
    return first_line(error)

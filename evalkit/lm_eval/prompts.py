"""lm-eval's prompts (its *requests*), kept between evaluations: `--cache_requests`.

lm-eval's own cache returns old prompts for new data, and its files are pickles, which run what a stranger put in them.
Here a file's name is the digest of all that prompts are made from, and the file is JSON after its SHA-256.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import Task

from evalkit.core.errors import UserError, writing
from evalkit.disk import sums
from evalkit.disk.files import write_whole
from evalkit.disk.places import kept_below

FIELDS = ("request_type", "doc", "arguments", "idx", "metadata")
log = logging.getLogger(__name__)


def folder() -> Path:
    """Where prompts are kept: $LM_HARNESS_CACHE_PATH, or else below the home; raises UserError without one."""
    try:
        return kept_below("LM_HARNESS_CACHE_PATH", "~/.cache/evalkit/prompts")
    except ValueError as error:
        raise UserError(str(error)) from error


def keeping(build: Callable[..., None], place: Path, model: Sequence[Any]) -> Callable[..., None]:
    """Replaces `build`, lm-eval's `Task.build_all_requests`, by one that keeps prompts in `place` by `model`."""

    def build_or_take(
        task: Task, *, cache_requests: bool = False, rewrite_requests_cache: bool = False, **how: Any
    ) -> None:
        if not cache_requests:
            build(task, **how)
            return
        settings = {name: value for name, value in how.items() if name != "chat_template"}  # a function of the model
        path = place / f"{name_of(task, model, settings)}.json"
        kept = None if rewrite_requests_cache else load(path)
        if kept is not None:
            task._instances = kept
            return
        build(task, **how)
        save(path, task.instances)

    return build_or_take


def name_of(task: Task, model: Sequence[Any], how: Mapping[str, Any]) -> str:
    """The digest of what a task's prompts are made from: the model, the task and its template, and its data."""
    facts = [version("lm_eval"), model, task.dump_config(), how]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    shown = task.fewshot_docs() if task.config.num_fewshot else None
    for documents in (task.eval_docs, shown or ()):
        for document in documents:
            digest.update(json.dumps(document, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def load(path: Path) -> list[Instance] | None:
    """The prompts in a file; None if there is none, and with a warning if it is not what was written."""
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if sums.of_bytes(content).encode() != digest:
        log.warning("the prompts in %s are damaged: their SHA-256 differs; they are made again", path)
        return None
    return _decoded(content)


def save(path: Path, instances: Sequence[Instance]) -> None:
    """Keeps prompts, if JSON can hold them; raises UserError if the disk refuses."""
    try:
        content = json.dumps([[getattr(one, name) for name in FIELDS] for one in instances]).encode()
        same = _decoded(content) == list(instances)
    except TypeError:
        same = False
    if not same:
        log.warning("the prompts of %s are not kept: JSON cannot hold them", instances[0].task_name)
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, sums.of_bytes(content).encode() + b"\n" + content)


def _decoded(content: bytes) -> list[Instance]:
    return [
        Instance(request_type, doc, tuple(arguments), idx, tuple(metadata))
        for request_type, doc, arguments, idx, metadata in json.loads(content)
    ]

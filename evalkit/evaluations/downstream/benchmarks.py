"""Which of lm-eval's benchmarks are run, and where their data sets are."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lm_eval.tasks import TaskManager

from evalkit.core.errors import UserError, typed_path
from evalkit.evaluations.downstream import data_sets


@dataclass(frozen=True)
class Benchmarks:
    """Benchmarks by `names`: tasks, groups and tags of lm-eval, or this project's own.

    Raises UserError for an invalid value.

    Options:
      names: any of lm-eval's tasks, groups and tags, or this project's own.
      num_fewshot (examples): examples shown before the question; null: as each benchmark says.
      limit (documents): documents of each benchmark; for a first look, never for a result; null: all.
      path: a folder of data sets; null: the hub, or its cache.
    """

    names: list[str]
    num_fewshot: int | None = None
    limit: int | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        if not self.names:
            raise UserError("names=[] is empty; give some, such as 'task.names=[griffin_table1]'")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit={self.limit}; allowed: 1 or more, or null")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise UserError(f"num_fewshot={self.num_fewshot}; allowed: 0 or more, or null")

    def index(self, metadata: Mapping[str, Any], also: Sequence[Path] = ()) -> TaskManager:
        """lm-eval's index of these benchmarks and those below `also`; raises UserError for an unknown name."""
        text = {} if self.path is None else {"text": self.path}
        return data_sets.manager(self.names, {**metadata, **text}, also)

    @contextmanager
    def located(self, metadata: Mapping[str, Any]) -> Iterator[TaskManager]:
        """The index with every data set located, while the context is open; raises UserError for one out of reach."""
        index = self.index(metadata)
        needed = data_sets.needed(index, self.names)
        with TemporaryDirectory() as localised:
            if self.path is None:
                data_sets.refuse_unreachable(needed)
            else:
                root = typed_path(self.path)
                data_sets.localise(index, needed, root, Path(localised), shots=self.num_fewshot)
                index = self.index(metadata, [Path(localised)])
            yield index

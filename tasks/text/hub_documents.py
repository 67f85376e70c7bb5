"""Documents of a data set on the Hugging Face hub, one at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from evalkit.disk.places import expanded
from evalkit.tasks.text.documents import Document, first_line

HELD_OUT = 50  # one row in so many where no split is held out


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A data set and its splits; no data set while `name` is None.

    Options:
      name: its name on the hub, owner/name, or a folder in the hub's layout; null: no data set.
      config: the data set's configuration, if it has several.
      train: the split to train on.
      held_out: the split to test on; null: every 50th row of `train`, which is then not trained on.
      revision: a branch, a tag or a commit; null: the newest.
      documents (rows): rows of each split that are read, the first ones; null: all.
    """

    name: str | None = None
    config: str | None = None
    train: str = "train"
    held_out: str | None = "test"
    revision: str | None = None
    documents: int | None = None

    def __post_init__(self) -> None:
        if self.train == self.held_out:
            raise ValueError(f"held_out={self.held_out} is trained on; give another split, or null for a part of it")
        if self.documents is not None and self.documents < 1:
            raise ValueError(f"documents={self.documents}; allowed: 1 or more, or null for all")

    @property
    def is_local(self) -> bool:
        """Whether it is a folder here, not on the hub."""
        return self.name is not None and expanded(self.name).is_dir()

    def identity(self, held_out: bool, field: str) -> list[str | None]:
        """Returns the settings that determine the documents, as a cache key; the name stands for the hub's content."""
        rows = [self.train, self.held_out, str(held_out), str(self.documents)]
        return ["hub", self.name, self.config, self.revision, field, *rows]

    def read(self, held_out: bool, field: str) -> Iterator[Document]:
        """The documents of the split that is held out, or of the one to train on, each row's text in `field`.

        Raises ValueError for whatever the data set or its server refuses, and for a row without `field`.
        """
        split = self.train if self.held_out is None or not held_out else self.held_out
        for number, row in enumerate(islice(self._rows(split), self.documents)):
            if self.held_out is None and (number % HELD_OUT == 0) != held_out:
                continue
            text = row.get(field)
            if field in row and text is None:
                continue
            if not isinstance(text, str):
                raise ValueError(f"field={field}: {self.name} has no text there; it has {', '.join(sorted(row))}")
            yield Document(f"{self.name}/{split}#{number}", text)

    def _rows(self, split: str) -> Iterator[dict[str, Any]]:
        name = str(expanded(str(self.name))) if self.is_local else str(self.name)
        rows = self._asked(lambda: iter(_load(name, self.config, split, self.revision)))
        while (row := self._asked(lambda: next(rows, None))) is not None:
            yield row

    def _asked(self, question: Callable[[], Any]) -> Any:
        """Calls `question`; raises ValueError for any error of `datasets` and its dependencies, of many kinds."""
        try:
            return question()
        except Exception as error:
            reason = first_line(error).rstrip(".")
            raise ValueError(
                f"the data set {self.name} cannot be read ({reason}); check its name, config and splits, "
                "or give data.path=FOLDER with texts of your own"
            ) from error


def _load(name: str, config: str | None, split: str, revision: str | None) -> Any:
    import datasets

    return datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)

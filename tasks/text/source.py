"""Where a text is: files, a data set on the hub, or by default the source of Python's standard library."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalkit.disk.places import expanded
from evalkit.tasks.text import documents, standard_library
from evalkit.tasks.text.documents import Document
from evalkit.tasks.text.hub_documents import Hub

TRAIN, HELD_OUT = "train", "held"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Documents to train on, and others that are held out; raises ValueError for two places at once.

    The text is in `path`, or in `train` with `held_out`, or on the hub (`hub`). With none of them it is the source of
    Python's standard library. Files are .txt, .tex and .md, one document each, or .jsonl and .parquet, one a row.

    Options (where the text is):
      path: a folder, in it files or folders whose names begin with `train`, and others that begin with `held`.
      train: the training texts: a file, a folder or a pattern such as `books/*.txt`; with `held_out`.
      held_out: the texts to test on, likewise; with `train`.
      field: the name of the column, in files with a row a document, that has the text.
      hub: a data set of the Hugging Face hub.
    """

    path: str | None = None
    train: str | None = None
    held_out: str | None = None
    field: str = "text"
    hub: Hub = dataclasses.field(default_factory=Hub)

    def __post_init__(self) -> None:
        files = {"path": self.path, "train": self.train, "held_out": self.held_out, "hub.name": self.hub.name}
        places = [f"{name}={value}" for name, value in files.items() if value is not None]
        pair = self.train is not None and self.held_out is not None
        if len(places) > 1 + pair:
            raise ValueError(f"{' with '.join(places)}; allowed: path, or train with held_out, or hub.name")
        if (self.train is None) != (self.held_out is None):
            missing = "held_out" if self.held_out is None else "train"
            raise ValueError(f"{places[0]} without {missing}; give both, each a file, a folder or a pattern")

    @property
    def streamed(self) -> str | None:
        """The data set on the hub that `texts` reads each time, None if it reads files."""
        return None if self.hub.is_local else self.hub.name

    @property
    def origin(self) -> str:
        """Where the held-out documents come from."""
        if self.path is None and self.train is None and self.hub.name is None:
            return f"{standard_library.name()}, no data given; give data.path=FOLDER"
        return str(self.held_out or self.path or self.hub.name)

    def read(self, held_out: bool) -> Iterator[Document]:
        """The documents, one at a time; raises ValueError, in one line, for what cannot be read."""
        if self.hub.name is not None:
            return self.hub.read(held_out, self.field)
        if self.path is None and self.train is None:
            return standard_library.documents(held_out)
        return (document for place in self._places(held_out) for document in documents.read(place, self.field))

    def hidden(self) -> list[Path]:
        """The hidden files and folders that are not read, where texts are files."""
        if self.hub.name is not None:
            return []
        places = [place for held_out in (False, True) for place in self._places(held_out)]
        return [path for place in places for path in documents.hidden_in(place)]

    def _places(self, held_out: bool) -> Sequence[str]:
        """Files, folders and patterns; none for the standard library."""
        if self.path is not None:
            return _beginning(self.path, HELD_OUT if held_out else TRAIN)
        place = self.held_out if held_out else self.train
        return [] if place is None else [place]


def _beginning(folder: str, prefix: str) -> list[str]:
    """The entries of `folder` whose names begin with `prefix`."""
    root = expanded(folder)
    if not root.is_dir():
        raise ValueError(
            f"data.path={folder} is no folder; give one that is there, with files train-*.txt and heldout-*.txt"
        )
    try:
        entries = sorted(entry for entry in root.iterdir() if entry.name.startswith(prefix))
    except OSError as error:
        raise ValueError(f"data.path={folder} cannot be read ({error.strerror}); let it be read") from error
    entries = [entry for entry in entries if entry.is_dir() or entry.suffix.lower() in documents.SUFFIXES]
    if not entries:
        raise ValueError(
            f"data.path={folder} has no text whose name begins with {prefix}; "
            "name files train-*.txt and heldout-*.txt, or give task.train=… and task.held_out=…"
        )
    return [str(entry) for entry in entries]

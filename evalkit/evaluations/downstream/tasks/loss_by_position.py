"""Loss by position as a task of lm-eval, for any of its models: each segment of a document is one request."""

import logging
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from evalkit.core.errors import UserError
from evalkit.tasks.text.corpus import content_of, firsts
from evalkit.tasks.text.documents import hidden_in, read

log = logging.getLogger(__name__)


class LossByPosition(ConfigurableTask):
    """Measures the loss of each segment of a document, given everything before it, in bits per byte.

    The metric of the segment that ends near byte n is `bits_per_byte@n`. Bytes are the same for every model; tokens
    are not.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        settings = {name: value for name, value in config.items() if name != "class"}
        length, segments = settings["metadata"]["length"], settings["metadata"]["segments"]
        settings["metric_list"] = [
            {"metric": name, "aggregation": "mean", "higher_is_better": False} for name in names(length, segments)
        ]
        super().__init__(config=settings)

    def construct_requests(self, doc: dict[str, Any], ctx: str, **kwargs: Any) -> list[Instance]:
        """Makes one request for each segment; of lm-eval's keywords only `metadata` has a meaning here."""
        cuts = [0, *doc["cuts"]]
        return [
            Instance("loglikelihood", doc, (doc["text"][:start], doc["text"][start:stop]), number, kwargs["metadata"])
            for number, (start, stop) in enumerate(pairwise(cuts))
        ]


def documents(
    text: str | None = None, length: int = 8192, segments: int = 8, field: str = "text", **_: Any
) -> dict[str, Dataset]:
    """Returns the documents below `text` of at least `length` bytes, with the ends of their segments; copies once.

    lm-eval passes all metadata; what is not named here is ignored. Raises UserError if there are no such documents.
    """
    if text is None:
        raise UserError("task griffin_loss_by_position reads texts of yours; give --metadata text=FILE, or a folder")
    long_enough = [
        {"text": document[: cuts[-1]], "cuts": cuts, "length": length}
        for document in _texts(str(text), field)
        if (cuts := ends_of_segments(document, length, segments))
    ]
    if not long_enough:
        raise UserError(f"{text} has no document of length={length} bytes; give longer ones, or a smaller length")
    return {"test": Dataset.from_list(long_enough)}


def bits_per_byte(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Returns the metrics of one document."""
    cuts = [0, *doc["cuts"]]
    sizes = [len(doc["text"][start:stop].encode()) for start, stop in pairwise(cuts)]
    values = [-logprob / math.log(2) / size for (logprob, _), size in zip(results, sizes, strict=True)]
    return dict(zip(names(doc["length"], len(sizes)), values, strict=True))


def names(length: int, segments: int) -> list[str]:
    """Returns the name of each segment's metric; raises UserError for an invalid length or number of segments."""
    if not (isinstance(length, int) and isinstance(segments, int) and 1 <= segments <= length):
        raise UserError(f"length={length}, segments={segments}; allowed: segments from 1, length from segments")
    return [f"bits_per_byte@{length * (number + 1) // segments}" for number in range(segments)]


def ends_of_segments(text: str, length: int, segments: int) -> list[int]:
    """Where each segment ends, in characters: before a white space, so that no word is cut; empty for a short text."""
    ends, size, wanted = [], 0, 1
    for place, character in enumerate(text):
        if size >= length * wanted // segments and character.isspace() and not text[place - 1].isspace():
            ends.append(place)
            wanted += 1
            if wanted > segments:
                return ends
        size += len(character.encode())
    return [*ends, len(text)] if wanted == segments and size >= length else []


def _texts(place: str, field: str) -> list[str]:
    """The texts below `place` without copies; what is left out is logged. Raises UserError."""
    try:
        documents = [document for document in read(place, field) if document.text.strip()]
        kept = firsts([content_of(document).form for document in documents])
        hidden = hidden_in(place)
    except ValueError as error:
        raise UserError(f"task griffin_loss_by_position: {error}") from error
    if len(kept) < len(documents):
        log.warning("%d documents of %s are copies of others and left out", len(documents) - len(kept), place)
    if hidden:
        log.warning("hidden, and left out: %s", ", ".join(dict.fromkeys(path.name for path in hidden)))
    return [documents[index].text for index in kept]

"""What a reader must know before trusting a number: what the runs say of themselves, and what was left out."""

from collections.abc import Sequence
from typing import Any

from evalkit.reports.numbers import grouped
from evalkit.reports.pooling import Line

COMPARED = (("training length", "train_length"), ("chance", "chance"), ("preset", "preset"))


def notes_of(lines: Sequence[Line]) -> list[str]:
    """Where the lines were not made alike; what all their runs say of themselves; what some of them say."""
    notes = []
    known = ((line.label, line.header.text) for line in lines if line.header.text)
    texts = grouped((text.get("held_out", text["digest"]), label) for label, text in known)
    if len(texts) > 1:
        names = "; ".join(map(", ".join, texts.values()))
        notes.append(f"The held-out texts differ, so the lines do not compare: {names}.")
    for name, field in COMPARED:
        values = {line.label: getattr(line.header, field) for line in lines}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{label} {_show(value)}" for label, value in values.items())
            notes.append(f"The {name} differs: {shown}.")
    if len({line.header.steps for line in lines}) > 1:  # the labels say how many
        notes.append("The number of training steps differs.")
    shared = [note for note in lines[0].header.notes if all(note in line.header.notes for line in lines)]
    own = grouped((note, line.label) for line in lines for note in line.header.notes if note not in shared)
    return [*notes, *shared, *(f"{', '.join(labels)}: {note}" for note, labels in own.items())]


def left_out(line: Line) -> list[str]:
    """One line a reason: the lengths or documents that were not evaluated, unless a later evaluation has them."""
    measured, reasons = set(), {}
    for entry in line.record.rows:
        if entry["split"] == "test":
            what = entry["metric"], entry["length"], entry["extra"].get("document")
            if entry["count"]:
                measured.add(what)
            elif "not_run" in entry["extra"]:
                reasons[what] = entry["extra"]["not_run"]
    by_reason: dict[str, dict[str, None]] = {}  # in order, each once
    for (metric, length, document), reason in sorted(reasons.items(), key=str):
        if (metric, length, document) not in measured:
            by_reason.setdefault(reason, {})[document or f"{length:,}"] = None
    return [f"not run ({reason}): {'; '.join(names)}" for reason, names in by_reason.items()]


def _show(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "unknown"
    return f"{value:,.3g}" if isinstance(value, float) else f"{value:,}"

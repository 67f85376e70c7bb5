"""The tables and the CSV of text runs, of one or of several."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from evalkit.evaluations.text.curves import CONTEXT, POSITIONS, TRAINING, changes, losses, tokens_are_alike, unit
from evalkit.evaluations.text.curves import figures as figures
from evalkit.evaluations.text.summary import Estimate, base_context
from evalkit.evaluations.text.summary import summarise as summarise
from evalkit.reports.kinds import Table, by_column
from evalkit.reports.numbers import DASH, between
from evalkit.reports.pooling import Line

SHOWN_FROM = 128
CONTROLS = {
    "foreign": "far context from another document, minus its own",
    "repeated": "a passage seen before, minus one not seen",
    "helped": "tokens that long context helps most, long minus short",
}


def tables(lines: Sequence[Line]) -> list[Table]:
    """Of one run every interval, and the controls; of several a row each."""
    return _of_one(summarise(lines[0].record)) if lines[0].alone else _of_several(lines)


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """A record a line and position, of the loss, and of what more context than a training window's changes."""
    same = tokens_are_alike(lines)
    return [
        {"model": line.label, "measure": measure, "unit": unit(same), **asdict(one)}
        for line in lines
        for measure, estimates in (("loss", losses(line, same)), ("more_context", _longer(line, same)))
        for one in estimates
    ]


def _of_one(summary: Mapping[str, Any]) -> list[Table]:
    """Loss by octave, the paired differences, the controls, validation by seed."""
    nats, bits = summary["validation"]["loss"], summary["validation"]["bits_per_byte"]
    octaves = [record for record in summary["by_position"] if record["position"].bit_count() == 1]
    return [
        Table(
            POSITIONS,
            ["position", "loss", "95% interval", "documents", "bits a byte"],
            [[*_cells(record, ".4f"), f"{record['bits_per_byte']:.4f}"] for record in octaves],
        ),
        _contexts(CONTEXT, summary["paired"]),
        _contexts("More context than a training window", summary["paired_after_a_window"]),
        Table(
            "Controls",
            ["control", "tokens", "difference of loss", "95% interval", "documents"],
            [_control(words, record) for name, words in CONTROLS.items() for record in summary[name]],
        ),
        Table(
            TRAINING,
            ["seed", "validation, nats a token", "bits a byte"],
            [[str(seed), f"{nats[seed]:.4f}", f"{bits[seed]:.4f}"] for seed in nats],
        ),
    ]


def _of_several(lines: Sequence[Line]) -> list[Table]:
    """Mean loss at powers of two, and what more context changes, with half the width of its interval."""
    same = tokens_are_alike(lines)
    level = {line.label: _by_position(losses(line, same), "{0.mean:.4f}") for line in lines}
    changed = {
        f"{line.label}, against {base_context(line.record) or DASH}": _by_position(
            _longer(line, same), "{0.mean:+.4f} ± {1:.4f}"
        )
        for line in lines
    }
    return [
        by_column(POSITIONS, f"loss ({unit(same)}) at position", level, lines),
        by_column(CONTEXT, f"after more context ({unit(same)})", changed),
    ]


def _by_position(found: Iterable[Estimate], form: str) -> dict[int, str]:
    """At powers of two; the second number of `form` is half the width of the interval."""
    drawn = [one for one in found if one.position.bit_count() == 1 and one.position >= SHOWN_FROM]
    return {one.position: form.format(one, one.high - one.mean) for one in drawn}


def _longer(line: Line, same: bool) -> list[Estimate]:
    """What contexts longer than the one compared with change."""
    base = base_context(line.record)
    return [] if base is None else [one for one in changes(line, same) if one.position > base]


def _contexts(heading: str, paired: Mapping[str, Any]) -> Table:
    """The difference to one context; nothing is decided of shorter ones."""
    against = paired["against"]
    header = ["context", f"loss minus that after {against}", "95% interval", "documents", "so more context"]
    lines = [
        [*_cells(record, "+.4f"), record["verdict"] if record["position"] > against else DASH]
        for record in paired["difference"]
    ]
    return Table(heading, header, lines)


def _control(words: str, found: Mapping[str, Any]) -> list[str]:
    """A line; tokens that were chosen by the very losses they are judged by prove nothing, so without an interval."""
    if found.get("chosen_by") != "itself":
        return [words, *_cells(found, "+.4f")]
    bare = _cells({**found, "low": None, "high": None}, "+.4f")
    return [f"{words} (chosen by the same losses: below 0 by construction)", *bare]


def _cells(found: Mapping[str, Any], form: str) -> list[str]:
    """Position, mean, interval and number of documents."""
    interval = between(found["low"], found["high"], form)
    return [f"{found['position']:,}", f"{found['mean']:{form}}", interval, str(found["documents"])]

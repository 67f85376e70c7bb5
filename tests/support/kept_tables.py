"""Holds the tables of a page of results to the rows that are kept.

A comment before a table says where its numbers come from; each line of it is `PLACE: SELECTORS`.

| place | what its selectors are for |
|---|---|
| `all` | every cell |
| `column HEADING` | the cells below the heading that begins so |
| `cell LABEL / HEADING` | one cell: a selector for each of its numbers, with `;` between |
| anything else | the row whose label begins so, and the rows after it that no line names |

`not rows` in place of selectors leaves cells out; `= 14` in a cell's line is a number that is no measurement.

A selector is made of `name=value`. `run` is a folder, or `FOLDER/*` for all runs in it as one; `value` is a list of the
run's summary and a field of its records. The others are what a record must have: `length=512`, `length=64..512`,
`seed=2000`. With `across=length` the number in a heading is the length; with `down=seed` the number in a row's label is
the seed. `run=hawk_{trial}` takes its `trial` from another selector. `A over B` is a ratio; `A against B` is the exact
p-value of "A is larger".

How a cell is written says what it must hold: `0.5` is the median of the seeds, `0.4, 0.5` each seed, `0.4 to 0.6` the
least and the most, `0.5 (0.4, 0.5)` and `0.5 (0.4 to 0.6)` both. Of one seed the brackets hold its 95 % interval.
`0.5 (0.4)` has the run `beside` in the brackets. A number must be the measured one, rounded to the digits shown.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from evalkit.core import studies
from evalkit.core.errors import UserError
from evalkit.core.rows import read
from evalkit.core.statistics import mann_whitney
from evalkit.evaluations.extrapolation.summary import LEVELS
from evalkit.reports.kinds import kind_of

COMMENT = re.compile(r"<!-- (rows\n.*?|not rows: \S.*?) ?-->", re.S)
UNITS = {"M": 1e6, "million": 1e6, "thousand": 1e3, "%": 0.01}
NUMBER = re.compile(
    r"(?:> |beyond )(?:\d{1,3}(?:,\d{3})+|\d+)|never|not reached"
    r"|(?<![\w.^])[+\-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\^)(?: (?:M|million|thousand|%)(?!\w))?"
)
RESERVED = {"run", "value", "across", "down", "beside", "show"}

Records = Sequence[Mapping[str, Any]]
Number = float | str | tuple[float, ...]
"""What a cell must show: a measurement, the text of what is none, or several measurements that must look alike."""


class Wrong(Exception):
    """A table that says something else than the rows, or does not say where its numbers come from."""


@dataclass(frozen=True)
class Cell:
    """One cell: where it is, what it shows, and its selectors; None if it is no measurement."""

    page: Path
    line: int
    text: str
    selectors: Sequence[Mapping[str, str]] | str | None

    def check(self) -> int:
        """How many numbers it holds to the rows. Raises Wrong naming the line, what is shown and what was measured."""
        text = self.text.replace("**", "").strip()
        shown = NUMBER.findall(text)
        if self.selectors is None or not shown:
            return 0
        try:
            measured = self._measured(text, NUMBER.sub("N", text), len(shown))
        except (Wrong, UserError, ValueError, KeyError) as error:
            raise Wrong(f"{self.page.name}:{self.line}: {text!r}: {error}") from error
        if len(measured) != len(shown) or not all(map(_agrees, with_units(shown), measured)):
            raise Wrong(f"{self.page.name}:{self.line}: {text!r} is shown, the rows say {measured}")
        return len(shown)

    def _measured(self, text: str, form: str, count: int) -> list[Number]:
        if isinstance(self.selectors, str):
            everywhere, _, parts = self.selectors.partition("|")
            shared = _words(everywhere)
            return [number for part in parts.split(";") for number in _said(part.strip(), shared, self.page.parent)]
        given = merged(self.selectors or ())
        if found := re.match(r"block N: ", form):
            block = int(NUMBER.findall(text)[0])
            rest = _by_form(form[found.end() :], given | {"block": str(block - 1)}, self.page.parent, count - 1)
            return [block, *rest]
        if " / " in form:
            name, values = next((name, value) for name, value in given.items() if "/" in value and name != "run")
            each = [given | {name: value} for value in values.split("/")]
            return [number for one in each for number in _by_form("N", one, self.page.parent, 1)]
        return _by_form(form, given, self.page.parent, count)


@dataclass(frozen=True)
class Table:
    """One table of a page, and the comment before it; `source` is None where there is none."""

    page: Path
    line: int
    source: str | None
    header: Sequence[str]
    lines: Sequence[Sequence[str]]

    @property
    def of_rows(self) -> bool:
        """Whether its numbers are said to come from rows."""
        return self.source is not None and not self.source.startswith("not rows")

    def cells(self) -> Iterator[Cell]:
        """Every cell but the labels, with what it must hold."""
        said = _Source.of(self.source or "")
        for number, line in enumerate(self.lines):
            label = _plain(line[0])
            said.enter(label)
            for heading, text in zip(map(_plain, self.header[1:]), line[1:], strict=True):
                yield Cell(self.page, self.line + 2 + number, text, said.selectors(label, heading))


@dataclass
class _Source:
    """What the comment before a table says; `row` is the line that the present row goes by."""

    rows: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    single: dict[tuple[str, str], str] = field(default_factory=dict)
    everywhere: str = ""
    row: str = ""

    @classmethod
    def of(cls, text: str) -> "_Source":
        said = cls()
        for line in filter(None, map(str.strip, text.splitlines()[1:])):
            place, _, selectors = (part.strip() for part in line.partition(": "))
            if place == "all":
                said.everywhere = selectors
            elif place.startswith("column "):
                said.columns[place.removeprefix("column ")] = selectors
            elif place.startswith("cell "):
                label, _, heading = place.removeprefix("cell ").partition(" / ")
                said.single[label, heading] = selectors
            else:
                said.rows[place] = selectors
        return said

    def enter(self, label: str) -> None:
        self.row = next((words for begins, words in self.rows.items() if label.startswith(begins)), self.row)

    def selectors(self, label: str, heading: str) -> Sequence[Mapping[str, str]] | str | None:
        for (row, column), words in self.single.items():
            if label.startswith(row) and heading.startswith(column):
                return None if words == "not rows" else f"{self.everywhere}|{words}"
        column = next((words for begins, words in self.columns.items() if heading.startswith(begins)), "")
        if "not rows" in (column, self.row):
            return None
        given = [_words(self.everywhere), _words(self.row), _words(column)]
        by = merged(given)
        for name, text in ((by.get("down"), label), (by.get("across"), heading)):
            if name and name not in by and (found := _number_in(text)):
                given.append({name: found})
        return given


def tables_of(page: Path) -> list[Table]:
    """The tables of one page, in order, each with the comment that stands right before it."""
    text = page.read_text(encoding="utf-8")
    comments = {text.count("\n", 0, found.end()): found for found in COMMENT.finditer(text)}
    lines, tables = text.splitlines(), []
    for number, line in enumerate(lines):
        begins = line.startswith("|") and not (number and lines[number - 1].startswith("|"))
        if begins:
            last = next((end for end in range(number, len(lines)) if not lines[end].startswith("|")), len(lines))
            rows = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in lines[number:last]]
            found = comments.get(number - 1) or comments.get(number - 2)
            source = None if found is None else found[1]
            tables.append(Table(page, number + 1, source, rows[0], rows[2:]))
    return tables


def merged(given: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """One selector of several; of equal names the last, but `run` adds a folder to those before it."""
    found: dict[str, str] = {}
    for one in given:
        folder = "/".join(filter(None, (found.get("run"), one.get("run"))))
        found |= {**one, "run": folder}
    return found


def with_units(shown: Sequence[str]) -> list[str]:
    """Numbers as shown; in a list a unit also applies to the numbers before it that have none."""
    done: list[str] = []
    unit = ""
    for text in reversed(shown):
        head, _, own = text.rpartition(" ")
        if own in ("thousand", "million"):
            unit = own
        bare = not head and text[0].isdigit()
        done.append(f"{text} {unit}" if unit and bare else text)
    return done[::-1]


def changed(text: str) -> Iterator[str]:
    """The same cell with one number off by one in its last digit, for each number."""
    for found in NUMBER.finditer(text):
        digits = [place for place in range(*found.span()) if text[place].isdigit()]
        if digits and text[found.start()] not in ">b":
            place = digits[-1]
            yield text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]


def _words(text: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in text.split()]
    if strange := [name for name, equals, _ in pairs if not equals]:
        raise Wrong(f"{' '.join(strange)!r} is no name=value in {text!r}")
    return {name: value for name, _, value in pairs}


def _plain(text: str) -> str:
    return text.replace("**", "").strip()


def _number_in(text: str) -> str | None:
    found = re.search(r"([\d,]*\d)(?: to ([\d,]*\d))?", text)
    return None if found is None else "..".join(part.replace(",", "") for part in found.groups() if part)


def _by_form(form: str, given: Mapping[str, str], base: Path, count: int) -> list[Number]:
    """The numbers that a cell of this form must hold, in order."""
    found = _select(given, base)
    each = [value for _, value, _ in found]
    points = {point for point, _, _ in found}
    medians = [median(value for at, value, _ in found if at == point) for point in sorted(points)]
    if form == "N each":
        return [_alike(each)]
    if form == "N":
        return [_alike(medians)]
    if form == "N to N":
        return [min(each), max(each)]
    if form == "N (N)":
        return [_alike(medians), *_by_form("N", {**given, "run": given["beside"]}, base, 1)]
    if form == "N (N to N)":
        record = found[0][2]
        interval = (record["low"], record["high"]) if len(found) == 1 else (min(each), max(each))
        return [_alike(medians), *interval]
    if len(points) == 1 and form == "N (" + ", ".join("N" * (count - 1)) + ")":
        return [_alike(medians), *each]
    if len(points) == 1 and form == ", ".join("N" * count):
        return list(each)
    raise Wrong(f"the form {form!r} is not known: say which numbers it has in a line `cell LABEL / HEADING: …`")


def _alike(values: Sequence[float]) -> Number:
    """The values that one shown number stands for, each of them once."""
    return tuple(dict.fromkeys(values))


def _said(text: str, everywhere: Mapping[str, str], base: Path) -> list[Number]:
    """The numbers of one part of a `cell` line, to which the selectors of `all` apply as well."""
    if text.startswith("="):
        return [text.removeprefix("=").strip()]
    selectors = [merged((everywhere, _words(part))) for part in re.split(" over | against ", text)]
    found = [_select(given, base) for given in selectors]
    if len(found) == 2:
        first, second = ([value for _, value, _ in one] for one in found)
        return [mann_whitney(first, second) if " against " in text else median(first) / median(second)]
    each = [value for _, value, _ in found[0]]
    shown = selectors[0].get("show", "median")
    if shown == "each":
        return list(each)
    if shown in ("low", "high"):
        return [found[0][0][2][shown]]
    return [{"median": median, "min": min, "max": max}[shown](each)]


def _select(given: Mapping[str, str], base: Path) -> list[tuple[tuple[str, ...], float, Mapping[str, Any]]]:
    """Each selected record: its point (the selected fields except the seed), its value, and the record itself."""
    return _selected(tuple(sorted(given.items())), base)


@cache
def _selected(items: tuple[tuple[str, str], ...], base: Path) -> list[tuple[tuple[str, ...], float, Mapping[str, Any]]]:
    """As `_select`, once for each set of selectors: changed digits ask for the same numbers."""
    given = dict(items)
    run = given["run"].format_map(given)
    lists = _summary((base / run).resolve())
    name = max((name for name in lists if given["value"].startswith(f"{name}.")), key=len, default=None)
    if name is None:
        raise Wrong(f"{given['value']} begins with none of {', '.join(lists)}")
    field_name = given["value"].removeprefix(f"{name}.")
    wanted = {
        name: value for name, value in given.items() if name not in RESERVED and f"{{{name}}}" not in given["run"]
    }
    kept = [one for one in lists[name] if all(_matches(one.get(key), value) for key, value in wanted.items())]
    if not kept:
        raise Wrong(f"no record of {name} has {wanted} in {run}")
    points = [tuple(str(one[key]) for key in wanted if key != "seed") for one in kept]
    return [(point, _value(one[field_name]), one) for point, one in zip(points, kept, strict=True)]


def _value(found: float | None) -> float:
    """A number; what was never reached is infinite."""
    return math.inf if found is None else found


def _matches(found: Any, wanted: str) -> bool:
    if ".." in wanted:
        low, high = map(int, wanted.split(".."))
        return found is not None and low <= found <= high
    return str(found) == wanted


def _agrees(shown: str, measured: Number) -> bool:
    if isinstance(measured, str):
        return shown == measured
    if isinstance(measured, tuple):
        return all(_agrees(shown, one) for one in measured)
    if not shown[0].isdigit() and shown[0] not in "+-−":
        return math.isinf(measured)
    number, _, unit = shown.partition(" ")
    plain = number.replace(",", "").replace("−", "-")
    digits = len(plain.partition(".")[2])
    return not math.isinf(measured) and float(f"{measured / UNITS.get(unit, 1):.{digits}f}") == float(plain)


@cache
def _summary(folder: Path) -> dict[str, Records]:
    """Lists of flat records, from the rows of the run: what its report summarises, and what follows from it."""
    if folder.name == "*":
        each = [_summary(run) for run in studies.packed_below(folder.parent)]
        return {name: [one for lists in each for one in lists[name]] for name in each[0]}
    record = read(folder)
    summary = kind_of(record.header.kind).summarise(record)
    lists = dict(_lists(summary))
    scalars = {name: value for name, value in summary.items() if isinstance(value, int | float)}
    lists["header"] = [scalars]
    if isinstance(summary.get("validation"), Mapping):
        by_metric = summary["validation"]
        lists["validation"] = [
            {"seed": seed, **{metric: by_metric[metric][seed] for metric in by_metric}} for seed in by_metric["loss"]
        ]
    if "extrapolation" in summary:
        lists["seeds"] = [_with_steps(one, folder, record.rows, summary) for one in lists["seeds"]]
    return lists


def _lists(summary: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Records]]:
    for name, content in summary.items():
        if isinstance(content, Mapping):
            yield from _lists(content, f"{above}{name}.")
        elif isinstance(content, list) and content and isinstance(content[0], Mapping):
            yield f"{above}{name}", [dict(_flat(one)) for one in content]


def _flat(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in content.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{above}{name}.")
        else:
            yield f"{above}{name}", inner


def _with_steps(seed: Mapping[str, Any], folder: Path, rows: Iterable[Any], summary: Mapping[str, Any]) -> Any:
    """Adds the tokens to each level, and the step from which on the accuracy stays at it."""
    config = studies.content(folder / "config.yaml")
    a_step = config["train"]["batch_size"] * (summary["train_length"] + summary["answer_length"])
    curve = {
        row["step"]: row["total"] / row["count"]
        for row in rows
        if (row["split"], row["metric"], row["seed"]) == ("validation", "accuracy", seed["seed"])
        and row["length"] == summary["train_length"]
        and row["count"]
    }
    more: dict[str, float | None] = {}
    for level in LEVELS:
        steps = seed[f"steps_to.{level}"]
        more[f"tokens_to.{level}"] = None if steps is None else steps * a_step
        below = max((step for step, accuracy in curve.items() if accuracy < level - 1e-9), default=0)
        more[f"stays_at.{level}"] = min((step for step in curve if step > below), default=None)
    return {**seed, **more}

"""Claims as data: `studies/claims.yaml`, an entry a claim of the paper, read and checked."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import evalkit
from evalkit.claims.parts import Part
from evalkit.core.errors import UserError, first_line
from evalkit.disk.files import text_of

FILE = "claims.yaml"
SCALES = ("parameters", "tokens", "length")


@dataclass(frozen=True)
class Control:
    """A test that must pass before a missed mark counts against a claim; without parts, `says` why there is none."""

    says: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Runs:
    """The runs that answer a claim; `command` is what is typed for them, without `python -m evalkit`."""

    experiment: str | None
    preset: str | None
    seeds: Sequence[int]
    command: str


@dataclass(frozen=True)
class Claim:
    """One claim of the paper, or one of this study's own where `figure` says so."""

    id: str
    says: str
    section: str
    figure: str
    paper: str
    """The paper's result, with which our number is compared."""
    test: Sequence[Part]
    lacking: str | None
    """What would be needed and cannot be had here, such as weights that were never released."""
    control: Control
    registered: Mapping[str, str] | None
    """When and by which commit the marks were fixed before the runs; None: they were written after them."""
    runs: Runs
    scale: Mapping[str, Any]
    """`run`: the kept run that is ours, or `ours` in numbers; `paper`: parameters, tokens and length of the paper's."""
    hours: Mapping[str, float | None]
    """Hours of one CPU core and of one GPU; None where it cannot be run there."""
    not_claimed: str
    read: str
    """The page that has the whole story, from the folder of studies."""


def folder_of(given: Path | None = None) -> Path:
    """The folder of studies: the one that is given, or that of the current folder, or that of the clone."""
    places = [given] if given is not None else [Path("studies"), Path(evalkit.__file__).parent.parent / "studies"]
    for place in places:
        if (place / FILE).is_file():
            return place
    raise UserError(
        f"no {FILE} in {' or '.join(map(str, places))}: the sheet needs the rows that a clone of the repository keeps; "
        "start it there, or give studies=FOLDER"
    )


def read(folder: Path) -> dict[str, Claim]:
    """The claims of `claims.yaml` by id, in its order. Raises UserError naming the entry that is not whole."""
    path = folder / FILE
    try:
        entries = yaml.safe_load(text_of(path))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no YAML ({first_line(error)})") from error
    except (OSError, ValueError) as error:
        raise UserError(first_line(error)) from error
    if not isinstance(entries, Mapping):
        raise UserError(f"{path} has no claims; give each its fields below its id, as in the studies of a clone")
    return {id: _claim(id, entry) for id, entry in entries.items()}


def nearest(claims: Mapping[str, Claim], id: str) -> Claim:
    """The claim of this id. Raises UserError naming the nearest where there is none."""
    if id in claims:
        return claims[id]
    near = difflib.get_close_matches(id.upper(), claims, n=1, cutoff=0.0)
    raise UserError(f"{id!r} is no claim; the nearest is {near[0]}. The claims are {', '.join(claims)}")


def _claim(id: str, entry: Any) -> Claim:
    if not isinstance(entry, Mapping):
        raise UserError(f"claim {id} is {entry!r}; give it its fields")
    fields = {name for name in Claim.__annotations__ if name != "id"}
    optional = {"lacking"}
    missing, strange = sorted(fields - optional - set(entry)), sorted(set(entry) - fields)
    if missing or strange:
        raise UserError(
            f"claim {id} lacks {missing} and has {strange}; it needs {', '.join(sorted(fields - optional))}"
        )
    try:
        return Claim(
            **{name: x for name, x in entry.items() if name not in ("test", "control", "runs", "lacking")},
            id=id,
            lacking=entry.get("lacking"),
            test=[Part.read(part) for part in entry["test"]],
            control=Control(entry["control"]["says"], [Part.read(part) for part in entry["control"].get("test", ())]),
            runs=Runs(**{"experiment": None, "preset": None, "seeds": (), **entry["runs"]}),
        )
    except (UserError, TypeError, KeyError) as error:
        raise UserError(f"claim {id}: {first_line(error)}") from error

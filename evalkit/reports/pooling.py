"""Which runs are repetitions of one another, and become one line of a figure; and what to know before trusting a line.

Repetitions differ in nothing but the seed. Notes tell what the runs say of themselves, and what was left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evalkit.core import studies
from evalkit.core.errors import UserError, first_line
from evalkit.core.moved import renamed
from evalkit.core.rows import FILE, Header, Record, record_file, with_records
from evalkit.record import history
from evalkit.reports.numbers import grouped

FACTS = ("model", "preset", "train_length", "window", "steps", "chance", "parameters", "task_version")
# Sections of config.yaml that decide what a run computes; how often it logs does not.
SECTIONS = ("task", "model", "train", "matmul_precision")
HOW_PRECISELY = (
    *("lengths", "max_length", "sequences", "long_sequences", "long_from", "interval", "marks"),
    *("during", "during_sequences", "during_every", "batch_size", "chunk", "cache_gib", "devices", "share_prefixes"),
)
"""Settings of an evaluation that change where, how precisely or how fast it measures, and not what."""
CADENCE = ("train.log_every", "train.eval_every", "train.checkpoint_every", "train.keep_every")
LATER = {
    "optimizer": "adamw",
    "label_smoothing": 0.0,
    "average": None,
    "skip_nonfinite": False,
    "state_passing": None,
    "first_states": "passed",
    "stream_facts": 0.0,
    "lengths": None,
    "parameter_dtype": "float32",
    "gather": "step",
}
"""Settings of `train` that older runs do not name, with the values that these runs used; they are the defaults."""
BUDGET = ("steps", "train.steps", "extended", "measured")
SETTINGS_IN_LABEL = 3
STEPS = "steps"
COMPARED = (
    ("training length", "train_length"),
    ("chance", "chance"),
    ("preset", "preset"),
    ("version of the task", "task_version"),
)
MEASURED_ON = ("task", "matmul_precision")
TOLD = ("task.length",)
"""A setting that the notes on facts tell of."""
"""Facts that a note reports if they differ between lines: the name, and the field of the header."""


@dataclass(frozen=True)
class Run:
    """One run: its folder, its record, and the settings by dotted name that tell it from other runs (`recipe`).

    `name` is its label; None: it is called after its model and the settings that distinguish it from others.
    `measures` has the settings that decide what its evaluation measures.
    """

    folder: Path
    record: Record
    recipe: Mapping[str, str]
    name: str | None = None
    measures: Mapping[str, str] = field(default_factory=dict)

    @property
    def header(self) -> Header:
        """What the run is."""
        return self.record.header

    @property
    def seeds(self) -> list[int]:
        """The seeds that were measured; of a run that only began, those it began with."""
        measured = sorted({entry["seed"] for entry in self.record.rows if entry["seed"] is not None})
        return measured or list(self.header.seeds)


@dataclass(frozen=True)
class Line:
    """Runs of one recipe, with disjoint seeds: one line of a figure, one row of a table.

    `alone`: the one run of a report of its own, which is shown in more detail than runs that are compared. `by`: what
    its curves of training are drawn against.
    """

    label: str
    runs: Sequence[Run]
    alone: bool = False
    by: str = STEPS

    @property
    def header(self) -> Header:
        """The header of its first run; the other runs differ in their seeds alone."""
        return self.runs[0].header

    @cached_property
    def record(self) -> Record:
        """The rows of all its runs."""
        return Record(self.header, [entry for run in self.runs for entry in run.record.rows])

    @property
    def seeds(self) -> list[int]:
        """The seeds of all its runs."""
        return [seed for run in self.runs for seed in run.seeds]


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders among and below `paths`, each once, in order; raises `UserError` for a path that holds no run."""
    runs: dict[Path, Path] = {}
    for path in paths:
        folders = _below(path)
        if not folders:
            wrong = f"no {FILE} in or below {path}" if path.exists() else f"{path} does not exist"
            raise UserError(f"{wrong}: give folders of runs (runs/<task>/<model>/<timestamp>)")
        for folder in folders:
            if not any(parent in folders for parent in folder.parents):
                runs.setdefault(folder.resolve(), folder)
    return list(runs.values())


def inner_runs(paths: Sequence[Path]) -> list[Path]:
    """What `find_runs` leaves out of `paths`: evaluations in the folders of the runs that they are of."""
    runs = [folder.resolve() for folder in find_runs(paths)]
    return [folder for path in paths for folder in _below(path) if folder.resolve() not in runs]


def _below(path: Path) -> list[Path]:
    """A run's folder alone, or every folder with rows in a folder that is no run."""
    return with_records(path) if record_file(path) is None else [path]


def load(folder: Path, name: str | None = None) -> Run:
    """Reads one run. Raises `UserError` if it has no rows."""
    record = history.record_of(folder)
    if not record.header.task:
        raise UserError(f"{folder / FILE} holds no rows: that run stopped before its first measurement")
    extensions = history.extensions(folder, record)
    notes = [note for note in record.header.notes if note not in map(str, extensions)]
    facts = {name: str(getattr(record.header, name)) for name in FACTS} | {"notes": "; ".join(notes)}
    if record.header.text is not None:
        facts["text"] = _held_out(record.header.text)[:8]
    if extensions:
        facts["extended"] = str(extensions[0].before)
    content = _content(folder / "config.yaml")
    settings = _settings(content)
    measured = max((entry["step"] for entry in record.rows if entry["split"] == "test" and entry["step"]), default=None)
    # Training with `stop_when_solved` may end at any step; otherwise a test before the last step is of a checkpoint.
    if measured not in (None, record.header.steps) and settings.get("train.stop_when_solved", "None") == "None":
        facts["measured"] = str(measured)
    evaluation = {key: x for key, x in (content.get("eval") or {}).items() if key not in HOW_PRECISELY}
    return Run(folder, record, facts | settings, name, dict(_flatten("eval", evaluation)))


def pool(runs: Sequence[Run]) -> list[Line]:
    """Groups runs of one recipe; a seed that occurs twice in a group sets its runs apart, each under its own name."""
    groups = grouped(((run.name, tuple(sorted(run.recipe.items()))), run) for run in runs)
    first = [group[0] for group in groups.values()]
    labels = _told_apart(first, [_label(run, runs) for run in first])
    lines = []
    for label, group in zip(labels, groups.values(), strict=True):
        # Runs without seeds count as one seed: repeating a deterministic run adds no evidence.
        seeds = [seed for run in group for seed in run.seeds or [None]]
        if len(set(seeds)) < len(seeds) or labels.count(label) > 1:
            namesakes = [
                run for other, alike in zip(labels, groups.values(), strict=True) if other == label for run in alike
            ]
            lines += [Line(f"{label} · {_own_name(run, namesakes)}", [run]) for run in group]
        else:
            lines.append(Line(label, group))
    return lines


def _label(run: Run, runs: Sequence[Run]) -> str:
    return (_described(run, runs) if run.name is None else run.name) + _budget(run, runs)


def _told_apart(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """The labels of runs of several recipes, longer where several have the same: by more of what differs there."""
    longer = []
    for run, label in zip(runs, labels, strict=True):
        alike = [other for other, same in zip(runs, labels, strict=True) if same == label]
        differing = _distinct(run, alike) if run.name is None and len(alike) > 1 else []
        longer.append(" · ".join([label, *differing]))
    return longer


def _own_name(run: Run, namesakes: Sequence[Run]) -> str:
    """The run's name; where others have it too, as much of the end of its folder's path as tells it from theirs."""
    others = [other for other in namesakes if other is not run and other.header.run == run.header.run]
    if not others:
        return run.header.run
    parts, taken = run.folder.resolve().parts, [other.folder.resolve().parts for other in others]
    ends = (parts[-depth:] for depth in range(1, len(parts)))
    return "/".join(next((end for end in ends if all(other[-len(end) :] != end for other in taken)), parts))


def _budget(run: Run, runs: Sequence[Run]) -> str:
    """The end of a label: the training steps, if they differ between runs or were raised; the step of a checkpoint."""
    extended, measured, steps = run.recipe.get("extended"), run.recipe.get("measured"), run.header.steps
    at = "" if measured is None else f" · at step {int(measured):,}"
    budgets = {other.header.steps for other in runs}
    if steps is None or (len(budgets) == 1 and extended is None):
        return at
    return f" · {steps:,} steps" + ("" if extended is None else f", first {int(extended):,}") + at


def _described(run: Run, runs: Sequence[Run]) -> str:
    """The model's name, with some of what sets this run apart from others of the same model."""
    namesakes = [other for other in runs if other.header.model == run.header.model]
    return " · ".join([run.header.model, *_distinct(run, namesakes)[:SETTINGS_IN_LABEL]])


def _distinct(run: Run, namesakes: Sequence[Run]) -> list[str]:
    """The settings that set this run apart from namesakes, as a label has them."""
    settings = sorted({name for other in namesakes for name in other.recipe if name not in BUDGET})
    differing = [name for name in settings if len({other.recipe.get(name) for other in namesakes}) > 1]
    # The configuration explains the facts: `task.length` says why `train_length` differs.
    names = [name for name in differing if "." in name] or differing
    # A label omits settings that are not set: the labels of runs that set them have them.
    values = [(name, run.recipe[name]) for name in names if run.recipe.get(name, "None") not in ("", "None")]
    return [value if name == "notes" else f"{name.rpartition('.')[2]}={value}" for name, value in values]


def _content(config: Path) -> dict[str, Any]:
    """What `config.yaml` has, by the names of today; empty without the file."""
    try:
        saved = studies.content(config)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{config} cannot be read: {first_line(error)}") from error
    if saved is None:
        return {}
    if not isinstance(saved, dict):
        raise UserError(f"{config} is no run's configuration: it is a list")
    return renamed(saved)


def _settings(content: dict[str, Any]) -> dict[str, str]:
    """What a configuration sets in the sections that decide the outcome, by dotted name."""
    if isinstance(content.get("train"), dict):
        content = {**content, "train": {**LATER, **content["train"]}}
    settings = [pair for section in SECTIONS if section in content for pair in _flatten(section, content[section])]
    return {name: value for name, value in settings if name not in CADENCE}


def _flatten(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [pair for key in value for pair in _flatten(f"{name}.{key}", value[key])]
    # A list as it is typed: it may stand in a label.
    return [(name, f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value))]


def notes_of(lines: Sequence[Line]) -> list[str]:
    """Notes on differences between the lines, then the notes that all lines share, then those of some lines."""
    notes = []
    known = ((line.label, line.header.text) for line in lines if line.header.text)
    texts = grouped((_held_out(text), label) for label, text in known)
    if len(texts) > 1:
        names = "; ".join(map(", ".join, texts.values()))
        notes.append(f"The held-out texts differ, so the lines do not compare: {names}.")
    for name, fact in COMPARED:
        values = {line.label: getattr(line.header, fact) for line in lines}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{label} {_show(value)}" for label, value in values.items())
            notes.append(f"The {name} differs: {shown}.")
    if len({line.header.steps for line in lines}) > 1:  # the labels say how many
        notes.append("The number of training steps differs.")
    notes += [*_other_tasks(lines), *_other_evaluations(lines)]
    shared = [note for note in lines[0].header.notes if all(note in line.header.notes for line in lines)]
    own = grouped((note, line.label) for line in lines for note in line.header.notes if note not in shared)
    return [*notes, *shared, *(f"{', '.join(labels)}: {note}" for note, labels in own.items())]


def _other_tasks(lines: Sequence[Line]) -> Iterator[str]:
    """Notes on settings of one task that differ between lines whose labels do not have them."""
    recipes = [line.runs[0].recipe for line in lines]
    if len({recipe.get("task._target_") for recipe in recipes}) > 1:
        return
    for name in sorted({name for recipe in recipes for name in recipe if name.partition(".")[0] in MEASURED_ON}):
        values = [recipe.get(name, "None") for recipe in recipes]
        short = name.rpartition(".")[2]
        told = all(f" {short}={value}" in line.label for line, value in zip(lines, values, strict=True))
        if len(set(values)) > 1 and not told and name not in TOLD:
            shown = ", ".join(f"{line.label} {value}" for line, value in zip(lines, values, strict=True))
            yield f"{name} differs: {shown}."


def _other_evaluations(lines: Sequence[Line]) -> Iterator[str]:
    """Notes on settings of the evaluation that differ between runs, those of one line among them."""
    runs = [(line.label, run.measures) for line in lines for run in line.runs if run.measures]
    for name in sorted({name for _, measures in runs for name in measures}):
        values = grouped((measures.get(name, "None"), label) for label, measures in runs)
        if len(values) > 1:
            shown = "; ".join(f"{value} for {', '.join(dict.fromkeys(labels))}" for value, labels in values.items())
            yield f"{name} differs, so what is measured is not the same: {shown}."


def _held_out(text: Mapping[str, Any]) -> str:
    """The digest of the texts that a run was tested on."""
    return str(text.get("held_out", text["digest"]))


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
            by_reason.setdefault(reason, {})[document or (metric if length is None else f"{length:,}")] = None
    return [f"not run ({reason}): {'; '.join(names)}" for reason, names in by_reason.items()]


def _show(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "unknown"
    return f"{value:,.3g}" if isinstance(value, float) else f"{value:,}"

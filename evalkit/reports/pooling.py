"""Which runs are repetitions of one another: they differ in nothing but the seed, and become one line of a figure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from evalkit.core.errors import UserError
from evalkit.core.rows import FILE, Row, read
from evalkit.record.moved import renamed
from evalkit.reports.accuracy.summary import Curve, extrapolation_curve, learning_curve, probe_lengths, summarise

FACTS = ("model", "preset", "train_length", "window", "steps", "chance", "parameters")
# Sections of config.yaml that decide what a run computes; how often it logs does not.
SECTIONS = ("task", "model", "train", "matmul_precision")
CADENCE = ("train.log_every", "train.eval_every", "train.checkpoint_every", "train.keep_every")
SHOWN = 3


@dataclass(frozen=True)
class Run:
    """One run's folder, rows and summary, and the recipe that tells it from others: dotted name to value.

    `name`: what it is called; null: after its model, and what sets it apart from others.
    """

    folder: Path
    rows: Sequence[Row]
    summary: Mapping[str, Any]
    recipe: Mapping[str, str]
    name: str | None = None

    @property
    def seeds(self) -> str:
        """The run's seeds, as text."""
        return ", ".join(str(seed["seed"]) for seed in self.summary["seeds"])


@dataclass(frozen=True)
class Line:
    """Runs of one recipe, with disjoint seeds: one line of a figure, one row of the table."""

    label: str
    runs: Sequence[Run]

    @property
    def seeds(self) -> list[Mapping[str, Any]]:
        """The summary of each seed."""
        return [seed for run in self.runs for seed in run.summary["seeds"]]

    @property
    def accuracy(self) -> dict[int, list[float]]:
        """Test accuracies, one a seed, by length."""
        found: dict[int, list[float]] = {}
        for record in (record for run in self.runs for record in run.summary["extrapolation"]):
            if record["accuracy"] is not None:
                found.setdefault(record["length"], []).append(record["accuracy"])
        return found

    @property
    def not_run(self) -> list[int]:
        """Lengths that no run of the line measured, and at least one left out with a reason."""
        skipped = {entry["length"] for run in self.runs for entry in run.summary["not_run"]}
        return sorted(skipped - set(self.accuracy))

    def extrapolation(self) -> Curve:
        """Accuracy against length, seeds pooled."""
        return Curve(self.label, _merged(extrapolation_curve(run.rows) for run in self.runs), self.not_run)

    def learning(self, length: int | None = None) -> Curve:
        """Accuracy against training step, seeds pooled, at `length` (by default the training length)."""
        return Curve(self.label, _merged(learning_curve(run.rows, length) for run in self.runs))

    @property
    def probes(self) -> list[int]:
        """The lengths beside the training length that every run of the line looked at while training."""
        return sorted(set.intersection(*(set(probe_lengths(run.rows)) for run in self.runs)))


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders among and below `paths`, each once, in order.

    Raises `UserError` naming a path that holds no run.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        folders = [path] if (path / FILE).is_file() else sorted(file.parent for file in path.rglob(FILE))
        if not folders:
            raise UserError(f"no {FILE} in or below {path}: give folders of runs (runs/<task>/<model>/<timestamp>)")
        for folder in folders:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def load(folder: Path, name: str | None = None) -> Run:
    """Reads one run. Raises `UserError` if it has no rows."""
    rows = read(folder)
    if not rows:
        raise UserError(f"{folder / FILE} holds no rows: that run stopped before its first measurement")
    summary = summarise(rows)
    facts = {name: str(summary[name]) for name in FACTS} | {"notes": "; ".join(summary["notes"])}
    return Run(folder, rows, summary, facts | _settings(folder / "config.yaml"), name)


def pool(runs: Sequence[Run]) -> list[Line]:
    """Groups runs of one recipe; a seed that occurs twice in a group sets its runs apart, each under its own name."""
    groups: dict[tuple[str | None, tuple[tuple[str, str], ...]], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.name, tuple(sorted(run.recipe.items()))), []).append(run)
    labels = [_label(group[0], runs) for group in groups.values()]
    lines = []
    for label, group in zip(labels, groups.values(), strict=True):
        if _seeds_repeat(group) or labels.count(label) > 1:
            lines += [Line(f"{label} · {run.summary['run']}", [run]) for run in group]
        else:
            lines.append(Line(label, group))
    return lines


def _label(run: Run, runs: Sequence[Run]) -> str:
    """The model's name, with what sets this run apart from others of the same model."""
    if run.name is not None:
        return run.name
    namesakes = [other for other in runs if other.summary["model"] == run.summary["model"]]
    settings = sorted({name for other in namesakes for name in other.recipe})
    differing = [name for name in settings if len({other.recipe.get(name) for other in namesakes}) > 1]
    # The configuration explains the facts: `train.steps` says why `steps` differs.
    told = [name for name in differing if "." in name] or differing
    distinct = [_setting(name, run.recipe[name]) for name in told if run.recipe.get(name)]
    return " · ".join([str(run.summary["model"]), *distinct[:SHOWN]])


def _setting(name: str, value: str) -> str:
    return value if name == "notes" else f"{name.rpartition('.')[2]}={value}"


def _seeds_repeat(group: Sequence[Run]) -> bool:
    seeds = [seed["seed"] for run in group for seed in run.summary["seeds"]]
    return len(set(seeds)) < len(seeds)


def _settings(config: Path) -> dict[str, str]:
    """What `config.yaml` sets in the sections that decide the outcome, by dotted name; empty without the file."""
    if not config.is_file():
        return {}
    content = renamed(OmegaConf.to_container(OmegaConf.load(config)))
    assert isinstance(content, dict)
    settings = [pair for section in SECTIONS if section in content for pair in _flatten(section, content[section])]
    return {name: value for name, value in settings if name not in CADENCE}


def _flatten(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [pair for key in value for pair in _flatten(f"{name}.{key}", value[key])]
    return [(name, str(value))]


def _merged(curves: Iterable[Curve]) -> dict[int, Any]:
    return {seed: points for curve in curves for seed, points in curve.seeds.items()}

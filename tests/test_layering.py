"""Who may import whom: one table of rooms, held by every import and by every name that `conf/` gives to Hydra."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A room imports rooms on lower floors alone: never upward, never one on its own floor.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("evalkit.numerics", "evalkit.platforms"),
    ("evalkit.checks", "evalkit.disk", "evalkit.parallel"),
    ("evalkit.kernels.matrix", "evalkit.tasks.text"),
    ("evalkit.kernels", "evalkit.tasks"),
    ("evalkit.models.layers", "evalkit.tasks.mad"),
    ("evalkit.models.mixers",),
    ("evalkit.models",),
    ("evalkit.models.formats",),
    ("evalkit.core",),
    ("evalkit.parallel.layouts",),
    ("evalkit.training", "evalkit.inference", "evalkit.record"),
    ("evalkit.reports",),
    ("evalkit.evaluations",),
    (
        "evalkit.evaluations.downstream",
        "evalkit.evaluations.extrapolation",
        "evalkit.evaluations.needle",
        "evalkit.evaluations.phonebook",
        "evalkit.evaluations.recall",
        "evalkit.evaluations.remembrance",
        "evalkit.evaluations.text",
    ),
    ("evalkit.evaluations.downstream.tasks", "evalkit.evaluations.during"),
    ("evalkit.configuration", "evalkit.reports.suite", "evalkit.claims"),
    ("evalkit.checkpoints", "evalkit.contract"),
    ("evalkit.session", "evalkit.bench"),
    ("evalkit.lm_eval",),
    ("evalkit.commands",),
    ("evalkit",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# Pairs that never meet, whatever their floors: what is measured knows no model, and a model no task.
APART = {("evalkit.models", "evalkit.tasks"), ("evalkit.core", "evalkit.kernels")}
NAME = r"evalkit(\.\w+)+"
OLD_NAMES = "evalkit.core.moved"
"""The one table of names that may point upward: what older runs call things, and what these are called now."""
NEVER = {
    "evalkit.kernels": {"flax", "optax", "orbax", "hydra", "omegaconf", "wandb", "rich", "matplotlib"},
    "evalkit.models": {"optax", "hydra", "omegaconf", "wandb", "rich", "matplotlib"},
    "evalkit.tasks": {"flax", "optax", "orbax", "hydra", "omegaconf", "wandb", "rich", "matplotlib"},
}
"""Libraries that a package never imports; the rooms of `evalkit/` never import Flax."""
SHARED = {
    "evalkit.models",
    "evalkit.models.build",
    "evalkit.tasks",
    "evalkit.tasks.needle",
    "evalkit.tasks.phonebook",
    "evalkit.tasks.text",
    "evalkit.tasks.text.corpus",
    "evalkit.tasks.text.documents",
    "evalkit.tasks.text.tokenizers",
    "evalkit.models.formats.export",
    "evalkit.models.formats.released",
}
"""The modules of tasks and models that the rooms of `evalkit/` may take by name."""


def room_of(module: str) -> str:
    """The innermost room that a module, or a name in it, lies in."""
    while module not in FLOOR:
        module = module.rpartition(".")[0]
    return module


@cache
def files() -> dict[str, Path]:
    """Every module of the four packages by its dotted name."""
    found = {}
    for folder in ("evalkit", "kernels", "models", "tasks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                parts = path.relative_to(ROOT).with_suffix("").parts
                name = ".".join(parts if parts[0] == "evalkit" else ("evalkit", *parts)).removesuffix(".__init__")
                found[name] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports, wherever in it; a name in a string that is handed around is one too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in files() or whole in FLOOR else str(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(NAME, node.value):
            yield from (
                [node.value] if {node.value, node.value.rpartition(".")[0]} & (set(files()) - {"evalkit"}) else []
            )


def targets() -> list[str]:
    """Every name that a YAML in `conf/` gives to Hydra to build."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "conf").rglob("*.yaml")))
    return sorted(set(re.findall(r"_target_: ([\w.]+)", text)))


def refusals() -> Iterator[str]:
    arrows = [(name, imported) for name, path in files().items() if name != OLD_NAMES for imported in imports(path)]
    arrows += [("evalkit.configuration", target) for target in targets()]  # which is who asks Hydra to build them
    for name, imported in arrows:
        if not imported.startswith("evalkit") or name == imported or imported == "evalkit":
            continue
        here, there = room_of(name), room_of(imported)
        if here != there and FLOOR[there] >= FLOOR[here]:
            yield f"{name} (floor {FLOOR[here]}) imports {imported} (floor {FLOOR[there]})"
        if any(here.startswith(one) and there.startswith(other) for one, other in APART):
            yield f"{name} imports {imported}, which it is to know nothing of"


def test_every_file_is_in_a_room() -> None:
    folders = {str(path.parent.relative_to(ROOT)) for path in files().values()}
    rooms = {room.removeprefix("evalkit.").replace(".", "/") for room in FLOOR}
    for folder in folders:
        assert folder.removeprefix("evalkit/") in rooms, f"{folder} is no room; give it a floor in FLOORS"


def test_a_room_imports_lower_floors_alone_through_conf_too() -> None:
    assert list(refusals()) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Within a room neither, and not by an import inside a function."""
    known = {name: path for name, path in files().items() if name != OLD_NAMES}
    arrows = {name: {found for found in imports(path) if found in known} - {name} for name, path in known.items()}
    assert len(list(TopologicalSorter(arrows).static_order())) == len(known)  # CycleError names the circle


def test_packages_know_nothing_of_what_is_not_theirs() -> None:
    for name, path in files().items():
        root = ".".join(name.split(".")[:2])
        foreign = NEVER.get(root, {"flax"} if name.startswith("evalkit") else set())
        assert not foreign & {found.split(".")[0] for found in imports(path)}, name


def test_evalkit_names_no_concrete_task_or_mixer() -> None:
    """Tasks and models reach it through `conf/`; other projects' files have two doors, `released` and `export`."""
    for name, path in files().items():
        if not name.startswith(("evalkit.models", "evalkit.tasks", OLD_NAMES)):
            used = {found for found in imports(path) if found.startswith(("evalkit.models", "evalkit.tasks"))}
            assert used <= SHARED, (name, used - SHARED)


def test_what_is_text_is_decided_in_one_place() -> None:
    asked = [name for name, path in files().items() if re.search(r"isinstance\(.*\bText\b", path.read_text())]
    assert len(asked) <= 2, asked


def test_reports_measure_nothing() -> None:
    """A report is made from rows, so it needs neither JAX nor the module that measured them."""
    for name, path in files().items():
        if name.startswith("evalkit.reports") or name.endswith((".report", ".summary", ".curves", ".costs", ".rows")):
            used = set(imports(path))
            measured = [module for module in used if module.endswith(".measure") or module.split(".")[0] == "jax"]
            assert measured == [], name


def test_the_packages_have_one_name() -> None:
    """A bare `models` is never imported: in a user's folder that name is the user's own."""
    for path in files().values():
        for imported in imports(path):
            assert imported.split(".")[0] not in ("models", "tasks", "kernels"), path


@pytest.mark.slow
@pytest.mark.exhaustive
def test_no_module_imports_another_package_of_that_name() -> None:
    code = (
        "import sys, pkgutil, evalkit\n"
        "for found in pkgutil.walk_packages(evalkit.__path__, 'evalkit.'):\n"
        "    if not found.name.startswith(('evalkit.evaluations.downstream.tasks', 'evalkit.__main__')):\n"
        "        __import__(found.name)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('models', 'tasks', 'kernels')])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_importing_evalkit_needs_no_jax() -> None:
    code = (
        "import sys, evalkit; print([name for name in ('jax', 'flax', 'hydra', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_importing_kernels_is_light() -> None:
    """Nothing but JAX is loaded, and of JAX no Pallas: a plain scan must not pay for kernels that it does not use."""
    heavy = ["flax", "optax", "orbax", "hydra", "wandb", "matplotlib", "jax.experimental.pallas"]
    code = f"import sys, evalkit.kernels; print(*[name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert loaded.stdout.split() == []

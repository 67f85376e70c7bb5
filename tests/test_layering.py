"""Who may import whom: the table in `docs/architecture.md`, held by reading the imports of every file."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("kernels", "models", "tasks", "evalkit")
MAY_IMPORT = {
    "kernels": {"kernels"},
    "models": {"models", "kernels"},
    "tasks": {"tasks"},
    "evalkit": {"evalkit", "models", "tasks", "kernels"},
}
NEVER = {
    "kernels": {"flax", "optax", "orbax", "hydra", "omegaconf", "wandb", "rich", "matplotlib"},
    "models": {"optax", "hydra", "omegaconf", "wandb", "rich", "matplotlib"},
    "tasks": {"flax", "optax", "orbax", "hydra", "omegaconf", "wandb", "rich", "matplotlib"},
    "evalkit": {"flax"},
}
# What `evalkit` may take by name: the type that every task gives, the text that lm-eval's task is made of, tokenizers,
# and the doors to other projects' files, behind which `models` decides what is there. The rest reaches it through
# `conf/`.
TOKENIZERS = {"Bytes", "Numbers", "SentencePiece", "Tokenizer", "TokenizerJson", "WithoutBos"}
SHARED = {
    "tasks.Example",
    "evalkit.tasks.phonebook.Phonebook",
    "evalkit.models.formats.export",
    "evalkit.models.formats.released",
} | {f"evalkit.tasks.text.tokenizers.{name}" for name in TOKENIZERS}


def imported(source: str) -> Iterator[str]:
    """The dotted name of everything that the code imports from other packages, wherever in the file it does so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(package: str) -> list[tuple[str, str]]:
    """(file, dotted name) of every import in the package."""
    return [
        (str(path.relative_to(ROOT)), name)
        for path in files(package)
        for name in imported(path.read_text(encoding="utf-8"))
    ]


def test_imports_are_read_wherever_they_stand() -> None:
    source = "import a.b as c\ndef f():\n    from d.e import g, h\n    from . import i\n"
    assert set(imported(source)) == {"a.b", "d.e.g", "d.e.h"}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_has_files(package: str) -> None:
    assert files(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_lies_below_them(package: str) -> None:
    others = set(PACKAGES) - MAY_IMPORT[package]
    wrong = [f"{file} imports {name}" for file, name in imports(package) if name.split(".")[0] in others]
    assert not wrong, f"{package} may import {sorted(MAY_IMPORT[package])}"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_know_nothing_of_what_is_not_theirs(package: str) -> None:
    wrong = [f"{file} imports {name}" for file, name in imports(package) if name.split(".")[0] in NEVER[package]]
    assert not wrong, f"{package} may not know {sorted(NEVER[package])}"


def test_evalkit_names_no_concrete_task_or_mixer() -> None:
    wrong = [
        f"{file} imports {name}"
        for file, name in imports("evalkit")
        if name.split(".")[0] in ("tasks", "models") and name not in SHARED
    ]
    assert not wrong, f"evalkit may take {sorted(SHARED)}; tasks and models reach it through conf/"


def test_importing_kernels_is_light() -> None:
    """Nothing but JAX is loaded, and of JAX no Pallas: a plain scan must not pay for kernels that it does not use."""
    heavy = ["flax", "optax", "orbax", "hydra", "wandb", "matplotlib", "jax.experimental.pallas"]
    code = f"import sys, kernels; print(*[name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert loaded.stdout.split() == []

"""Every package that the code imports is declared in `pyproject.toml`, so that none is there by chance."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"evalkit", "kernels", "models", "tasks", "support", *(file.stem for file in (ROOT / "benchmarks").glob("*.py"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = packages_distributions()


def canonical(requirement: str) -> str:
    """The name of a distribution, without version and extras."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement)[0]).lower()


REQUIRED = {canonical(one) for one in PROJECT["dependencies"]}
OPTIONAL = {canonical(one) for extra in PROJECT["optional-dependencies"].values() for one in extra}


def imports(node: ast.AST, deferred: bool = False) -> Iterator[tuple[str, bool]]:
    """The top-level name of each import, and whether it stands inside a function, where it may be an extra's."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name.split(".")[0], deferred) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module:
            yield child.module.split(".")[0], deferred
        yield from imports(child, deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def undeclared(folder: str, everywhere: set[str], in_functions: set[str]) -> list[str]:
    """The imports below `folder` of distributions that are in neither set, as far as each applies."""
    found = set()
    for file in sorted((ROOT / folder).rglob("*.py")):
        for name, deferred in imports(ast.parse(file.read_text(encoding="utf-8"))):
            allowed = everywhere | in_functions if deferred else everywhere
            # An extra that is not installed here goes by the name that it is imported by.
            owners = {canonical(owner) for owner in DISTRIBUTIONS.get(name, [name])}
            if name not in sys.stdlib_module_names and name not in OURS and not owners & allowed:
                found.add(f"{file.relative_to(ROOT)} imports {name}, of {', '.join(sorted(owners))}")
    return sorted(found)


@pytest.mark.parametrize("package", ["kernels", "models", "tasks", "evalkit"])
def test_what_is_imported_is_declared(package: str) -> None:
    assert undeclared(package, REQUIRED, OPTIONAL) == []


def test_what_the_tests_import_is_declared() -> None:
    assert undeclared("tests", REQUIRED | OPTIONAL, set()) == []


def test_an_import_in_a_function_is_told_from_one_at_the_top() -> None:
    source = "import a.b\nif x:\n    from c import d\ndef f():\n    import e\n    from . import g\n"
    assert list(imports(ast.parse(source))) == [("a", False), ("c", False), ("e", True)]


PAGE = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
TOLD = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in PAGE.splitlines() if line.startswith("| ")}
# What packages call in other words than SPDX's.
SPDX = dict.fromkeys(("Apache", "Apache 2.0", "Apache 2.0 License"), "Apache-2.0")
OF_CLASSIFIERS = {"Apache Software License": "Apache-2.0", "BSD License": "BSD-3-Clause", "MIT License": "MIT"}


def licence(package: str) -> str | None:
    """What an installed package says of its licence, None if it is not here or says it in another way."""
    try:
        about = metadata(package)
    except PackageNotFoundError:
        return None
    said = about.get("License-Expression") or about.get("License") or ""
    classified = [text.rpartition(":: ")[2] for text in about.get_all("Classifier") or [] if text.startswith("License")]
    short = (
        said
        if said not in ("", "UNKNOWN") and "\n" not in said and len(said) < 60
        else OF_CLASSIFIERS.get(" ".join(classified))
    )
    return None if short is None else SPDX.get(short, short)


def test_the_page_names_every_dependency_and_no_other() -> None:
    names = set(TOLD) - {"package"}
    assert names == (REQUIRED | OPTIONAL) - {"griffin-evalkit"}
    first = PAGE.partition("## Extras")[0]
    assert {name for name in names if f"| {name} |" in first} == REQUIRED


def test_the_page_says_the_licence_that_the_package_says() -> None:
    said = {name: licence(name) for name in TOLD}
    assert sum(found is not None for found in said.values()) > 20
    assert {name: found for name, found in said.items() if found is not None and found != TOLD[name]} == {}

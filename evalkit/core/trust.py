"""Whose code a dotted name of a configuration runs: evalkit's own, or that of a package which the user has named."""

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evalkit.core.errors import UserError, typed_path
from evalkit.disk.places import kept_below

OURS = "evalkit"
BUILD = "evalkit.models.build"
"""The one function of evalkit's that a configuration may name."""
OPTAX, OPTIMIZERS = "optax", ("train.optimizer", "train.average")
"""A package that counts as ours, but only below these keys, which name optimisers."""
FILE = "evalkit/named.jsonl"


def package_of(target: str) -> str:
    """The package that a dotted name begins with.

    >>> package_of("mine.running_sum.RunningSum")
    'mine'
    """
    return target.partition(".")[0]


def nodes(content: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping of plain data that has a `_target_`, at any depth, with its dotted key."""
    if isinstance(content, Mapping):
        if "_target_" in content:
            yield path, content
        for name, value in content.items():
            yield from nodes(value, f"{path}.{name}" if path else str(name))
    elif isinstance(content, list | tuple):
        for index, value in enumerate(content):
            yield from nodes(value, f"{path}[{index}]")


def strangers(content: Any) -> dict[str, str]:
    """Each `_target_` of plain data that is neither evalkit's nor an optimiser of Optax, by its dotted key."""
    targets = {path: str(node["_target_"]) for path, node in nodes(content)}
    known = {path: (OURS, OPTAX) if path.startswith(OPTIMIZERS) else (OURS,) for path in targets}
    return {path: target for path, target in targets.items() if package_of(target) not in known[path]}


def code_of(content: Any) -> dict[str, str]:
    """The SHA-256 of each module file that a `_target_` of plain data names, by module, without evalkit's own."""
    found = {}
    for target in strangers(content).values():
        name = target.rpartition(".")[0]
        while name and name not in sys.modules:
            name = name.rpartition(".")[0]
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and Path(file).is_file():
            found[name] = sha256(Path(file).read_bytes()).hexdigest()
    return found


def refuse_unnamed(content: Any, packages: Iterable[str], where: str = "") -> None:
    """Raises UserError for a `_target_` of a package that is neither evalkit nor among `packages`.

    A target that the user named before counts as named if its package is still at the same place. This check imports
    nothing. It accepts a package that does not exist, since importing it gives an error anyway.
    """
    known, remembered = frozenset(packages), _remembered()
    for path, target in strangers(content).items():
        package = package_of(target)
        if package not in known and _is_there(package) and (target, _place(package)) not in remembered:
            raise UserError(
                f"{where}{path}._target_={target} would run code of the package {package}, which you have not named; "
                f"if you trust it, give allow_targets=[{package}], or --config-dir with a folder whose YAML names it"
            )


def imported(target: str) -> Any:
    """What a dotted name leads to; its modules are imported, and an error of one of them is raised as it is.

    Raises ImportError where the way to something other than a class or function leads through another package's
    module: an object without a name of its own would count as the package's, such as a C function of
    `optax.assignment.jax.….ctypes`.
    """
    name, *rest = target.split(".")
    part = import_module(name)
    while rest:
        inner = f"{name}.{rest[0]}"
        try:
            part = import_module(inner)
        except ModuleNotFoundError as error:
            if error.name != inner:
                raise
            break
        name = inner
        rest.pop(0)
    others = []
    for attribute in rest:
        part = getattr(part, attribute)
        if inspect.ismodule(part) and package_of(part.__name__) != package_of(target):
            others.append(part.__name__)
    if others and not _has_name(part):
        raise ImportError(f"it is of another package, {others[-1]}; name it where it is defined")
    return part


def refuse_borrowed(target: str, path: str, found: Callable[..., Any], parts: Iterable[str]) -> None:
    """Raises UserError if `found`, which `target` leads to, is of another package, or of evalkit and no part of a run.

    `parts` are the modules of evalkit whose classes a configuration may name.

    So `mine.mixers.os.system` is not taken for something of `mine`.
    """
    named = _has_name(found)
    home = str(getattr(found, "__module__", None)) if named else package_of(target)
    name = documented(found) if named else target
    if package_of(home) != package_of(target):
        raise UserError(f"{path}._target_={target} is of another package; name it where it is defined, as {name}")
    if package_of(target) != OURS:
        return
    is_part = inspect.isclass(found) and any(home == part or home.startswith(f"{part}.") for part in parts)
    if name != BUILD and not is_part:
        raise UserError(
            f"{path}._target_={target} is no part of a run; name a task, a model, a mixer, an evaluation or settings"
        )
    if target != name:
        raise UserError(f"{path}._target_={target} is called {name} in configurations; give that name")


def documented(found: Callable[..., Any]) -> str:
    """The name of a class or function that documents use: the shortest package that has it, or else its module.

    >>> documented(documented)
    'evalkit.core.trust.documented'
    """
    home, name = str(getattr(found, "__module__", None)), found.__qualname__
    parts = home.split(".")
    packages = (".".join(parts[:length]) for length in range(2, len(parts)))
    of = next((one for one in packages if vars(sys.modules.get(one, object)).get(name) is found), home)
    return f"{of}.{name}"


def refuse_unnamed_kind(kind: str) -> None:
    """Raises UserError for a kind of report that is none of evalkit's and of a package that the user did not name.

    A package that this process has already imported is accepted: it runs no new code.
    """
    package = package_of(kind)
    if (package == OURS and kind.endswith(".report")) or (package in sys.modules and package != OURS):
        return
    if _is_there(package) and (kind, _place(package)) not in _remembered():
        raise UserError(
            f"the kind of report {kind!r} would run code of the package {package}, which you have not named; "
            f"if you trust it, evaluate the run again with allow_targets=[{package}]"
        )


def remember(targets: Iterable[str]) -> None:
    """Keeps that the user named these dotted names, each with the place of its package, for later commands."""
    _keep((target, _place(package_of(target))) for target in targets if package_of(target) != OURS)


def refuse_elsewhere(run: Path, written: Mapping[str, str], given: Iterable[str]) -> None:
    """Raises UserError if a saved `run` would write into a folder outside its own that the user never gave.

    `written` has the run's folders by their keys, and `given` the keys that the user types now. Links are followed.
    """
    typed, inside = frozenset(given), run.absolute().resolve()
    for path in run.iterdir() if run.is_dir() else ():
        if path.is_symlink() and not path.is_dir() and not path.resolve().is_relative_to(inside):
            raise UserError(f"{path} leads to {path.resolve()}, outside of the run's folder; put the file itself there")
    for key, folder in written.items():
        place = typed_path(folder).resolve()
        if key not in typed and not place.is_relative_to(inside) and (key, str(place)) not in _remembered():
            raise UserError(
                f"{run / 'config.yaml'}: {key}={folder} is outside of the run's folder, and you have never given it; "
                f"write null there, or give {key}=FOLDER"
            )


def remember_folders(written: Mapping[str, str]) -> None:
    """Keeps that the user gave these folders to write into, by their keys."""
    _keep((key, str(typed_path(folder).resolve())) for key, folder in written.items())


def _has_name(found: Any) -> bool:
    """Whether an object says itself where it is defined."""
    return inspect.isclass(found) or inspect.isroutine(found)


def _file() -> Path:
    """The file of what the user has named so far: outside of all runs, since a stranger's run may say anything."""
    return kept_below("XDG_STATE_HOME", "~/.local/state") / FILE


def _remembered() -> frozenset[tuple[str, str | None]]:
    found = set()
    with suppress(OSError, ValueError):  # of a user without a home there is none
        for line in _file().read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError):
                name, place = json.loads(line)
                found.add((name, place))
    return frozenset(found)


def _keep(pairs: Iterable[tuple[str, str | None]]) -> None:
    """Appends what is new; where that cannot be written, the user names it again the next time."""
    known = _remembered()
    new: Sequence[tuple[str, str]] = [(name, place) for name, place in pairs if place and (name, place) not in known]
    if not new:
        return
    with suppress(OSError, ValueError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with _file().open("a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(pair)}\n" for pair in dict.fromkeys(new)))


def _is_there(package: str) -> bool:
    return package in sys.modules or _place(package) is not None


def _place(package: str) -> str | None:
    """Where a package would be imported from; None where it would not. Nothing is imported."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    return spec.origin or next(iter(spec.submodule_search_locations or ()), None)

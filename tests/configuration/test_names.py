"""What a configuration names is called as documents call it, and a layer stands where Flax finds it."""

from collections import UserDict, deque
from collections.abc import Callable
from typing import Any

import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.configuration import catalogue
from evalkit.configuration.schema import constructor
from evalkit.core.errors import UserError
from evalkit.core.moved import MOVED
from evalkit.core.trust import documented
from evalkit.models import build
from evalkit.models.layers import Linear

YAMLS = sorted(catalogue.directory().rglob("*.yaml"))
IN_YAML = {name for path in YAMLS for name in catalogue.TARGET.findall(path.read_text("utf-8"))}
NAMES = sorted(IN_YAML.union(MOVED.values()))
ATTRIBUTES = st.from_regex("[a-z]{1,8}", fullmatch=True).filter(lambda name: not hasattr(nnx.Module, name))
CONTAINERS: dict[str, tuple[Callable[..., Any], str]] = {
    "list": (list, "nnx.List"),
    "tuple": (tuple, "nnx.List"),
    "set": (set, "nnx.List"),
    "deque": (deque, "nnx.List"),
    "UserDict": (lambda layers: UserDict(enumerate(layers)), "nnx.Dict"),
    "dict": (lambda layers: dict(enumerate(layers)), "nnx.Dict"),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_documents_use_is_taken_and_any_other_of_the_same_refused_with_it(name: str) -> None:
    if ".downstream." in name:
        pytest.importorskip("lm_eval", reason="it cannot be imported where its files have no metadata")
    found = constructor({"_target_": name}, "task")
    assert documented(found) == name
    package, _, last = name.rpartition(".")
    others = {f"{found.__module__}.{last}", f"evalkit.{last}", f"evalkit.no_such_module.{last}", f"{package}.no.{last}"}
    others |= {old for old, new in MOVED.items() if new == name and old.startswith("evalkit.")}
    for other in others - {name}:
        with pytest.raises(UserError, match=f"{other} .*called {name}(;|$| )"):
            constructor({"_target_": other}, "task")


@pytest.mark.parametrize("kind", sorted(CONTAINERS))
@pytest.mark.parametrize("outer", [lambda inner: nnx.List([inner]), lambda inner: nnx.Dict({"0": inner})])
def test_a_container_of_python_within_one_of_flaxs_is_said_with_the_mixer(outer: Callable[..., Any], kind: str) -> None:
    made, wanted = CONTAINERS[kind]

    class Nested(nnx.Module):
        window = None

        def __init__(self, width: int, *, rngs: nnx.Rngs):
            self.layers = outer(made([Linear(width, width, rngs=rngs)]))

    mixers: Any = {"m": Nested}
    with pytest.raises(ValueError, match=rf"^Nested: '0' of an nnx\.\w+ is a plain {kind} of .*make it {wanted}\("):
        build(vocab_size=4, width=4, pattern=["m"], mixers=mixers)


@settings(max_examples=12, deadline=None)
@given(attribute=ATTRIBUTES, kind=st.sampled_from(sorted(CONTAINERS)), deep=st.booleans())
def test_layers_in_a_container_of_python_are_one_line_with_class_attribute_and_what_to_write(
    attribute: str, kind: str, deep: bool
) -> None:
    made, wanted = CONTAINERS[kind]

    class Inner(nnx.Module):
        window = None

        def __init__(self, width: int, *, rngs: nnx.Rngs):
            setattr(self, attribute, made([Linear(width, width, rngs=rngs)]))

    class Outer(nnx.Module):
        window = None

        def __init__(self, width: int, *, rngs: nnx.Rngs):
            self.inner = Inner(width, rngs=rngs)

    mixers: Any = {"m": Outer if deep else Inner}
    with pytest.raises(ValueError, match=rf"^Inner\.{attribute} is a plain {kind} of .*make it {wanted}\("):
        build(vocab_size=4, width=4, pattern=["m"], mixers=mixers)

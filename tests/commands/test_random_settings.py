"""A random value for any key that `--cfg job` shows: a step can be taken with it, or one line says why not."""

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from evalkit.checkpoints.loading import trainer_of
from evalkit.configuration.schema import completed
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError
from evalkit.session import run
from support import tiny
from support.words import leaves, typed

BASE = (*tiny.OVERRIDES, "train.steps=1")
# A longer run is no other question.
LONG = {"train.validation_sequences", "eval.sequences", "eval.long_sequences", "eval.during_sequences", "train.steps"}


def _shown() -> dict[str, Any]:
    plain = Spec.of(BASE).plain
    return {key: value for key, value in leaves(completed(plain)) if key != "wandb.mode"}


SHOWN = _shown()
ODD = [
    *(0, 1, 2, 3, 4, 8, 16, 32, 64, -1, 2**31, 2**32, 10**12, 0.0, 0.5, 1.0, 2.5, -0.1, 1e-30, 1e300),
    *(float("inf"), float("nan"), True, False, None, "", "x", "float32", "bfloat16", "constant", "json", "offline"),
    *([], [0], [1], [8, 16], ["a"], [None], [[1]], {}, {"a": 1}, "${nothing}", "${seed}", "a b", "é", "[", "'", "\\"),
]
VALUES: Any = st.one_of(
    st.sampled_from(ODD),
    st.integers(-3, 40),
    st.floats(width=32),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=6),
    st.lists(st.integers(-1, 20), max_size=3),
)


def _like(value: Any) -> Any:
    """Values of the type that a key has already, which are likelier to be taken."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, float):
        return st.floats(0, 4)
    if isinstance(value, list):
        return st.lists(st.sampled_from(value), max_size=4) if value else st.lists(st.integers(1, 64), max_size=3)
    return st.integers(1, 64) if isinstance(value, int) else st.none()


SETTINGS = st.sampled_from(sorted(SHOWN)).flatmap(
    lambda key: st.tuples(st.just(key), st.one_of(VALUES, _like(SHOWN[key]), _like(SHOWN[key])))
)


def built(key: str, value: Any) -> Spec | None:
    """The tiny run with this setting, built, None where it is refused in one line."""
    word = f"{key}={typed(value)}"
    try:
        spec = Spec.of([*BASE, word])
        _ = spec.experiment
        return spec
    except UserError as error:
        message = str(error)
        assert message and "\n" not in message and len(message) < 700, word
        return None


def a_step_or_a_line(key: str, value: Any) -> None:
    spec = built(key, value)
    if spec is not None:
        found = spec.experiment
        trainer_of(found).lower(trainer_of(found).training.stages(found.task.length)[0])


def every(examples: int) -> Any:
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )


@pytest.mark.slow
@given(SETTINGS)
@every(12)
def test_a_random_setting_is_a_step_or_a_line(setting: tuple[str, Any]) -> None:
    a_step_or_a_line(*setting)


@pytest.mark.exhaustive
@pytest.mark.slow
@given(SETTINGS)
@every(500)
def test_five_hundred_random_settings_are_a_step_or_a_line(setting: tuple[str, Any]) -> None:
    a_step_or_a_line(*setting)


@pytest.mark.exhaustive
@pytest.mark.slow
@given(key=st.sampled_from(sorted(set(SHOWN) - LONG)), value=st.integers(0, 20))
@example(key="eval.lengths", value=[16])
@example(key="eval.reset_every", value=1)
@every(15)
def test_a_random_setting_runs_to_its_end(tmp_path_factory: pytest.TempPathFactory, key: str, value: Any) -> None:
    spec = built(key, value)
    if spec is not None and max(spec.experiment.seeds, spec.experiment.task.length) < 100:
        try:
            assert run.start(spec.at(tmp_path_factory.mktemp("run") / "run")).exit_code == 0
        except UserError as error:
            assert "\n" not in str(error)

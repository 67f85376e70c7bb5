"""What W&B would refuse is refused before training, by the installed version's rules; what we make up always fits."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import wandb
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from wandb.errors import UsageError

from evalkit.core.contracts import SinkStart
from evalkit.core.errors import UserError
from evalkit.core.rows import Header
from evalkit.record import wandb_names
from evalkit.record.wandb import Wandb, check_before_several

pytestmark = pytest.mark.usefixtures("own_wandb")
TEXTS = st.text(max_size=20) | st.text("ab/:é\ud800 ", max_size=300)
FIELDS = {setting: name for setting, name in wandb_names.NAMES.items() if setting not in ("tags", "notes")}
AS_OFTEN = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fits(field: str, value: Any, longest: int) -> bool:
    """Whether W&B's package takes it, its server would for its length, and it can be sent at all."""
    try:
        wandb.Settings(**{field: value})
        "".join(value).encode()
    except (ValueError, UsageError):
        return False
    return all(len(text) <= longest for text in ([value] if isinstance(value, str) else value))


def refused(sink: Wandb) -> str | None:
    """The line with which it is refused before training; None where it is taken."""
    try:
        sink.check()
    except UserError as error:
        assert "\n" not in str(error)
        return str(error)
    return None


@AS_OFTEN
@given(setting=st.sampled_from(list(FIELDS)), value=TEXTS)
@example("project", "team/name")
@example("job_type", "j" * 65)
def test_a_name_is_taken_exactly_if_w_and_b_takes_it(setting: str, value: str) -> None:
    line = refused(Wandb(**{setting: value}))
    name = FIELDS[setting]
    is_fit = fits(name.field, value, name.longest)
    if setting == "entity":
        is_fit &= wandb_names.OF_ADDRESSES.isdisjoint(value)
    assert (line is None) == (is_fit or not value)
    assert line is None or line.startswith(f"wandb.{setting}=")


@AS_OFTEN
@given(tags=st.lists(TEXTS, max_size=3))
@example(["t" * 70])
def test_tags_are_taken_exactly_if_w_and_b_takes_them(tags: list[str]) -> None:
    assert (refused(Wandb(tags=tags)) is None) == fits("run_tags", tags, 64)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WANDB_MODE", "bogus"),
        ("WANDB_MODE", ""),
        ("WANDB_TAGS", "a,,b"),
        ("WANDB_PROJECT", "a/b"),
        ("WANDB_NAME", "n" * 129),
        ("WANDB_RUN_ID", "a/b"),
        ("WANDB_RUN_ID", "r" * 129),
        ("WANDB_RESUME", "perhaps"),
        ("WANDB_BASE_URL", "nowhere"),
        ("WANDB_FORK_FROM", "abc?_step=3"),
        ("WANDB_DIR", __file__),
        ("WANDB_INIT_TIMEOUT", "soon"),
    ],
)
def test_a_variable_that_w_and_b_refuses_is_named(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    line = refused(Wandb())
    assert line is not None and (variable in line or value in line)
    assert refused(Wandb(mode="disabled")) is None


@pytest.mark.parametrize("home", [None, "/proc/none", "/dev/null"])
def test_a_home_that_w_and_b_cannot_write_is_refused_before_training(
    home: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stages figures there, at the end of a run."""
    for variable in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "XDG_DATA_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    if home is None:
        monkeypatch.setattr("pwd.getpwuid", dict[int, Any]().__getitem__)
    else:
        monkeypatch.setenv("HOME", home)
    line = refused(Wandb())
    assert line is not None and "set HOME to a folder that you can write" in line
    assert refused(Wandb(mode="disabled")) is None


def test_a_folder_below_the_home_is_there_and_none_is_called_tilde(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_DIR", "~/variable")
    assert refused(Wandb(dir="~/setting")) is None
    assert {path.name for path in tmp_path.iterdir()} == {"home"}
    assert {"variable", "setting"} <= {path.name for path in (tmp_path / "home").iterdir()}


def test_a_variables_key_is_in_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", " " + "0123456789" * 4)
    line = refused(Wandb())
    assert line is not None and "0123" not in line and "WANDB_API_KEY" in line


@AS_OFTEN
@given(text=TEXTS, ending=st.text(max_size=8))
def test_what_is_made_up_always_fits_and_stays_apart(text: str, ending: str) -> None:
    made = wandb_names.cut(text, ending.encode("utf-8", "ignore").decode())
    assert fits("run_name", made, wandb_names.LONGEST)
    long = "x" * 200 + text
    assert wandb_names.cut(long) != wandb_names.cut(long + "y")


WORDS = ("online", "run", "shared", "offline", "dryrun", "disabled")


@pytest.mark.parametrize("word", WORDS)
def test_every_word_of_the_mode_means_what_w_and_b_says(
    word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The words are all that the installed version takes."""
    assert set(get_args(wandb.Settings.model_fields["mode"].annotation)) == set(WORDS)
    modes: list[str] = []
    monkeypatch.setattr("evalkit.record.wandb._open", lambda mode, *_: modes.append(mode) or 1 / 0)
    monkeypatch.setattr("evalkit.record.wandb.answers", lambda *_: True)
    monkeypatch.setattr(wandb, "login", lambda **_: True)
    monkeypatch.setenv("WANDB_MODE", word)
    with suppress(ZeroDivisionError):
        Wandb().begin(Header("r", "t", "m", "k", seeds=(0,)), SinkStart(tmp_path, {}))
    theirs = wandb.Settings(mode=word)  # type: ignore[arg-type]
    if theirs._noop:
        assert modes == []
    else:
        (mode,) = modes
        ours = wandb.Settings(mode=mode)  # type: ignore[arg-type]
        assert (ours._offline, ours._shared) == (theirs._offline, theirs._shared)


@pytest.mark.parametrize(
    ("value", "is_off"), [("true", True), ("1", True), ("yes", True), ("false", False), ("", False)]
)
def test_wandb_disabled_disables(value: str, is_off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_DISABLED", value)
    assert Wandb().is_off == is_off
    assert not Wandb(mode="offline").is_off


@pytest.mark.parametrize(
    ("variables", "ways"),
    [
        ({}, ["allow", "allow"]),
        ({"WANDB_RUN_ID": "x"}, ["never", "never"]),
        ({"WANDB_RUN_ID": "x", "WANDB_RESUME": "allow"}, ["allow", "allow"]),
        ({"WANDB_RUN_ID": "x", "WANDB_RESUME": "must"}, ["must", "allow"]),
        ({"WANDB_RUN_ID": "x", "WANDB_RESUME": "never"}, ["never", "never"]),
        ({"WANDB_RUN_ID": "x", "WANDB_SWEEP_ID": "s"}, ["allow", "never"]),
    ],
)
def test_two_commands_are_in_one_run_only_if_a_variable_says_so(
    variables: dict[str, str], ways: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A loop of a shell that exports one WANDB_RUN_ID starts different runs; one that goes on is in its own."""
    opened: list[str] = []

    def opening(mode: str, run_id: str, facts: dict[str, Any]) -> Any:
        opened.append(facts.get("resume", "allow"))
        return SimpleNamespace(id=run_id, offline=True, summary={}, log=lambda _: None)

    monkeypatch.setattr("evalkit.record.wandb._open", opening)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    for expected in (ways, ["allow", "allow"]):
        Wandb(mode="offline").begin(Header("r", "t", "m", "k", seeds=(0, 1)), SinkStart(tmp_path, {}))
        assert opened[-2:] == expected


def test_several_runs_of_one_command_have_no_id_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "x")
    check_before_several([Wandb()])
    check_before_several([Wandb(mode="disabled"), Wandb(mode="disabled")])
    with pytest.raises(UserError, match="WANDB_RUN_ID=x names one W&B run, and this command has 2"):
        check_before_several([Wandb(), Wandb()])

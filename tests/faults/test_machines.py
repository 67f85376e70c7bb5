"""Machines unlike ours: without git or a home, terminals that are not UTF-8, and variables that change JAX."""

import codecs
import inspect
import io
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from evalkit.__main__ import main
from evalkit.configuration.experiment import model_of
from evalkit.core import errors, output, streams
from evalkit.core.doors import door
from evalkit.core.errors import UserError
from evalkit.disk import places
from evalkit.inference.sampling import Sampler
from evalkit.numerics import FLAGS, random_key
from evalkit.parallel.devices import RUNS_ONCE
from evalkit.record import environment, variables
from evalkit.tasks.induction_heads import InductionHeads
from evalkit.tasks.mad.in_context_recall import InContextRecall
from evalkit.tasks.mqar import MQAR
from evalkit.tasks.text import Text
from support import tiny

ONE_FIXTURE = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.sampled_from(["XLA_FLAGS", "JAX_DISABLE_JIT", "JAX_OPTIMIZATION_LEVEL", "JAX_LOG_COMPILES", *FLAGS])
VALUES = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=8).map(str.strip)
FLAGGED = st.fixed_dictionaries(
    {
        "default_prng_impl": st.sampled_from(["threefry2x32", "rbg", "unsafe_rbg"]),
        "enable_x64": st.booleans(),
        "numpy_dtype_promotion": st.sampled_from(["standard", "strict"]),
        "threefry_partitionable": st.booleans(),
        "high_dynamic_range_gumbel": st.booleans(),
    }
)
HAWK = {
    "_target_": "evalkit.models.build",
    "_partial_": True,
    "width": 16,
    "pattern": ["r"],
    "mixers": {"r": {"_target_": "evalkit.models.mixers.rglru.RecurrentBlock", "_partial_": True, "width_rnn": 16}},
}


TASK: Any = InductionHeads(vocab_size=16, length=16)
OF_NOISE: Any = (MQAR(length=64), InContextRecall())
"""Tasks that draw by adding noise."""
MODEL = model_of(HAWK, 16)


def drawn(seed: int) -> dict[str, bytes]:
    """What a seed gives behind a door: training data, held-out data, and the parameters of a model."""

    @partial(jax.jit, compiler_options=RUNS_ONCE)  # anew for each call, since JAX would keep one program of all flags
    def program(seed: jax.Array) -> tuple[Any, ...]:
        params = MODEL.init(streams.init_key(seed))
        held_out = inspect.unwrap(streams.held_out_batch)(TASK, streams.TEST, seed, 2, 8)
        noisy = [streams.train_batch(task, seed, 3, 2, task.length) for task in OF_NOISE]
        token = Sampler(temperature=1.0).choose(
            jnp.zeros((1, 2**16)), jnp.zeros(1, int), seed.astype(jnp.int32), jnp.zeros((), int)
        )
        return params, streams.train_batch(TASK, seed, 3, 2, 8), held_out, noisy, token

    with door():
        arrays = program(np.uint32(seed))
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


OTHERS = {
    "default_prng_impl": "rbg",
    "enable_x64": True,
    "numpy_dtype_promotion": "strict",
    "threefry_partitionable": False,
    "high_dynamic_range_gumbel": True,
}
"""No flag as JAX has it."""


def assert_drawn_alike(flags: Mapping[str, str | bool], seed: int) -> None:
    usual = drawn(seed)
    before = {name: getattr(jax.config, f"jax_{name}") for name in flags}
    try:
        for name, value in flags.items():
            jax.config.update(f"jax_{name}", value)
        assert drawn(seed) == usual
    finally:
        for name, value in before.items():
            jax.config.update(f"jax_{name}", value)


@pytest.mark.slow
def test_data_and_parameters_depend_on_the_seed_alone_whatever_jaxs_flags_are() -> None:
    assert all(getattr(jax.config, f"jax_{name}") != value for name, value in OTHERS.items())
    assert_drawn_alike(OTHERS, 7)


@pytest.mark.slow
@pytest.mark.exhaustive
@settings(max_examples=10, deadline=None)
@given(flags=FLAGGED, seed=st.integers(0, 2**31 - 1))
def test_so_do_they_with_any_flags_and_seed(flags: dict[str, str | bool], seed: int) -> None:
    assert_drawn_alike(flags, seed)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_a_random_key_is_the_one_that_jax_makes_by_default(seed: int) -> None:
    ours, theirs = (jax.random.key_data(key) for key in (random_key(seed), jax.random.key(seed, impl="threefry2x32")))
    assert ours.tolist() == theirs.tolist()


def test_a_rank_that_is_broadcast_raises_behind_a_door_too() -> None:
    """The tests are run with that flag of JAX's, which changes no number."""
    with door(), pytest.raises(ValueError, match="rank"):
        _ = jnp.ones((2, 3)) + jnp.ones(3)


EXAMPLE = ("example", "induction_heads", "length=16")


def evalkit(*words: str, **changed: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, with changed variables."""
    return subprocess.run(
        [sys.executable, "-m", "evalkit", *words], capture_output=True, env={**os.environ, **changed}, timeout=300
    )


@pytest.mark.slow
def test_neither_variables_that_jax_cannot_read_nor_a_terminal_of_ascii_end_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(EXAMPLE) == 0
    changed = evalkit(*EXAMPLE, **dict.fromkeys(FLAGS, "no such value"), PYTHONIOENCODING="ascii")
    assert (changed.returncode, changed.stderr) == (0, b"")
    assert changed.stdout == capsys.readouterr().out.encode("ascii", "replace")


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable",
    [
        # One that fails when JAX looks for devices, and one when JAX is imported.
        *("JAX_PLATFORMS=cuda,no", "JAX_DEFAULT_MATMUL_PRECISION=no"),
        *(
            pytest.param(variable, marks=pytest.mark.exhaustive)
            for variable in ("JAX_TRANSFER_GUARD=disallow", "JAX_PLATFORM_NAME=gpu", "JAX_DEFAULT_DEVICE=gpu")
        ),
    ],
)
def test_a_variable_that_cannot_be_is_one_line_that_names_it(variable: str) -> None:
    name, _, value = variable.partition("=")
    done = evalkit(*EXAMPLE, **{name: value})
    (line,) = done.stderr.decode().splitlines()
    blamed, found, _ = line.partition(": JAX cannot work with it")
    assert done.returncode == 2 and found and blamed.startswith("evalkit: ") and variable in blamed


@ONE_FIXTURE
@given(then=st.dictionaries(NAMES, VALUES), now=st.dictionaries(NAMES, VALUES))
def test_variables_that_change_numbers_are_kept_and_differences_are_told(
    then: dict[str, str], now: dict[str, str], tmp_path: Path
) -> None:
    runs = [tmp_path / "then", tmp_path / "now"]
    for folder, values in zip(runs, (then, now), strict=True):
        folder.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            for name in {*os.environ} - {"PATH"}:
                patch.delenv(name)
            for name, value in values.items():
                patch.setenv(name, value)
            text = json.dumps({variables.FIELD: variables.variables()})
            told = variables.changed(runs[0])
        (folder / variables.FILE).write_text(text)
    count = {name for name in ("XLA_FLAGS", "JAX_DISABLE_JIT", "JAX_OPTIMIZATION_LEVEL")}
    other = {name for name in count if (then.get(name) or None) != (now.get(name) or None)}
    notes = variables.differing(runs)
    assert len(notes) == len(other) and all(any(name in note for note in notes) for name in other)
    assert (told is None) == (not other) and all(name in str(told) for name in other)


BROKEN = st.binary(min_size=1, max_size=9).filter(lambda raw: 0 not in raw).map(os.fsdecode)


@ONE_FIXTURE
@given(word=BROKEN)
def test_bytes_that_are_no_characters_are_refused_at_the_door(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    is_text = not any("\ud800" <= char <= "\udfff" for char in word)
    refusal = pytest.raises(UserError, match="has bytes that are no utf-8; write it in utf-8")
    with nullcontext() if is_text else refusal:
        errors.refuse_bytes(word)
    if not is_text:
        assert main(["rows", word]) == 2 and "has bytes that are no utf-8" in capsys.readouterr().err


def test_a_run_in_a_folder_that_is_no_text_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has bytes that are no utf-8"):
        tiny.start(tmp_path / os.fsdecode(b"\xe9") / "run")
    assert not list(tmp_path.iterdir())


@ONE_FIXTURE
@given(
    size=st.sampled_from(["0", "000", "-3", "", "abc", "²", "1.5", "1", "80", "007"]),
    name=st.sampled_from(output.SIZES),
)
def test_a_terminal_of_no_size_shows_what_it_is_to(size: str, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setenv(name, size)
        output.drop_sizes_of_nothing()
        console = Console(file=io.StringIO())
        console.print("shown")
        assert "".join(console.file.getvalue().split()) == "shown"  # type: ignore[attr-defined]
        assert (name in os.environ) == (size in ("1", "80", "007"))


@pytest.mark.parametrize("how", ["strict", "surrogateescape", "surrogatepass", "no such way"])
def test_no_way_to_treat_a_character_ends_a_run(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codecs.register_error("no such way", codecs.strict_errors)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=how)
    monkeypatch.setattr(sys, "stdout", terminal)
    with door():
        print("é\ud800", end="", flush=True)
    assert terminal.buffer.getvalue() == b"??"  # type: ignore[attr-defined]


ENCODINGS = ("ascii", "latin-1", "cp1252", "utf-8", "shift_jis")


@ONE_FIXTURE
@given(text=st.text(st.characters()), encoding=st.sampled_from(ENCODINGS))
@example(text="\r\n", encoding="ascii")
def test_any_text_can_be_printed_on_any_terminal(text: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    monkeypatch.setattr(sys, "stdout", terminal)
    with door():
        print(text, end="", flush=True)
    assert terminal.errors == "strict"
    with pytest.MonkeyPatch.context():
        kept = text.encode(encoding, "replace")
    printed = terminal.buffer.getvalue()  # type: ignore[attr-defined]
    assert printed.replace(b"\r\n", b"\n") == kept.replace(b"\r\n", b"\n")


@ONE_FIXTURE
@given(pieces=st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=40), max_size=5), full=st.booleans())
def test_writing_never_fails_and_what_is_lost_is_said_at_the_end(
    pieces: list[str], full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/dev/full` is as a full disk, and as a terminal that is gone."""
    place = Path("/dev/full") if full else tmp_path / "output"
    with place.open("w", encoding="utf-8", newline="") as stream:
        for name in ("stdout", "__stdout__"):
            monkeypatch.setattr(sys, name, stream)
        output.never_failing()
        for piece in pieces:
            print(piece, end="", flush=True)
        if full and pieces:
            with pytest.raises(output.Lost, match="No space left"):
                output.refuse_lost()
        else:
            output.refuse_lost()
    assert full or place.read_bytes().decode() == "".join(pieces)


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user without HOME, under a number that has no name."""

    def nobody(key: object) -> None:
        raise KeyError(key)

    for name in ("HOME", "XDG_STATE_HOME", "EVALKIT_CACHE", "LM_HARNESS_CACHE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(pwd, "getpwnam", nobody)
    return iter(())


@ONE_FIXTURE
@given(
    variable=st.from_regex("[A-Z_]{1,12}", fullmatch=True).filter(lambda name: name not in os.environ),
    below=st.sampled_from(["", "/a", "nobody/b"]),
)
def test_without_a_home_one_line_names_the_variable(variable: str, below: str, homeless: None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"set HOME, or set {variable} to a folder"):
        places.kept_below(variable, f"~{below}")
    with pytest.raises(UserError, match="set HOME, or give the whole path"):
        errors.typed_path(f"~{below}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, str(tmp_path))
        assert places.kept_below(variable, f"~{below}") == tmp_path
    assert errors.typed_path(tmp_path) == tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("rows", "~/a"),
        ("compare", "~/a"),
        ("archive", "~/a", "b"),
        ("select", "~nobody/a"),
        ("calibrate", "gemma-2b", "~/a"),
        ("bench", "steps", "out=~/a"),
        ("task=mqar", "model=hawk", "hydra.run.dir='~/a'"),
        ("task=mqar", "model=hawk", "seed=1,2", "hydra.sweep.dir='~/a'", "-m"),
    ],
)
def test_no_command_takes_the_tilde_for_a_folders_name(
    words: tuple[str, ...], homeless: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert "the home that ~ stands for is not known; set HOME" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_text_without_a_home_names_the_variable_of_its_cache(homeless: None) -> None:
    with pytest.raises(ValueError, match="EVALKIT_CACHE"):
        Text(length=8).prepare()


@ONE_FIXTURE
@given(code=st.integers(0, 255), answer=st.binary(max_size=40))
def test_what_git_does_not_say_is_unknown_and_ends_nothing(code: int, answer: bytes, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "answer").write_bytes(answer)
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\n/bin/cat {tmp_path / 'answer'}\nexit {code}\n")
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        known = environment.git_state(tmp_path)
    try:
        text = answer.decode().strip() if code == 0 else None
    except UnicodeDecodeError:
        text = None
    assert known == {"commit": text or None, "dirty": None if text is None else bool(text)}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A way to make a repository with one commit; without the user's own settings of git."""
    if shutil.which("git") is None:
        pytest.skip("no git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)

    def made(name: str) -> Path:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        (tmp_path / name).mkdir()
        for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", name]):
            subprocess.run(["git", *words], cwd=tmp_path / name, check=True)
        return tmp_path / name

    return made


@pytest.mark.parametrize("broken", ["a folder", "a file"])
def test_a_broken_repository_is_not_answered_for_by_one_around_it(
    repository: Callable[[str], Path], broken: str
) -> None:
    inner = repository("outer") / "inner"
    inner.mkdir()
    (inner / ".git").mkdir() if broken == "a folder" else (inner / ".git").write_text("gitdir: /no/such/place\n")
    assert environment.git_state(inner) == {"commit": None, "dirty": None}


def test_neither_a_hook_nor_the_users_settings_of_git_change_what_is_known(
    repository: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = repository("ours"), repository("other")
    for number, (key, value) in enumerate({"status.showUntrackedFiles": "no", "core.fsmonitor": "/bin/false"}.items()):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
        monkeypatch.setenv("GIT_CONFIG_COUNT", str(number + 1))
    known = environment.git_state(ours)
    for name in environment.OF_A_HOOK:
        monkeypatch.setenv(name, str(other / ".git"))
    assert environment.git_state(ours) == known and known is not None and known["dirty"] is False
    (ours / "untracked").touch()
    assert environment.git_state(ours) == {**known, "dirty": True}


def test_without_git_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.git_state(tmp_path) == {"commit": None, "dirty": None}
    assert environment.git_state(tmp_path / "wheel") is None

"""Networks that fail: W&B never holds a training, and of a hub one line says within three seconds what it answers.

No test looks at a clock, which a busy machine would make wrong: they hold how long a wait may be, and that what does
not answer before the end was not waited for.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from evalkit.checkpoints import pretrained
from evalkit.core import network
from evalkit.core.contracts import SinkEnd
from evalkit.core.network import Refused, Silent, ask_hub, within
from evalkit.core.rows import Header, Record, row
from evalkit.record import wandb as sink
from evalkit.record.sinks import Outlet
from support import tiny
from support.servers import Server, Wandb, serving

pytestmark = pytest.mark.fault
NAME = "owner/name"
SAID = {
    401: "check the name, or log in with hf auth login (status 401)",
    403: "may not be read with this account",
    404: "check the name (status 404)",
    429: "is asked for too often; wait some minutes",
    500: "meets an error of the hub; try again later (status 500)",
    503: "meets an error of the hub; try again later (status 503)",
}
LIMIT = 3.0


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(Server()) as server:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        yield server


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_hub_that_gives_what_is_asked_for_is_no_error(kind: Any, hub: Server) -> None:
    ask_hub(NAME, kind, LIMIT)
    assert f"/api/{kind}s/{NAME}/auth-check" in hub.asked


@pytest.mark.parametrize("status", SAID)
def test_what_a_hub_answers_is_said(status: int, hub: Server) -> None:
    hub.status = status
    with pytest.raises(Refused) as refusal:
        ask_hub(NAME, "dataset", LIMIT)
    assert len(hub.asked) == 1, "the library's own retries have no limit together"
    assert SAID[status] in str(refusal.value) and "\n" not in str(refusal.value)
    assert refusal.value.is_passing == (status in (429, 500, 503))


def test_a_gated_model_is_told_by_its_terms(hub: Server) -> None:
    hub.status, hub.headers = 403, {"X-Error-Code": "GatedRepo"}
    with pytest.raises(Refused, match=rf"is gated; accept its terms at {hub.url}/{NAME}"):
        ask_hub(NAME, "model", LIMIT)


@pytest.mark.parametrize("how", ["slow", "gone"])
def test_a_hub_that_is_slow_or_gone_is_silent(how: str, hub: Server) -> None:
    hub.silent = True
    if how == "gone":
        hub.kill()  # type: ignore[attr-defined]
    with pytest.raises(Silent, match=f"the hub \\({hub.url}\\) does not answer"):
        ask_hub(NAME, "model", 0.5)
    assert not hub.answered


def test_what_waits_for_a_server_waits_so_long_and_no_longer(hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    never, waits = threading.Event(), list[float]()
    with pytest.raises(TimeoutError):
        within(0.01, never.wait)
    monkeypatch.setattr(network, "within", lambda seconds, ask: waits.append(seconds) or ask())
    ask_hub(NAME, "model", LIMIT)
    network.answers(hub.url, LIMIT)
    assert waits == [LIMIT, LIMIT]
    assert max(pretrained.ANSWER_SECONDS, sink.ANSWER_SECONDS) <= LIMIT


DOORS = {
    "a checkpoint": ["task=books", f"checkpoint={NAME}"],
    "a data set": ["task=books", "model=hawk", f"task.hub.name={NAME}"],
}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("status", [*SAID, "slow", "gone"])
def test_a_command_says_it_and_does_not_wait(status: int | str, door: str, tmp_path: Path) -> None:
    """It has a cache and a hub of its own."""
    with serving(Server()) as server:
        server.status = status if isinstance(status, int) else 200
        server.silent = status == "slow"
        own = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "EVALKIT_CACHE": str(tmp_path / "cache")}
        if status == "gone":
            server.kill()  # type: ignore[attr-defined]
        ended = subprocess.run(
            [sys.executable, "-m", "evalkit", *DOORS[door]],
            env={**tiny.environment(), **own},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert status in SAID or not server.answered
    assert ended.returncode == 2, ended
    (line,) = ended.stderr.splitlines()
    assert (SAID[status] if isinstance(status, int) else "does not answer") in line
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def wandb_server(own_wandb: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wandb]:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    server = Wandb()
    with serving(server):
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        yield server


def opened(folder: Path) -> Outlet:
    folder.mkdir(exist_ok=True)
    outlet = Outlet("wandb", sink.Wandb(), folder, {}, b"", 0)
    outlet.begin(Record(Header("r", "copying", "hawk", "k", seeds=(0,), train_length=256), []))
    return outlet


def write(log: Outlet, steps: range) -> None:
    one = {"metric": "loss", "run": "r", "task": "t", "model": "m", "seed": 0, "split": "train"}
    for step in steps:
        log.write([row(**one, step=step, length=4, total=1, count=1)])


def test_a_server_of_wandb_that_works_gets_the_rows(wandb_server: Wandb, tmp_path: Path) -> None:
    log = opened(tmp_path / "run")
    write(log, range(5))
    (line,) = log.finish(SinkEnd(), 0)
    assert line.startswith(f"W&B: {wandb_server.url}/me/evalkit/runs/")
    assert any("file_stream" in path for path in wandb_server.asked)


@pytest.mark.slow
@pytest.mark.exhaustive  # how long a wait may be is held above, and what is logged without a server by test_wandb.py
@pytest.mark.parametrize("how", ["slow", "gone"])
def test_a_server_that_is_slow_or_gone_at_the_start_is_not_waited_for(
    how: str, wandb_server: Wandb, tmp_path: Path
) -> None:
    """The run logs offline after the seconds of one question."""
    wandb_server.silent = True
    if how == "gone":
        wandb_server.kill()  # type: ignore[attr-defined]
    log = opened(tmp_path / "run")
    write(log, range(50))
    (line,) = log.finish(SinkEnd(), 0)
    assert not wandb_server.answered
    assert line.startswith("upload to W&B with: wandb sync ")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dies", pytest.param("slows", marks=pytest.mark.exhaustive)])
def test_a_server_that_dies_midway_holds_no_row_and_the_end_not_long(
    how: str, wandb_server: Wandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "FINISH_SECONDS", 2.0)
    log = opened(tmp_path / "run")
    write(log, range(5))
    wandb_server.silent = True
    if how == "dies":
        wandb_server.kill()  # type: ignore[attr-defined]
    answered = len(wandb_server.answered)
    write(log, range(5, 500))
    (line,) = log.finish(SinkEnd(), 0)
    assert len(wandb_server.answered) <= answered + 1, "what was on its way when the server fell silent"
    folder = Path(line.removeprefix("upload to W&B with: wandb sync "))
    assert list(folder.glob("run-*.wandb"))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["good", "slow", "gone"])
def test_a_training_is_the_same_whatever_its_server_does(
    how: str, wandb_server: Wandb, tmp_path: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb_server.silent = how == "slow"
    if how == "gone":
        wandb_server.kill()  # type: ignore[attr-defined]
    folder = tiny.trained(tmp_path / "run", "wandb.mode=online")
    assert tiny.rows(folder) == tiny.rows(tiny_run)
    tiny.assert_identical(tiny.state(folder), tiny.state(tiny_run))
    assert json.loads((folder / "results.json").read_text())["extrapolation"]

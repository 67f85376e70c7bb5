"""What W&B is told is read back from its own offline files; whatever it does, a run goes on."""

import json
import logging
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import wandb
from PIL import Image
from wandb.util import get_core_path

from evalkit.core.contracts import SinkEnd, SinkStart
from evalkit.core.errors import UserError
from evalkit.core.rows import Header, Record, Row, encode, encode_header, row
from evalkit.record.sinks import Outlet
from evalkit.record.wandb import Wandb

CONFIG = {"train": {"steps": 20, "length": 256}, "seed": 0}
KEY = "0" * 40
NOWHERE = "http://127.0.0.1:9"


pytestmark = pytest.mark.usefixtures("own_wandb")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def header(seeds: tuple[int, ...] = (0,)) -> Header:
    kind = "evalkit.evaluations.extrapolation.report"
    return Header("r", "copying", "hawk", kind, parameters=9, seeds=seeds, train_length=256)


def opened(
    folder: Path, seeds: tuple[int, ...] = (0,), rows: Sequence[Row] = (), offset: int = 0, **settings: Any
) -> Outlet:
    """A session of W&B, in a run whose record had these rows and is cut after `offset` bytes."""
    record = recorded(rows)
    outlet = Outlet("wandb", Wandb(**settings), folder, CONFIG, record, offset)
    kept = record[:offset].count(b"\n") - 1
    outlet.begin(Record(header(seeds), list(rows[: max(0, kept)])))
    return outlet


def ended(
    outlet: Outlet, code: int = 0, rows: Sequence[Row] = (), records: Any = None, summary: Any = None
) -> list[str]:
    """Ends a session at whose end the record has these rows; returns what the user is told."""
    return outlet.finish(SinkEnd(code, records, summary or {}), len(recorded(rows)))


def recorded(rows: Sequence[Row]) -> bytes:
    """The record of the first seed's run with these rows."""
    return "".join(f"{line}\n" for line in [encode_header(header()), *map(encode, rows)]).encode()


def killed(outlet: Outlet) -> None:
    """Ends W&B's part of a session as W&B does, but not the session."""
    for run in runs_of(outlet).values():
        run.finish()


def runs_of(outlet: Outlet) -> dict[int, Any]:
    assert isinstance(outlet._sink, Wandb)
    return outlet._sink._runs


def measured(split: str | None, metric: str, total: float | None, **fields: Any) -> Row:
    return row(
        **{"run": "r", "task": "copying", "model": "hawk", "seed": 0, "count": 4, **fields},
        split=split,
        metric=metric,
        total=total,
    )


def records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of each offline run under `folder`, by run id, in the order of starting."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in sorted((folder / "wandb").glob("offline-run-*")):
        # What `wandb leet inspect` starts; W&B's own Python would take a second more.
        (file,) = run.glob("run-*.wandb")
        inspect = [get_core_path(), "leet", "inspect", "--no-observability", "--json"]
        command = [*inspect, "--run-file", str(file), str(run.parent)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        entries = [json.loads(line) for line in lines]
        found.setdefault(of("run", entries)[0]["run_id"], []).extend(entries)
    return found


def of(kind: str, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line[kind] for line in lines if line["type"] == kind]


def history(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was logged after the number of parameters, without W&B's own fields."""
    items = [entry["item"] for entry in of("history", lines)]
    logged = [{name: item[name] for name in item if not name.startswith("_")} for item in items]
    assert [entry for entry in logged if "parameters" in entry] == [{"parameters": 9}] == logged[:1]
    return logged[1:]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a user is told; W&B's own telemetry has loggers of its own."""
    tracking = [
        record
        for record in caplog.records
        if record.name == "evalkit.record" or record.name.startswith("evalkit.record.")
    ]
    return [record.getMessage() for record in tracking if record.levelno >= logging.WARNING]


def test_rows_become_curves_of_each_seed(folder: Path) -> None:
    log = opened(folder, seeds=(3, 4), mode="offline", tags=["fig6b"])
    for seed in (3, 4):
        at: dict[str, Any] = {"seed": seed, "step": 10}
        log.write([measured("train", name, total, **at, length=256) for name, total in (("loss", 8), ("accuracy", 1))])
        log.write([measured("validation", "accuracy", total, **at, length=n) for total, n in ((2, 256), (seed, 512))])
        at = {"seed": seed, "step": 20}
        log.write([measured("test", "accuracy", total, **at, length=n) for total, n in ((4, 256), (1, 1024))])
        log.write([measured("test", "accuracy", 1, **at, length=1024, position=7)])
        log.write([measured("test", "accuracy", None, **at, length=4096, count=0)])
        log.write(
            [measured("test", "found", total, **at, length=8, extra={"depth": d}) for total, d in ((4, 0.5), (1, None))]
        )
        log.write([measured("test", "forgetting", 4, **at, length=8, extra={"block": 0, "channel": 3})])
    ended(log)

    ids = json.loads((folder / "wandb.json").read_text())
    runs = records(folder)
    assert set(runs) == {ids["3"], ids["4"]}
    for seed in (3, 4):
        assert history(runs[ids[str(seed)]]) == [
            {"train/step": 10, "train/loss": 2.0, "train/accuracy": 0.25},
            {"train/step": 10, "validation/accuracy": 0.5, "validation/accuracy@512": seed / 4},
            {"eval/length": 256, "extrapolation/accuracy": 1.0},
            {"eval/length": 1024, "extrapolation/accuracy": 0.25},
            {"eval/length": 8, "extrapolation/found/depth 0.5": 1.0, "extrapolation/found": 0.25},
        ]


def test_each_seed_has_a_run_in_one_group_with_its_x_axes(folder: Path) -> None:
    ended(opened(folder, seeds=(0, 1), mode="offline", tags=["fig6b"]))
    runs = records(folder)
    described = [of("run", lines)[0] for lines in runs.values()]
    assert {run["display_name"] for run in described} == {"hawk-copying-s0", "hawk-copying-s1"}
    assert {run["run_group"] for run in described} == {"hawk-copying-run"}
    assert {run["job_type"] for run in described} == {"train"}
    assert all(run["tags"] == ["fig6b"] for run in described)
    for lines in runs.values():
        axes = {line["glob_name"]: line["step_metric"] for line in of("metric", lines) if "glob_name" in line}
        by_step = dict.fromkeys(("train/*", "validation/*", "during/*"), "train/step")
        assert axes == {**by_step, "extrapolation/*": "eval/length"}


NAMED = {
    "project": "p",
    "entity": "e",
    "name": "n",
    "notes": "it's\nmine",
    "tags": ["a", "b"],
    "group": "g",
    "job_type": "j",
}
VARIABLES = {"name": "WANDB_NAME", "group": "WANDB_RUN_GROUP"}


def described(run: dict[str, Any]) -> dict[str, Any]:
    """What a run is called, in the words of the settings."""
    found = {"name": run["display_name"], "group": run["run_group"]}
    return {name: found[name] if name in found else run[name] for name in NAMED}


@pytest.mark.parametrize("by", ["settings", "variables", "both"])
def test_a_run_is_called_as_its_user_says(
    by: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting counts before a variable, and W&B's files lie where either says."""
    if by != "settings":
        for name, given in NAMED.items():
            said = ",".join(given) if name == "tags" else given if by == "variables" else "another"
            monkeypatch.setenv(VARIABLES.get(name, f"WANDB_{name.upper()}"), str(said))
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_DIR", str(tmp_path / ("files" if by == "variables" else "others")))
    settings = {} if by == "variables" else {**NAMED, "dir": str(tmp_path / "files"), "mode": "offline"}
    ended(opened(folder, **settings))
    ((_, lines),) = records(tmp_path / "files").items()
    assert described(of("run", lines)[0]) == NAMED
    assert not (folder / "wandb").exists()


def test_the_seeds_of_a_named_run_end_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_NAME", "mine")
    ended(opened(folder, seeds=(3, 4), mode="offline"))
    runs = [of("run", lines)[0] for lines in records(folder).values()]
    assert {run["display_name"] for run in runs} == {"mine-s3", "mine-s4"}
    assert {run["project"] for run in runs} == {"evalkit"}


def test_the_figures_and_the_table_of_results_go_to_each_seeds_run(folder: Path) -> None:
    Image.new("RGB", (4, 4)).save(folder / "extrapolation.png")
    log = opened(folder, seeds=(0, 1), mode="offline")
    table = [{"seed": seed, "length": 16, "accuracy": seed / 2} for seed in (0, 1)] + [{"length": 32, "loss": None}]
    seeds = [{"seed": seed, "effective_length": {"0.85": {"length": 16 << seed, "low": None}}} for seed in (0, 1)]
    (said,) = ended(log, records=lambda: table, summary={"seeds": seeds})
    assert len(records(folder)) == 2 and said.startswith("upload to W&B with: wandb sync ")
    for seed, place in enumerate(sorted_by_seed(folder)):
        (image,) = (place / "files" / "media" / "images" / "report").glob("extrapolation_*.png")
        assert image.read_bytes() == (folder / "extrapolation.png").read_bytes()
        (kept,) = (place / "files" / "media" / "table").glob("results_*.json")
        found = json.loads(kept.read_text())
        assert found["columns"] == ["seed", "length", "accuracy", "loss"]
        assert found["data"] == [[seed, 16, seed / 2, None], [None, 32, None, None]]
        lines = records(folder)[place.name.rpartition("-")[2]]
        last = {name: value for part in of("summary", lines) for name, value in part["update"].items()}
        assert last["report/effective_length/0.85/length"] == 16 << seed


def sorted_by_seed(folder: Path) -> list[Path]:
    """The folder of each seed's offline run."""
    ids = json.loads((folder / "wandb.json").read_text())
    return [next((folder / "wandb").glob(f"offline-run-*-{ids[seed]}")) for seed in sorted(ids)]


def test_figures_that_cannot_be_sent_are_one_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> Any:
        raise ValueError("no such kind")

    log = opened(folder, mode="offline")
    log.write([measured("train", "loss", 4.0, step=10)])
    assert ended(log, records=refuse) == []
    (warning,) = warnings(caplog)
    assert "no such kind" in warning
    (lines,) = records(folder).values()
    assert history(lines) == [{"train/step": 10, "train/loss": 1.0}], "what was sent before is lost"


def test_the_end_names_every_folder_that_is_still_to_be_uploaded(folder: Path) -> None:
    first, second = [ended(opened(folder, mode="offline")) for _ in range(2)]
    command, *paths = shlex.split(second[0].partition("with: wandb ")[2])
    assert first[0].endswith(paths[0]) and command == "sync" and len(paths) == 2
    assert all(list(Path(path).glob("run-*.wandb")) for path in paths)
    (run,) = Path(paths[0]).glob("run-*.wandb")
    run.with_name(f"{run.name}.synced").touch()
    (third,) = ended(opened(folder, mode="offline"))
    left = shlex.split(third)
    assert paths[0] not in left and paths[1] in left


def test_a_second_start_continues_the_same_runs(folder: Path) -> None:
    for step in (10, 20):
        log = opened(folder, seeds=(0, 1), mode="offline")
        log.write([measured("train", "loss", 4.0, step=step)])
        ended(log)
    ids = json.loads((folder / "wandb.json").read_text())
    runs = records(folder)
    assert set(runs) == set(ids.values())
    assert [entry["train/step"] for entry in history(runs[ids["0"]])] == [10, 20]


def losses(*steps: int, total: float = 4.0) -> list[Row]:
    return [measured("train", "loss", total, step=step) for step in steps]


def steps(folder: Path) -> list[int]:
    """The steps that W&B has, in the order in which it got them."""
    (lines,) = records(folder).values()
    return [entry["train/step"] for entry in history(lines)]


def test_what_a_killed_session_lost_is_sent_again_and_its_files_are_set_aside(folder: Path) -> None:
    """It wrote two steps and was killed; the next one begins after them."""
    rows = losses(10, 20, 30)
    first = opened(folder, mode="offline")
    first.write(rows[:2])
    killed(first)
    second = opened(folder, rows=rows[:2], offset=len(recorded(rows[:2])), mode="offline")
    second.write(rows[2:])
    ended(second, rows=rows)
    assert steps(folder) == [10, 20, 30]
    assert len(list((folder / "wandb").glob("torn-run-*"))) == 1


def test_what_is_measured_again_after_an_interrupt_is_not_sent_twice(folder: Path) -> None:
    """The first session wrote three steps and ended by itself; the next one begins after the first of them."""
    rows = losses(10, 20, 30)
    first = opened(folder, mode="offline")
    first.write(rows)
    ended(first, 130, rows)
    second = opened(folder, rows=rows, offset=len(recorded(rows[:1])), mode="offline")
    second.write([*rows[1:], *losses(40)])
    ended(second, 0, [*rows, *losses(40)])
    assert steps(folder) == [10, 20, 30, 40]


def test_what_was_taken_back_whole_is_not_sent_twice_either(folder: Path) -> None:
    """There was no checkpoint yet: the record begins anew, its header included."""
    rows = losses(10, 20)
    first = opened(folder, mode="offline")
    first.write(rows)
    ended(first, 130, rows)
    second = opened(folder, rows=rows, offset=0, mode="offline")
    second.write([*rows, *losses(30)])
    ended(second, 0, [*rows, *losses(30)])
    assert steps(folder) == [10, 20, 30]


def test_rows_that_took_the_place_of_others_are_sent_again_after_a_kill(folder: Path) -> None:
    """A finished run is trained further: its last rows give way to others, and the session with these is killed."""
    rows, new = losses(10, 20), losses(20, 30, total=8.0)
    first = opened(folder, mode="offline")
    first.write(rows)
    ended(first, 0, rows)
    second = opened(folder, rows=rows, offset=len(recorded(rows[:1])), mode="offline")
    second.write(new)
    killed(second)
    record = [rows[0], *new]
    ended(opened(folder, rows=record, offset=len(recorded(record)), mode="offline"), 0, record)
    (lines,) = records(folder).values()
    assert [(entry["train/step"], entry["train/loss"]) for entry in history(lines)] == [
        (10, 1),
        (20, 1),
        (20, 2),
        (30, 2),
    ]


def test_online_what_the_server_has_is_not_sent_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Mock(summary={"train/step": 20}, id="abc", offline=False, url=None)
    monkeypatch.setattr("evalkit.record.wandb._open", lambda *_: server)
    sink, rows = Wandb(mode="offline"), losses(10, 20, 30)
    assert sink.begin(header(), SinkStart(folder, CONFIG)) == 0
    for entry in rows:
        sink.repeat([entry])
    assert [call.args[0]["train/step"] for call in server.log.call_args_list] == [20, 30]


def test_a_failed_run_says_so(folder: Path) -> None:
    ended(opened(folder, mode="offline"), 143)
    (lines,) = records(folder).values()
    assert of("exit", lines)[0]["exit_code"] == 143


def test_disabled_writes_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = opened(folder, mode="disabled")
    log.write([measured("train", "loss", 4.0, step=10)])
    ended(log)
    assert list(folder.iterdir()) == []
    assert warnings(caplog) == []


def test_the_environment_may_turn_auto_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    ended(opened(folder))
    assert list(folder.iterdir()) == []


def test_the_environment_may_ask_for_offline(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    ended(opened(folder))
    assert len(records(folder)) == 1
    assert warnings(caplog) == []


@pytest.mark.parametrize("key", [None, "abc"])
def test_without_a_key_auto_is_offline_with_one_warning(
    key: str | None, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key is not None:
        monkeypatch.setenv("WANDB_API_KEY", key)
    ended(opened(folder, seeds=(0, 1)))
    (warning,) = warnings(caplog)
    assert "offline" in warning and "key" in warning
    assert len(records(folder)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["online", pytest.param("auto", marks=pytest.mark.exhaustive)])
def test_without_a_server_the_log_is_offline_with_one_warning_and_w_and_b_as_a_whole_as_it_was(
    mode: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", NOWHERE)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    before = wandb.setup().settings.mode
    log = opened(folder, seeds=(0, 1), mode=mode)
    log.write([measured("train", "loss", 4.0, step=10)])
    ended(log)
    (warning,) = warnings(caplog)
    assert "offline" in warning
    assert len(records(folder)) == 2
    assert wandb.setup().settings.mode == before and wandb.run is None
    assert capfd.readouterr() == ("", "")
    wandb.termwarn("of the user's own run")
    assert "own run" in capfd.readouterr().err


@pytest.fixture
def refusing_server() -> Iterator[str]:
    """The address of a server that knows no key."""

    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_server_that_refuses_the_key_leaves_the_log_offline_with_one_warning(
    refusing_server: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", refusing_server)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    log = opened(folder, seeds=(0, 1))
    log.write([measured("train", "loss", 4.0, step=10, seed=seed) for seed in (0, 1)])
    ended(log)
    (warning,) = warnings(caplog)
    assert "offline" in warning and "401" in warning
    runs = records(folder)
    assert set(runs) == set(json.loads((folder / "wandb.json").read_text()).values())
    assert all(history(lines) == [{"train/step": 10, "train/loss": 1.0}] for lines in runs.values())


def test_a_failure_while_logging_is_one_warning_and_then_silence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(run: wandb.Run, data: dict[str, Any]) -> None:
        raise OSError("no space left on device")

    log = opened(folder, mode="offline")
    monkeypatch.setattr(wandb.Run, "log", refuse)
    for step in (10, 20):
        log.write([measured("train", "loss", 4.0, step=step)])
    ended(log)
    (warning,) = warnings(caplog)
    assert "no space left on device" in warning


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "taken").touch()
    log = opened(tmp_path / "taken", mode="offline")
    log.write([measured("train", "loss", 4.0, step=10)])
    ended(log)
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("in_sweep", [False, True])
@pytest.mark.parametrize("seeds", [(7,), (0, 1, 10)])
def test_no_two_seeds_are_one_run(
    in_sweep: bool, seeds: tuple[int, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the run is opened again, and where its id is the beginning of another's."""
    monkeypatch.setenv("WANDB_RUN_ID", "x")
    if in_sweep:
        monkeypatch.setenv("WANDB_SWEEP_ID", "s")
        monkeypatch.setenv("WANDB_PROJECT", "swept")
    for session in range(2):
        lines = ended(opened(folder, seeds=seeds, mode="offline"))
        assert lines[0].count("offline-run-") == len(seeds) * (session + 1)
        ids = json.loads((folder / "wandb.json").read_text())
        assert ids[str(seeds[0])] == "x" and len(set(ids.values())) == len(seeds)
    runs = records(folder)
    assert set(runs) == set(ids.values())
    for run_id, written in runs.items():
        run = of("run", written)[0]
        assert run.get("sweep_id", "") == ("s" if in_sweep and run_id == "x" else "")
        assert run["project"] == ("swept" if in_sweep else "evalkit")


@pytest.mark.slow
def test_a_refused_run_of_a_sweep_is_logged_offline(
    refusing_server: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id stays taken in this process."""
    for name, value in {"RUN_ID": "x", "SWEEP_ID": "s", "API_KEY": KEY, "BASE_URL": refusing_server}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    ended(opened(folder))
    (lines,) = records(folder).values()
    assert of("run", lines)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Wandb(mode="on"), "auto, online, offline, disabled"),
        (lambda: Wandb(tags="fig6b"), "wandb.tags=[fig6b]"),
    ],
)
def test_bad_settings_name_what_is_allowed(make: Callable[[], Wandb], named: str) -> None:
    with pytest.raises(UserError, match="wandb") as error:
        make()
    assert named in str(error.value)


@pytest.mark.slow
def test_wandb_is_imported_only_by_a_run_that_uses_it() -> None:
    code = "import sys, evalkit.record.wandb; sys.exit('wandb' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""A stranger's run is data: opening it runs no code of theirs and writes nowhere else. Keys are never written."""

import ast
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

import evalkit
from evalkit.__main__ import main
from evalkit.checkpoints.loading import archive
from evalkit.checkpoints.pretrained import load as load_checkpoint
from evalkit.configuration import account, saved
from evalkit.configuration.experiment import build_task, written
from evalkit.configuration.spec import Spec
from evalkit.core import credentials, trust
from evalkit.core.contracts import Verdict
from evalkit.core.errors import UserError, first_line
from evalkit.core.rows import read
from evalkit.disk import sums
from evalkit.record import environment
from evalkit.record.wandb import Wandb
from evalkit.reports.kinds import kind_of
from evalkit.reports.writer import report
from evalkit.session import logs
from evalkit.session import run as session
from evalkit.session.session import Outcome
from support import tiny
from support.made_up_runs import run_record, write_run

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("blank_figures", "shared")]
ROOT = Path(__file__).parents[2]
THEIRS = """
from pathlib import Path
import os
from evalkit.tasks.induction_heads import InductionHeads as Borrowed

Path(__file__).with_name("ran").touch()

class Heads(Borrowed):
    pass

def summarise(record): ...
tables = figures = records = summarise
"""
# Where a configuration may name a constructor: Hydra would call each of these.
PLACES: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "the task": lambda config, node: config["task"].update(node),
    "a setting of the task": lambda config, node: config["task"].update(length=node),
    "the model": lambda config, node: config["model"].update(node),
    "a mixer": lambda config, node: config["model"]["mixers"].update(recurrent=node),
    "a list": lambda config, node: config["model"].update(pattern=["attention", node]),
    "training": lambda config, node: config["train"].update(node),
    "the evaluation": lambda config, node: config["eval"].update(node),
    "a length": lambda config, node: config["eval"].update(lengths=[[node]]),
    "W&B": lambda config, node: config["wandb"].update(tags=[node]),
    "the paper's values": lambda config, node: config.update(paper={"a": {"b": node}}),
}


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of a stranger's that tells when it is imported, where `python -m evalkit` would find it."""
    package = tmp_path / "here" / "theirs"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(THEIRS, encoding="utf-8")
    monkeypatch.chdir(package.parent)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield package
    sys.modules.pop("theirs", None)


@pytest.fixture
def run(tiny_run: Path, theirs: Path) -> Path:
    return shutil.copytree(tiny_run, theirs.parent / "run")


def edited(run: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """The run with another configuration."""
    path = run / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    edit(config)
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return run


OPENED: dict[str, Callable[[Path], Any]] = {
    "load": lambda run: evalkit.load(run),
    "resume": lambda run: evalkit.resume(run),
    "evaluate": lambda run: evalkit.evaluate(run, eval={"lengths": [64]}),
    "archive": lambda run: archive(run, run.parent / "archive"),
    "as a checkpoint": lambda run: load_checkpoint(str(run)),
    "to know what it costs": lambda run: saved.plain_of(run / "config.yaml"),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_saved_configuration_runs_nothing_of_a_package_that_was_not_named(place: str, run: Path) -> None:
    for target in ("theirs.Heads", "os.system", "subprocess.check_output", "builtins.eval"):
        edited(run, lambda config, node={"_target_": target}: PLACES[place](config, node))
        before = tiny.files(run)
        with pytest.raises(UserError) as refusal:
            _ = Spec.saved(run).experiment
        package = target.partition(".")[0]
        assert f"_target_={target} would run code of the package {package}" in str(refusal.value)
        assert f"give allow_targets=[{package}], or " in str(refusal.value) and "\n" not in str(refusal.value)
        assert tiny.files(run) == before and not (run.parent / "theirs" / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("way", OPENED)
def test_no_way_of_opening_a_run_imports_what_was_not_named(way: str, run: Path) -> None:
    edited(run, lambda config: config["task"].update(_target_="theirs.Heads"))
    edited(run, lambda config: config.update(allow_targets=["theirs"]))  # the run's own word counts for nothing
    before = tiny.files(run)
    with pytest.raises(UserError, match="theirs"):
        OPENED[way](run)
    assert tiny.files(run) == before and "theirs" not in sys.modules


def test_comparing_imports_nothing_either(run: Path) -> None:
    edited(run, lambda config: config["task"].update(_target_="theirs.Heads"))
    header = read(run).header
    assert account.completed([(run, header)]) == [header] and "theirs" not in sys.modules


def test_a_kind_of_report_of_a_package_that_was_not_named_is_refused(theirs: Path) -> None:
    folder = write_run(theirs.parent / "made", run_record(kind="theirs"))
    for refused in (lambda: kind_of("theirs"), lambda: evalkit.compare(folder, folder="out")):
        with pytest.raises(UserError, match="the package theirs, which you have not named"):
            refused()
    with pytest.raises(UserError, match="'theirs:summarise' cannot be imported"):
        kind_of("theirs:summarise")
    assert "theirs" not in sys.modules and not Path("out").exists()
    trust.remember(["theirs"])
    assert kind_of("theirs").__name__ == "theirs"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("evalkit.core.errors.Path", "of another package; name it where it is defined"),
        ("evalkit.record.environment.os.system", "of another package"),
        ("evalkit.session.run.evaluate", "is no part of a run"),
        ("evalkit.core.rows.RowLog", "is no part of a run"),
        ("evalkit.models.formats.export.write", "is no part of a run"),
    ],
)
def test_what_evalkit_has_and_a_run_is_not_made_of_is_refused(target: str, said: str, run: Path) -> None:
    edited(run, lambda config: config.update(task={"_target_": target}))
    with pytest.raises(UserError, match=said):
        _ = Spec.saved(run).experiment


def test_a_named_package_lends_nothing_of_another(run: Path) -> None:
    edited(run, lambda config: config.update(task={"_target_": "theirs.os.system", "command": "touch ran"}))
    with pytest.raises(UserError, match="of another package"):
        evalkit.load(run, allow_targets=["theirs"])
    assert not Path("ran").exists()


def test_an_object_without_a_name_is_none_of_the_package_that_leads_to_it(run: Path) -> None:
    """A C function says nowhere what it is of; below train.optimizer, modules of Optax's would lead to one."""
    way = "optax.assignment._hungarian_algorithm.jax._src.ffi.ctypes.pythonapi.system"
    called = {"_target_": way, "_args_": ["touch ran"]}
    edited(run, lambda config: config["train"].update(optimizer={"_target_": "optax.chain", "_args_": [called]}))
    with pytest.raises(UserError, match="it is of another package, ctypes; name it where it is defined"):
        _ = Spec.saved(run).experiment
    assert not Path("ran").exists()


def test_a_saved_configuration_has_no_bytes(run: Path) -> None:
    edited(run, lambda config: config["train"].update(optimizer={"_target_": "optax.sgd", "_args_": [b"touch ran"]}))
    with pytest.raises(UserError, match=r"train\.optimizer\._args_\.0 is of type bytes; write text, a number"):
        _ = Spec.saved(run).experiment


def test_what_the_user_typed_needs_a_name_too(theirs: Path) -> None:
    words = [*tiny.OVERRIDES, "task._target_=theirs.Heads"]
    with pytest.raises(UserError, match=r"allow_targets=\[theirs\]"):
        Spec.of(words)
    with pytest.raises(UserError, match=r"give a list of packages, such as allow_targets=\[theirs\]"):
        Spec.of([*words, "allow_targets=theirs"])
    with pytest.raises(UserError, match=r"allow_targets=\[os\]"):
        build_task("induction_heads", ["_target_=os.system"])
    assert "theirs" not in sys.modules
    assert Spec.of([*words, "allow_targets=[theirs]"]).packages == ["theirs"]


def of_ones_own(folder: Path) -> list[str]:
    """A task of the user's own in a folder for `--config-dir`, and the words that run it."""
    task = yaml.safe_load((ROOT / "conf" / "task" / "induction_heads.yaml").read_text(encoding="utf-8"))
    (folder / "conf" / "task").mkdir(parents=True)
    text = yaml.safe_dump({**task, "_target_": "theirs.Heads"})
    (folder / "conf" / "task" / "heads.yaml").write_text(text, encoding="utf-8")
    others = [word for word in tiny.OVERRIDES if not word.startswith("task=")]
    return ["--config-dir", "conf", "task=heads", *others, "hydra.run.dir=own"]


@pytest.mark.slow
def test_a_run_of_ones_own_is_opened_again_without_a_word(
    theirs: Path, tmp_path: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same place. Elsewhere, or where nothing could be kept, one word does it."""

    def trained(spec: Spec) -> Outcome:
        """A finished run with what was asked for, without its training."""
        shutil.copytree(tiny_run, spec.folder)
        saved.save(spec.plain, spec.folder / saved.CONFIG_FILE)
        return Outcome(spec.folder, verdict=Verdict())

    monkeypatch.setattr(session, "start", trained)
    assert main(of_ones_own(theirs.parent)) == 0
    assert yaml.safe_load(Path("own", "config.yaml").read_text())["allow_targets"] == ["theirs"]
    assert main(["resume", "own"]) == 0
    assert main(["evaluate", "own", "eval.lengths=[16]"]) == 0
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").touch()  # where nothing can be kept
    for named in (["allow_targets=[theirs]"], ["--config-dir", "conf"]):
        assert main(["resume", "own"]) == 2
        assert main(["resume", "own", *named]) == 0
    assert main(["evaluate", "own", "eval.lengths=[16]"]) == 2
    assert evalkit.evaluate("own", eval={"lengths": [16]}, config_dir="conf").step == 6
    assert evalkit.resume("own", allow_targets=["theirs"]).step == 6


def test_a_package_of_the_same_name_elsewhere_is_another_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited(run, lambda config: config["task"].update(_target_="theirs.Heads"))
    assert Spec.saved(run, packages=["theirs"]).experiment.allow_targets == ["theirs"]
    assert Spec.saved(run).experiment.allow_targets == ["theirs"]
    sys.modules.pop("theirs")
    other = run.parent / "elsewhere"
    shutil.copytree(run.parent / "theirs", other / "theirs")
    monkeypatch.syspath_prepend(str(other))
    with pytest.raises(UserError, match="the package theirs, which you have not named"):
        _ = Spec.saved(run).experiment


def test_a_folder_of_yaml_names_its_packages_for_commands_that_compose_nothing(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`archive` takes no allow_targets=, and it is told what to give instead."""
    edited(run, lambda config: config["sinks"].update(mine={"_target_": "theirs.Heads"}))
    words = ["archive", str(run), str(run.parent / "kept")]
    assert main(words) == 2
    assert "or --config-dir with a folder whose YAML names it" in capsys.readouterr().err
    (run.parent / "conf" / "log").mkdir(parents=True)
    (run.parent / "conf" / "log" / "mine.yaml").write_text("_target_: theirs.Heads\n", encoding="utf-8")
    main([*words, "--config-dir", str(run.parent / "conf")])
    assert "which you have not named" not in capsys.readouterr().err


def test_what_was_named_is_one_constructor_and_not_its_package(run: Path) -> None:
    trust.remember(["theirs.Heads"])
    edited(run, lambda config: config["task"].update(_target_="theirs.Other"))
    with pytest.raises(UserError, match="you have not named"):
        _ = Spec.saved(run).experiment


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[1]\n{}\nnull\n7\n", b'["a"', b'[["theirs.Heads"], 1]\n'])
def test_a_damaged_memory_of_names_names_nothing(content: bytes, run: Path, tmp_path: Path) -> None:
    edited(run, lambda config: config["task"].update(_target_="theirs.Heads"))
    file = tmp_path / "state" / trust.FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with pytest.raises(UserError, match="you have not named"):
        _ = Spec.saved(run).experiment


def test_a_saved_configuration_reads_no_variable(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVATE", "of this machine")
    for reference in ("${oc.env:PRIVATE}", "x ${oc.env:PRIVATE}", "${seed}"):
        edited(run, lambda config, value=reference: config["wandb"].update(notes=value))
        with pytest.raises(UserError, match=r"wandb\.notes=.* stands for something else") as refusal:
            _ = Spec.saved(run).experiment
        assert "of this machine" not in str(refusal.value)


@pytest.mark.parametrize("key", ["wandb.dir", "task.cache"])
def test_a_saved_run_writes_into_no_folder_that_the_user_never_gave(key: str, theirs: Path) -> None:
    run, away = theirs.parent / "run", theirs.parent / "away"
    run.mkdir()
    for folder in (str(away), "run/../away", f"{run}/../away"):
        with pytest.raises(UserError, match=f"{key}=.* is outside of the run's folder"):
            trust.refuse_elsewhere(run, {key: folder}, [])
        trust.refuse_elsewhere(run, {key: folder}, [key])
    trust.refuse_elsewhere(run, {key: str(run / "within")}, [])
    trust.remember_folders({key: str(away)})
    trust.refuse_elsewhere(run, {key: "away"}, [])


def test_a_folder_that_was_given_to_a_resumed_run_need_not_be_given_again(run: Path) -> None:
    away = run.parent / "away"
    spec = Spec.saved(run, [f"wandb.dir={away}"], allowed=saved.RESUMABLE)
    trust.refuse_elsewhere(run, written(spec.plain), [])


@pytest.mark.parametrize("verb", ["resume", "evaluate"])
def test_neither_resuming_nor_evaluating_leaves_the_runs_folder(
    verb: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(run, lambda config: config["wandb"].update(dir="../away"))
    assert main([verb, str(run), "wandb.mode=disabled"]) == 2
    assert "wandb.dir=../away is outside of the run's folder" in capsys.readouterr().err
    edited(run, lambda config: config["wandb"].update(dir=None))
    precious = run.parent / "precious"
    precious.write_text("keep", encoding="utf-8")
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(precious)
    assert main([verb, str(run)]) == 2
    assert "outside of the run's folder; put the file itself there" in capsys.readouterr().err
    assert precious.read_text(encoding="utf-8") == "keep"


def test_an_archive_takes_nothing_from_elsewhere(run: Path) -> None:
    private = run.parent / "private"
    private.write_text("secret", encoding="utf-8")
    (run / "more.png").symlink_to(private)
    with pytest.raises(UserError, match="outside of the run's folder"):
        archive(run, run.parent / "archive")
    assert not (run.parent / "archive").exists()


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a/b", ".."])
def test_a_name_is_no_path(name: str, run: Path) -> None:
    edited(run, lambda config: config.update(task_name=name))
    with pytest.raises(UserError, match="has no slash"):
        _ = Spec.saved(run).experiment


def test_a_task_that_is_named_like_a_path_is_compared_in_the_usual_place(theirs: Path) -> None:
    folder = write_run(theirs.parent / "made", run_record(task="../../up"))
    out = evalkit.compare(folder, quiet=True)
    assert out.parent == Path("runs", "compare") and not Path("..", "up").exists()


SECRET = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_" + "Ab1" * 10


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    "word",
    [
        f"wandb.notes={SECRET}",
        f"wandb.tags=[a,{TOKEN}]",
        "wandb.name=hf_zyxwvutsrqponmlkjihgfedcba",
        "data.path='https://me:hunter2@example.org/texts'",
        "wandb.notes=${oc.env:WANDB_API_KEY}",
    ],
)
def test_a_key_in_a_setting_is_refused_without_saying_it(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*tiny.OVERRIDES, word]) == 2
    said = capsys.readouterr().err
    assert "has a key or token in it" in said and said.count("\n") == 1
    assert not any(secret in said for secret in (SECRET, TOKEN, "hunter2", "zyxwvuts"))


@pytest.mark.usefixtures("keys")
def test_what_is_said_of_a_mistake_has_no_key_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*tiny.OVERRIDES, f"wandb.notez={SECRET}"]) == 2
    assert main(["resume", f"https://me:hunter2@example.org/{TOKEN}"]) == 2
    said = capsys.readouterr().err
    assert said.count(credentials.MASK) >= 1 and not any(secret in said for secret in (SECRET, TOKEN, "hunter2"))


@pytest.mark.usefixtures("keys")
def test_neither_the_command_nor_the_log_has_a_key_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "evalkit", f"wandb.api={SECRET}", TOKEN])
    assert environment.describe("highest")["command"] == "python -m evalkit wandb.api=*** ***"
    flags = ["-u", "-W", "ignore", "-X", "dev"]  # of Python's own, as job scripts give them
    monkeypatch.setattr(sys, "orig_argv", ["python", *flags, "-m", "evalkit", "task=mqar"])
    assert environment.describe("highest")["command"] == "python -m evalkit task=mqar"
    with logs.kept(tmp_path / "evalkit.log"):
        try:
            raise RuntimeError(f"https://me:{SECRET}@example.org refused {TOKEN}")
        except RuntimeError as error:
            assert first_line(error) == "https://***@example.org refused ***"
            logging.getLogger("evalkit.here").exception("with %s", TOKEN)
    kept = (tmp_path / "evalkit.log").read_text(encoding="utf-8")
    assert "Traceback" in kept and not any(secret in kept for secret in (SECRET, TOKEN))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("keys")
def test_no_file_of_a_run_has_a_key_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With W&B's own files among them, of a run whose server does not answer and says the key in its error."""
    monkeypatch.setenv("WANDB_BASE_URL", f"http://me:{SECRET}@127.0.0.1:9")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "evalkit", f"wandb.api={SECRET}", TOKEN])
    folder = tiny.trained(tmp_path / "run", "wandb.mode=auto")
    files = tiny.files(folder)
    assert {"config.yaml", "environment.json", "history.json", "evalkit.log", "report.html"} <= set(files)
    assert any(name.startswith("wandb/") for name in files)
    found = {name for name, content in files.items() for key in (SECRET, TOKEN) if key.encode() in content}
    assert found == set()
    assert credentials.MASK in json.loads(files["environment.json"])["command"]


def test_an_ordinary_word_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "griffin")
    monkeypatch.setenv("KEYBOARD", "a long layout of a keyboard")
    text = "griffin on a long layout of a keyboard, https://example.org/@me, runs/a@b:c, hf_small"
    assert credentials.masked(text) == text
    assert Wandb(notes=text).notes == text


# What reads or makes Python objects, or runs what it reads.
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle", "torch"}
CALLS = {"eval", "exec", "compile_command", "unsafe_load", "full_load", "load_all"}


def unsafe(source: str) -> list[str]:
    """The imports, calls and arguments in a program that could make code of data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in UNSAFE]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in UNSAFE:
            found.append(node.module)
        elif isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            by_name = isinstance(node.func, ast.Name) or called.endswith("load")
            if called in CALLS and by_name:
                found.append(called)
            if called == "load" and ast.unparse(node.func) == "yaml.load" and "Safe" not in ast.unparse(node):
                found.append("yaml.load")
            risky = [word for word in node.keywords if word.arg in ("allow_pickle", "trust_remote_code")]
            found += [str(word.arg) for word in risky if ast.unparse(word.value) != "False"]
    return found


def test_nothing_reads_a_pickle() -> None:
    files = [path for package in ("evalkit", "kernels", "models", "tasks") for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 200
    assert {str(path): found for path in files if (found := unsafe(path.read_text(encoding="utf-8")))} == {}


def test_what_would_read_a_pickle_is_told() -> None:
    for source in (
        "import pickle",
        "from torch import load",
        "yaml.load(x)",
        "np.load(f, allow_pickle=True)",
        "eval(x)",
    ):
        assert unsafe(source), source
    assert not unsafe("experiment.eval(x); yaml.load(x, SafeLoader); np.load(f, allow_pickle=False); re.compile(x)")


class Bomb:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_archive_with_objects_in_it_is_one_line(run: Path) -> None:
    archive(run, Path("kept"))
    path = Path("kept", "parameters", "seed-0.npz")
    with np.load(path) as arrays:
        held = dict(arrays)
    name = next(name for name in held if name.startswith("blocks"))
    np.savez(path, **{**held, name: np.array([Bomb()], dtype=object)})
    sums.write(Path("kept"))
    with pytest.raises(UserError, match="cannot be read"):
        evalkit.load("kept")
    assert not Path("exploded").exists()


MARKUP = "<script>alert('x')</script><img src=x onerror=alert(1)><!--<script>\"'&$\\frac{$"


class Tags(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.slow
def test_pages_show_markup_as_text(tmp_path: Path) -> None:
    """Of names, notes, texts, commands, the environment and the configuration."""
    record = run_record(
        model=f"m{MARKUP}", task=f"t{MARKUP}", notes=[MARKUP], preset=MARKUP, text={"used": MARKUP, "digest": MARKUP}
    )
    folder = write_run(tmp_path / "made", record)
    (folder / "config.yaml").write_text(f"# {MARKUP}\n", encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps({"command": MARKUP, MARKUP: MARKUP}), encoding="utf-8")
    (folder / "history.json").write_text(json.dumps([{"command": MARKUP}]), encoding="utf-8")
    report(folder, Console(quiet=True))
    out = evalkit.compare(folder, folder=tmp_path / "out", quiet=True)
    for page in (folder / "report.html", out / "compare.html"):
        text = page.read_text(encoding="utf-8")
        found = Tags(text).found
        assert [attributes for tag, attributes in found if tag == "script"] == [
            {"type": "application/json", "id": "results"}
        ]
        assert not any(tag == "img" or name.startswith("on") for tag, named in found for name in named)
        embedded = text.partition('id="results">')[2].partition("</script>")[0]
        assert "<" not in embedded and json.loads(embedded)
        assert text.rstrip().endswith("</script>\n</body>\n</html>")

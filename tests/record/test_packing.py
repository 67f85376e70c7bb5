"""A study packs finished runs: each is read as its folder was, byte for byte, and later ones leave it alone."""

import gzip
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import evalkit
from evalkit.__main__ import main
from evalkit.core import rows, studies
from evalkit.core.errors import UserError
from evalkit.core.rows import Header, RowLog, row
from evalkit.record import packing
from evalkit.record.history import Work, add, record_of
from evalkit.reports.pooling import find_runs, load


def run(folder: Path, seed: int = 0, accuracy: float = 0.5) -> Path:
    """A finished run with every file that a study keeps."""
    folder.mkdir(parents=True)
    with RowLog(folder / rows.FILE) as log:
        log.begin(Header(folder.name, "t", "hawk", "evalkit.evaluations.extrapolation.report", train_length=8))
        at = {"run": folder.name, "task": "t", "model": "hawk", "seed": seed, "step": 2, "count": 4}
        log.write([row(metric="accuracy", split="test", length=n, total=4 * accuracy, **at) for n in (8, 16)])
    (folder / "config.yaml").write_text("train:\n  learning_rate: 1e-3\n  steps: 2\n  average: null\n", "utf-8")
    (folder / "environment.json").write_text(json.dumps({"command": "évalkit", "cores": 2}), "utf-8")
    add(folder, Work("evalkit", 0, 2))
    (folder / "results.json").write_text("{}", "utf-8")
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of two runs, whose folders are in `runs`."""
    runs = {name: run(tmp_path / "runs" / name, seed) for seed, name in enumerate(("fig/a", "fig/b"))}
    packing.add(tmp_path / "study", runs)
    return tmp_path / "study"


def test_a_packed_run_is_read_as_its_folder(study: Path, tmp_path: Path) -> None:
    for name in ("fig/a", "fig/b"):
        before, after = tmp_path / "runs" / name, study / name
        assert rows.record_bytes(after) == (before / rows.FILE).read_bytes()
        assert record_of(after) == record_of(before)
        assert load(after).recipe == load(before).recipe and load(after).recipe["train.learning_rate"] == "0.001"
        for file in packing.FILES:
            assert studies.content(after / file) == studies.content(before / file)
    whole = gzip.decompress((study / studies.ROWS).read_bytes())
    assert whole == b"".join((tmp_path / "runs" / name / rows.FILE).read_bytes() for name in ("fig/a", "fig/b"))


def test_every_part_of_a_study_is_a_folder_of_runs(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [study / "fig" / name for name in "ab"]
    assert find_runs([study]) == find_runs([study.parent / "study" / "fig"]) == rows.with_records(study) == both
    assert find_runs([both[1]]) == both[1:]
    assert [record["folder"] for record in evalkit.rows(both[0])] == [str(both[0])] * 2
    with pytest.raises(UserError, match="c does not exist: give folders of runs"):
        find_runs([study / "fig" / "c"])
    monkeypatch.chdir(study)
    assert find_runs([Path("fig")]) == find_runs([Path()]) == [Path("fig/a"), Path("fig/b")]


def test_runs_beside_studies_are_found_with_them(study: Path, tmp_path: Path) -> None:
    own = [tmp_path / "runs" / "fig" / name for name in "ab"]
    assert find_runs([tmp_path]) == [*own, study / "fig" / "a", study / "fig" / "b"]


def test_what_is_added_later_leaves_the_rest_as_it_was(study: Path, tmp_path: Path) -> None:
    before = (study / studies.ROWS).read_bytes(), (study / studies.RUNS).read_text()
    with (study / studies.ROWS).open("ab") as file:  # as if killed before `runs.json` was written
        file.write(b"half a run")
    third = run(tmp_path / "runs" / "c", 2)
    assert packing.add(study, {"c": third, "fig/a": tmp_path / "runs" / "fig" / "a"}) == ["c"]
    after = (study / studies.ROWS).read_bytes(), (study / studies.RUNS).read_text()
    assert after[0] == before[0] + gzip.compress((third / rows.FILE).read_bytes(), mtime=0)
    assert after[1].startswith(before[1].removesuffix("\n}\n"))
    assert packing.add(study, {"c": third}) == [] and (study / studies.ROWS).read_bytes() == after[0]


def test_several_that_add_at_once_all_have_their_runs_in_the_study(tmp_path: Path) -> None:
    """Each waits for the others; the lock is of a file, so that threads stand for processes."""
    runs = {f"run{seed}": run(tmp_path / f"run{seed}", seed) for seed in range(6)}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: packing.add(tmp_path / "study", {name: runs[name]}), runs))
    assert set(studies.runs_of(tmp_path / "study")) == set(runs)
    for name, folder in runs.items():
        assert rows.record_bytes(tmp_path / "study" / name) == (folder / rows.FILE).read_bytes()


def test_another_run_of_a_name_is_refused_and_one_that_is_not_finished(study: Path, tmp_path: Path) -> None:
    other, unfinished = run(tmp_path / "other", accuracy=0.75), run(tmp_path / "unfinished")
    (unfinished / "results.json").unlink()
    before = (study / studies.RUNS).read_bytes()
    with pytest.raises(UserError, match="has another run of the name fig/a"):
        packing.add(study, {"fresh": tmp_path / "runs" / "fig" / "b", "fig/a": other})
    with pytest.raises(UserError, match="is not finished"):
        packing.add(study, {"unfinished": unfinished})
    assert (study / studies.RUNS).read_bytes() == before


def test_the_command_names_runs_by_their_folders(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tmp_path / "runs" / "fig", tmp_path / "fig")
    assert main(["archive", str(tmp_path / "fig"), "--into", str(study / "fig")]) == 0
    assert "0 runs are new" in capsys.readouterr().out
    assert (
        main(["archive", str(tmp_path / "fig" / "b"), str(study / "fig" / "a"), "--into", str(tmp_path / "new")]) == 0
    )
    assert set(studies.runs_of(tmp_path / "new")) == {"a", "b"}
    assert rows.record_bytes(tmp_path / "new" / "a") == rows.record_bytes(study / "fig" / "a")
    monkeypatch.chdir(tmp_path / "fig" / "b")
    assert main(["archive", ".", "--into", str(tmp_path / "here")]) == 0
    assert set(studies.runs_of(tmp_path / "here")) == {"b"}
    assert main(["archive", str(study / "fig" / "a")]) == 2
    assert "archive takes a run and the folder to write" in capsys.readouterr().err


def test_a_study_that_was_damaged_is_named(study: Path) -> None:
    data = (study / studies.ROWS).read_bytes()
    (study / studies.ROWS).write_bytes(data[:-40])
    with pytest.raises(UserError, match="cut short"):
        rows.read(study / "fig" / "b")
    for text in ("[", "[]", '{"a": {}}', '{"a": {"rows.jsonl.gz": [-1, 2]}}', '{"a": null}'):
        (study / studies.RUNS).write_text(text, "utf-8")
        with pytest.raises(UserError, match=r"runs\.json is no study's list of runs"):
            rows.read(study / "fig" / "b")


def test_a_packed_run_has_no_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    kept = Path(__file__).parents[2] / "studies" / "synthetic" / "fig6b" / "hawk"
    for words in (["evaluate", str(kept)], ["resume", str(kept)]):
        assert main(words) == 2
        assert str(kept) in capsys.readouterr().err
    for words in (
        ["archive", str(kept), "elsewhere"],
        ["generate", str(kept), "a"],
        ["task=books", f"checkpoint={kept}"],
    ):
        assert main(words) == 2
        assert "keeps a record without parameters; train it again" in capsys.readouterr().err
    with pytest.raises(UserError, match="keeps a record without parameters"):
        evalkit.load(kept)
    assert not kept.exists()

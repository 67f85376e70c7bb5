"""`task=downstream`: benchmarks on a checkpoint of ours, its record, its calibration, and what is refused."""

import json
from pathlib import Path

import datasets.config
import pytest
from lm_eval.tasks import TaskManager

from evalkit.__main__ import main
from evalkit.core.errors import UserError
from evalkit.core.rows import read, value
from evalkit.evaluations.downstream import calibration, table1
from evalkit.evaluations.downstream import data_sets as hub
from evalkit.session import subjects
from support import benchmark_data, tiny
from support.language_models import fading


@pytest.fixture(autouse=True)
def a_tiny_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(subjects, "load_for_text", lambda checkpoint, dtype, allow_targets: fading())


@pytest.mark.slow
def test_a_run_records_every_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = benchmark_data.write(tmp_path / "data")
    code = main(
        [
            *("task=downstream", "checkpoint=some/griffin", "task.names=[piqa,winogrande]", f"data.path={data}"),
            *("wandb.mode=disabled", "hydra.run.dir=out", "format=json"),
        ]
    )
    assert code == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["folder"] == str(tmp_path / "out")
    rows = {row["metric"]: row for row in read("out").rows}
    assert set(rows) == {"piqa/acc", "piqa/acc_norm", "winogrande/acc"}
    for name, row in rows.items():
        task, metric = name.split("/")
        assert value(row) == printed["results"][task][metric]
        assert (row["count"], row["task"], row["model"]) == (2, "downstream", "tiny")
    for file in ("config.yaml", "environment.json", "results.json", "lm_eval.json", "report.html"):
        assert (tmp_path / "out" / file).is_file()
    assert (
        main(
            [
                "task=downstream",
                "checkpoint=some/griffin",
                "task.names=[piqa]",
                f"data.path={data}",
                "hydra.run.dir=out",
            ]
        )
        == 2
    )
    assert "out holds a run already" in capsys.readouterr().err
    before = (tmp_path / "out" / "metrics.jsonl").read_text()
    assert main(["resume=out"]) == 0, "benchmarks begin anew"
    assert (tmp_path / "out" / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "checkpoint is missing; give checkpoint=FOLDER"),
        (["checkpoint=x", "task.length=3"], "unknown key 'task.length'"),
        (
            ["checkpoint=x", "eval.max_lenght=3"],
            "unknown key 'eval.max_lenght'; the nearest valid one is 'eval.max_length'",
        ),
        (["checkpoint=x", "task.limit=many"], "task.limit='many'; allowed: int or null"),
        (["checkpoint=x", "task.names=[]"], "names=[] is empty"),
        (["checkpoint=x", "task.num_fewshot=-1"], "num_fewshot=-1; allowed: 0 or more, or null"),
        pytest.param(
            ["checkpoint=x", "task.names=[nothing]"], "task 'nothing' is unknown", marks=pytest.mark.exhaustive
        ),
        (["checkpoint=x", "eval.calibrate=gpt"], "calibrate='gpt' is not known; choose one of recurrentgemma-2b"),
        (["checkpoint=x", "task.names=[piqa]", "data.path=nowhere"], "task piqa reads validation of baber/piqa"),
        (["checkpoint=x", "wandb.mode=off"], "wandb.mode='off' is not known; choose one of auto"),
        (["checkpoint=x", "data.pth=x"], "unknown key 'data.pth'; the nearest valid one is 'data.path'"),
        (["checkpoint=x", "-m"], "one checkpoint at a time"),
        (
            ["checkpoint=x", "eval.calibrate=gemma-2b", "task.limit=5"],
            "calibrate=gemma-2b with limit=5 compares with another",
        ),
        (
            ["checkpoint=x", "eval.calibrate=gemma-2b", "task.names=[piqa]"],
            "calibrate=gemma-2b needs MMLU, task mmlu; add it",
        ),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task=downstream", *arguments]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("evalkit: ") and words in error
    assert list(Path.cwd().iterdir()) == []


def test_an_unknown_benchmark_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As above, of a smaller lm-eval: to read its 13,000 tasks takes seconds."""

    class Smaller(TaskManager):
        def __init__(self, include_path, include_defaults=True, metadata=None):
            whole = [hub.LM_EVAL_TASKS / "lambada"] if include_defaults else []
            super().__init__(include_path=[*whole, *include_path], include_defaults=False, metadata=metadata)

    monkeypatch.setattr(hub, "TaskManager", Smaller)
    assert hub.manager(["lambada"], {}).task_index["lambada"].tags, "a tag is not found in what its name suggests"
    assert main(["task=downstream", "checkpoint=x", "task.names=[nothing]"]) == 2
    assert "evalkit: task 'nothing' is unknown" in capsys.readouterr().err.splitlines()[-1]
    assert list(Path.cwd().iterdir()) == []


def results_of(values: dict[str, float], count: int) -> dict:
    """lm-eval's results with these percentages by column."""
    tasks = {column: calibration.COLUMNS[column] for column in values}
    return {
        "results": {task: {f"{metric},none": values[column] / 100} for column, (task, metric) in tasks.items()},
        "n-samples": {task: {"effective": count} for task, _ in tasks.values() if task != "mmlu"}
        | {"mmlu_anatomy": {"effective": count}},
        "group_subtasks": {"mmlu": ["mmlu_anatomy"]},
    }


def test_a_calibration_holds_within_one_standard_error() -> None:
    published = dict(calibration.known("gemma-2b").values)
    error = 100 * (0.773 * 0.227 / 999) ** 0.5
    near = {**published, "PIQA": published["PIQA"] + 0.97 * error}
    far = {**published, "PIQA": published["PIQA"] + 1.02 * error}
    assert all(check.holds for check in calibration.checks("gemma-2b", results_of(near, 1000)))
    assert [check.column for check in calibration.checks("gemma-2b", results_of(far, 1000)) if not check.holds] == [
        "PIQA"
    ]
    assert "| PIQA | 77.3 |" in calibration.shown("gemma-2b", calibration.checks("gemma-2b", results_of(far, 1000)))


def test_a_calibration_needs_its_tasks() -> None:
    with pytest.raises(UserError, match="calibrate=gemma-2b needs MMLU, task mmlu; add it to tasks"):
        calibration.checks("gemma-2b", results_of({"PIQA": 77.3}, 10))


def test_results_of_another_model_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published = dict(calibration.known("mamba-2.8b-slimpj").values)
    for shift, code, word in ((0.0, 0, "yes"), (9.0, 1, "NO")):
        file = tmp_path / "results.json"
        found = results_of({column: value + shift for column, value in published.items()}, 1000)
        file.write_text(json.dumps(found), encoding="utf-8")
        assert main(["calibrate", "mamba-2.8b-slimpj", str(file)]) == code
        assert f"| {word} |" in capsys.readouterr().out
    others = {
        "empty": {},
        "list": [],
        "bare": {"results": {"mmlu": {}}, "n-samples": {}},
        "lists": {"results": [], "n-samples": []},
    }
    for name, content in others.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    for name, words in (
        *((name, "holds no results of lm-eval") for name in ("empty", "list", "lists")),
        ("bare", "the results of task mmlu have no acc"),
        ("nowhere", "cannot be read"),
    ):
        assert main(["calibrate", "gemma-2b", str(tmp_path / f"{name}.json")]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1


def test_the_page_lists_what_the_command_checks() -> None:
    page = (tiny.ROOT / "studies" / "performance" / "checkpoints.md").read_text(encoding="utf-8")
    for name, published in calibration.PUBLISHED.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        cells = [cell.strip() for cell in line.split("|")[2:8]]
        assert cells == [
            f"{published.values[column]:.1f}" if column in published.values else "–" for column in table1_columns()
        ]


def table1_columns() -> list[str]:
    return ["MMLU", *table1.COLUMNS]


def test_averages_are_shown_as_the_paper_prints_them() -> None:
    printed = ["58.5", "65.3", "69.3", "54.4", "59.0", "64.2", "53.6", "59.5", "63.8", "57.2", "60.7", "65.8", "69.5"]
    shown = table1.beside_the_paper({"piqa": {"acc_norm,none": 0.5}}).splitlines()[2:-1]
    assert [line.split("|")[-2].strip() for line in shown] == printed


@pytest.mark.slow
def test_a_calibration_that_fails_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = benchmark_data.write(tmp_path / "data")
    calibrated = ("task.names=[hellaswag,piqa,winogrande]", "eval.calibrate=recurrentgemma-2b-deltanet")
    words = ("task=downstream", "checkpoint=some/griffin", *calibrated, f"data.path={data}", "hydra.run.dir=out")
    assert main([*words, "wandb.mode=disabled"]) == 1
    printed = capsys.readouterr().out
    assert "NO |" in printed and f"folder: {tmp_path / 'out'}" in printed


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_whole_of_table_1_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every subject of MMLU in both forms, with 5 questions shown, the rest with none; and a calibration that fails."""
    index = hub.manager(["griffin_table1"], {})
    tasks = hub.needed(index, ["griffin_table1"])
    subjects = {config["dataset_name"] for config in tasks.values() if config["dataset_path"] == "cais/mmlu"}
    data = benchmark_data.write(tmp_path / "data", subjects)
    code = main(
        [
            *("task=downstream", "checkpoint=some/griffin", f"data.path={data}", "eval.calibrate=gemma-2b"),
            *("wandb.mode=disabled", "hydra.run.dir=out"),
        ]
    )
    assert code == 1
    printed = capsys.readouterr().out
    assert "| here, MMLU by letters |" in printed and "| here, MMLU by answers |" in printed
    assert "NO |" in printed and f"folder: {tmp_path / 'out'}" in printed
    rows = {row["metric"]: row for row in read("out").rows}
    assert rows["mmlu/acc"]["count"] == rows["griffin_mmlu_continuation/acc_norm"]["count"] == 2 * 57
    for metric, shots in (("mmlu_anatomy/acc", 5), ("mmlu_virology_continuation/acc_norm", 5), ("piqa/acc_norm", 0)):
        assert rows[metric]["extra"] == {"num_fewshot": shots}

"""lm-eval with our models: its own task definitions on local data, its command, and what is refused before a run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets.config
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from evalkit.checkpoints.pretrained import load
from evalkit.core.errors import UserError
from evalkit.evaluations.downstream import data_sets as hub
from evalkit.evaluations.downstream import table1
from evalkit.inference.scoring import Request
from evalkit.lm_eval import command as lm_eval
from evalkit.lm_eval import model as lm_eval_model
from evalkit.lm_eval.model import EvalkitLM
from evalkit.tasks.text.tokenizers import Lossless
from support import benchmark_data, tiny
from support.language_models import Finder, Reader, fading, logits_of, scorer_of
from support.language_models import pretrained as reading

BOS = 256
TABLE1 = ["hellaswag", "piqa", "arc_easy", "arc_challenge", "winogrande", "mmlu_anatomy", "mmlu_anatomy_continuation"]


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What `datasets` makes of local files stays in the tests' folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, blank_figures: None) -> Path:
    """A run of this project on 258 tokens."""
    small = ("task.vocab_size=258", "model.pattern=[recurrent]", "eval.lengths=[32]", "train.steps=2")
    return tiny.trained(tmp_path_factory.mktemp("run"), *small)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of each task of Table 1 (one subject of MMLU), on made-up data, 5 shots where there are any to show."""
    data = benchmark_data.write(tmp_path_factory.mktemp("data"))
    local = tmp_path_factory.mktemp("local")
    index = hub.manager(TABLE1, {})
    hub.localise(index, hub.needed(index, TABLE1), data, local)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm_eval_model, "find_for_text", lambda checkpoint, dtype: fading())
        mmlu = [name for name in TABLE1 if name.startswith("mmlu")]
        rest = [name for name in TABLE1 if name not in mmlu]
        found: dict[str, Any] = {"results": {}, "samples": {}, "n-shot": {}, "config": {}}
        for names, shots in ((rest, 0), (mmlu, 5)):
            part = lm_eval.evaluate(
                model="evalkit",
                model_args={"pretrained": "tiny"},
                tasks=names,
                task_manager=hub.manager(names, {}, [local]),
                num_fewshot=shots,
            )
            for key in found:
                found[key] |= part[key]
    return found


def text(context: str, continuation: str) -> Request:
    return Request((BOS, *context.encode()), tuple(continuation.encode()))


PROMPTS = {
    "hellaswag": [
        ("Baking bread: A woman kneads dough on a table. She", " shapes it. and bakes it."),
        ("Baking bread: A woman kneads dough on a table. She", " flies away."),
    ],
    "piqa": [
        ("Question: To open a jar\nAnswer:", " twist the lid."),
        ("Question: To open a jar\nAnswer:", " sing to the lid for an hour."),
    ],
    "arc_easy": [
        ("Question: Which is a star?\nAnswer:", " the Moon"),
        ("Question: Which is a star?\nAnswer:", " the Sun"),
    ],
    "winogrande": [
        ("The trophy does not fit in the case because the trophy", " is too big."),
        ("The trophy does not fit in the case because the case", " is too big."),
    ],
}


@pytest.mark.parametrize("task", PROMPTS)
def test_what_the_benchmarks_ask_is_what_is_scored(results: dict[str, Any], task: str) -> None:
    """The first choices of the first document, from its raw fields, begun once, scored one by one."""
    first = next(sample for sample in results["samples"][task] if sample["doc_id"] == 0)
    wanted = scorer_of(fading(), share_prefixes=False).scores([text(*prompt) for prompt in PROMPTS[task]])
    assert [tuple(arguments) for arguments in first["arguments"][:2]] == PROMPTS[task]
    for answer, score in zip(first["filtered_resps"], wanted, strict=False):
        assert answer[0] == pytest.approx(score.logprob, abs=1e-4)
        assert answer[1] == score.is_greedy


def test_mmlu_shows_five_questions_and_asks_one(results: dict[str, Any]) -> None:
    for task, delimiter in (("mmlu_anatomy", "\nAnswer: A"), ("mmlu_anatomy_continuation", "\nAnswer: ")):
        for sample in results["samples"][task]:
            context = sample["arguments"][0][0]
            assert context.count(delimiter) == 5 and context.endswith("\nAnswer:")
        assert results["n-shot"][task] == 5
    letters = [arguments[1] for arguments in results["samples"]["mmlu_anatomy"][0]["arguments"]]
    assert letters == [" A", " B", " C", " D"]


def test_each_row_of_table_1_has_its_metric(results: dict[str, Any]) -> None:
    """Accuracy normalised by characters, plain for WinoGrande and for letters: recomputed from the log-likelihoods."""
    metrics = {task: metric for task, metric in table1.COLUMNS.values()}
    for task in TABLE1:
        metric = metrics.get(task, "acc_norm" if "continuation" in task else "acc")
        right = []
        for sample in results["samples"][task]:
            logprobs = np.asarray([answer[0] for answer in sample["filtered_resps"]])
            characters = np.asarray([len(continuation) - 1 for _, continuation in sample["arguments"]])
            best = int(np.argmax(logprobs / characters if metric == "acc_norm" else logprobs))
            right.append(best == gold(task, sample["doc"]))
        assert results["results"][task][f"{metric},none"] == np.mean(right)


def gold(task: str, document: dict[str, Any]) -> int:
    """The right choice, from a document's raw fields."""
    if task.startswith("arc"):
        return document["choices"]["label"].index(document["answerKey"])
    return int(document["answer"]) - 1 if task == "winogrande" else int(document.get("label", document.get("answer")))


def test_the_result_stands_beside_the_papers_rows(results: dict[str, Any]) -> None:
    shown = table1.beside_the_paper(results["results"])
    assert len(shown.splitlines()) == 2 + len(table1.PAPER) + 1
    hellaswag = 100 * results["results"]["hellaswag"]["acc_norm,none"]
    assert f"| here, without MMLU | – | {hellaswag:.1f} |" in shown
    assert "| Griffin 14B (paper) | 49.5 | 81.4 | 81.8 | 74.1 | 79.1 | 50.8 | 69.5 |" in shown
    assert table1.beside_the_paper({"lambada_openai": {"acc,none": 1.0}}) == ""


def test_the_model_says_what_it_is(results: dict[str, Any]) -> None:
    assert results["config"]["model_sha"] == fading().digest
    assert results["config"]["truncated_requests"] == 0
    assert results["config"]["bootstrap_iters"] == 0


def instances(kind: Any, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, one, number) for number, one in enumerate(arguments)]


def test_rolling_is_the_whole_document_through_the_cache() -> None:
    document = "one two three four five six"
    model = EvalkitLM(fading(), chunk=8)
    logits = logits_of(fading(), (BOS, *document.encode()[:-1]))
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    wanted = logprobs[np.arange(len(document)), list(document.encode())].sum()
    found = model.loglikelihood_rolling(instances("loglikelihood_rolling", (document,), ("",)), disable_tqdm=True)
    assert found == [pytest.approx(wanted, abs=1e-4), 0.0]
    with pytest.raises(UserError, match="max_length=20"):
        EvalkitLM(fading(), max_length=20).loglikelihood_rolling(instances("loglikelihood_rolling", (document,)))


def test_generation_is_greedy_and_stops() -> None:
    pretrained = fading()
    model, written = EvalkitLM(pretrained), []
    for _ in range(6):
        written.append(int(logits_of(pretrained, (BOS, *b"abc", *written))[-1].argmax()))
    whole = pretrained.tokenizer.decode(written)
    asked = [({"until": [], "max_gen_toks": 6}), ({"until": [whole[2]], "max_gen_toks": 6})]
    found = model.generate_until(instances("generate_until", *(("abc", settings) for settings in asked)), True)
    assert found == [whole, whole.split(whole[2])[0]]
    with pytest.raises(UserError, match="num_beams=3 is not served; allowed: until, max_gen_toks"):
        model.generate_until(instances("generate_until", ("a", {"num_beams": 3})), True)


def test_texts_are_drawn_at_a_temperature_the_same_in_every_run() -> None:
    asked = [("abc", {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 1.0})] * 2
    first, again = (EvalkitLM(fading()).generate_until(instances("generate_until", *asked), True) for _ in range(2))
    assert first == again and first[0] != first[1]


def test_a_prompt_that_leaves_no_room_is_refused_or_cut_and_counted() -> None:
    asked = instances("generate_until", ("abcdefgh", {"until": [], "max_gen_toks": 3}))
    with pytest.raises(UserError, match="max_length=6"):
        EvalkitLM(fading(), max_length=6).generate_until(asked, True)
    model = EvalkitLM(fading(), max_length=6, truncate=True)
    cut = model.generate_until(asked, True)
    assert model.truncated == 1
    whole = EvalkitLM(fading()).generate_until(
        instances("generate_until", ("fgh", {"until": [], "max_gen_toks": 3})), True
    )
    assert cut == whole


class Pairs(Lossless):
    """A tokenizer whose tokens are pairs of characters, so that one can span the join, and that begins texts itself."""

    name = "pairs"
    bos, eos, vocab_size = 0, 1, 258

    def encode(self, text: str) -> list[int]:
        return [2 + sum(text[i : i + 2].encode()) % 250 for i in range(0, len(text), 2)]

    def decode(self, tokens: Any) -> str:
        return ""


def test_a_token_across_the_join_loses_nothing() -> None:
    pretrained = fading()
    model = EvalkitLM(type(pretrained)(pretrained.model, pretrained.params, Pairs(), "pairs", "d", None))
    pairs = Pairs()
    assert model._encode_pair("abcd", "ef") == ([0, *pairs.encode("abcd")], pairs.encode("ef"))
    assert model._encode_pair("abc", "d") == ([0, *pairs.encode("abc")], pairs.encode("d"))
    assert model._encode_pair("ab ", "c") == ([0, *pairs.encode("ab")], pairs.encode(" c"))


def test_the_first_token_stands_once_and_only_where_wanted() -> None:
    pretrained = fading()
    model = EvalkitLM(pretrained)
    assert model.tok_encode("a") == [BOS, 97]
    assert model.tok_encode("a", add_special_tokens=False) == [97]
    assert EvalkitLM(pretrained, add_bos=False).tok_encode("a") == [97]
    assert model._encode_pair(" ", "a") == ([BOS], [32, 97])

    class Beginning(Pairs):
        def encode(self, text: str) -> list[int]:
            return [0, *super().encode(text)]

    begun = type(pretrained)(pretrained.model, pretrained.params, Beginning(), "begun", "d", None)
    assert EvalkitLM(begun).tok_encode("ab").count(0) == 1


def test_what_is_too_long_is_refused_or_cut_and_counted() -> None:
    asked = instances("loglikelihood", ("abcdefgh", "i"), ("a", "b"))
    with pytest.raises(UserError, match="request 0 has 9 tokens, more than max_length=4"):
        EvalkitLM(fading(), max_length=4).loglikelihood(asked, disable_tqdm=True)
    model = EvalkitLM(fading(), max_length=4, truncate=True)
    (cut, _), (whole, _) = model.loglikelihood(asked, disable_tqdm=True)
    assert model.get_model_info()["truncated_requests"] == 1
    wanted = scorer_of(fading()).scores([text("fgh", "i"), text("a", "b")])
    assert [cut, whole] == [pytest.approx(score.logprob, abs=1e-5) for score in wanted]


def test_a_response_cache_is_of_one_checkpoint_and_its_settings() -> None:
    hawk = EvalkitLM(fading())
    other = EvalkitLM(replace(fading(), digest="another"))
    windowed = EvalkitLM(replace(fading(), settings="a window of 2049"))
    others = [EvalkitLM(fading(), add_bos=False), EvalkitLM(fading(), max_length=9)]
    assert len({model.fingerprint for model in (hawk, other, windowed, *others)}) == 5
    assert hawk.fingerprint == EvalkitLM(fading(), chunk=8).fingerprint


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pretrained": "tiny", "lenght": 3}, "model argument 'lenght' is unknown; allowed: pretrained, dtype"),
        ({}, "pretrained is missing"),
        ({"pretrained": "nowhere/at/all"}, "checkpoint nowhere/at/all does not exist"),
        ({"pretrained": "tests"}, "it has no config.json, and no checkpoints of Orbax"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.ROOT)
    with pytest.raises(UserError, match=words):
        EvalkitLM(**arguments)


def test_an_unreachable_hub_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before lm-eval indexes its tasks, and before a checkpoint is looked at."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    code = lm_eval.main(["run", "--model", "evalkit", "--model_args", "pretrained=nowhere", "--tasks", "piqa"])
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    for word in ("task piqa", "baber/piqa", "--data_path FOLDER", "HF_HOME", "HF_ENDPOINT"):
        assert word in line


def test_an_unknown_task_and_a_missing_data_set_are_one_line(tmp_path: Path) -> None:
    index = hub.manager(["piqa"], {})
    with pytest.raises(UserError, match=r"task piqa reads validation of baber/piqa, .*piqa/validation.jsonl"):
        hub.localise(index, hub.needed(index, ["piqa"]), tmp_path, tmp_path)
    benchmark_data.write(tmp_path)
    with pytest.raises(UserError, match=r"task piqa reads validation and train of baber/piqa"):
        hub.localise(index, hub.needed(index, ["piqa"]), tmp_path, tmp_path, shots=3)
    with pytest.raises(UserError, match="task 'nothing' is unknown"):
        hub.needed(index, ["nothing"])


def test_a_task_that_shows_examples_of_its_own_accord_needs_them(tmp_path: Path) -> None:
    """lm-eval would show questions of the test split, and only warn of it."""
    index = TaskManager(include_path=[hub.LM_EVAL_TASKS / "logiqa2"], include_defaults=False)  # all take 15 s
    needed = hub.needed(index, ["logieval"])
    (config,) = needed.values()
    assert config["num_fewshot"] == 1 and config.get("fewshot_split") is None
    folder = tmp_path / Path(config["dataset_path"]).name / (config.get("dataset_name") or "")
    folder.mkdir(parents=True)
    (folder / "test.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"task logieval reads test and train of "):
        hub.localise(index, needed, tmp_path, tmp_path)
    hub.localise(index, needed, tmp_path, tmp_path, shots=0)


def test_table_1_is_all_of_it() -> None:
    index = hub.manager(["griffin_table1"], {})
    tasks = hub.needed(index, ["griffin_table1"])
    assert len(tasks) == 57 + 57 + 5
    assert {config["dataset_path"] for config in tasks.values()} == {
        "cais/mmlu",
        "Rowan/hellaswag",
        "baber/piqa",
        "allenai/ai2_arc",
        "allenai/winogrande",
    }
    mmlu, *rest = index.task_index["griffin_table1"].cfg["task"]
    assert mmlu == {"group": "mmlu", "num_fewshot": 5} and rest == ["griffin_mmlu_continuation", *TABLE1[:5]]
    assert index.task_index["griffin_mmlu_continuation"].cfg["num_fewshot"] == 5


@pytest.mark.slow
def test_the_command_runs_a_run_of_ours(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a smaller lm-eval: to read its 13,000 tasks takes seconds."""

    class Smaller(TaskManager):
        def __init__(self, include_path, metadata=None):
            whole = [hub.LM_EVAL_TASKS / "hellaswag", *include_path]
            super().__init__(include_path=whole, include_defaults=False, metadata=metadata)

    monkeypatch.setattr("lm_eval.tasks.TaskManager", Smaller)
    data = benchmark_data.write(tmp_path / "data")
    output = tmp_path / "out"
    code = lm_eval.main(
        [
            *("run", "--model", "evalkit", "--model_args", f"pretrained={run},max_length=512", "--tasks", "hellaswag"),
            *("--data_path", str(data), "--output_path", str(output), "--use_cache", str(tmp_path / "cache")),
        ]
    )
    printed = capsys.readouterr().out
    assert code == 0
    assert "|hellaswag|" in printed and "| Griffin 3B (paper) | 32.6 | 73.5 |" in printed
    assert len(list(output.rglob("results_*.json"))) == 1
    fingerprint = EvalkitLM(load(str(run), "float32"), max_length=512).fingerprint
    assert [path.name for path in tmp_path.glob("cache*")] == [f"cache_{fingerprint}_rank0.db"]


def test_loss_by_position_is_the_loss_of_each_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = "one two three, four five six seven eight nine"
    (tmp_path / "text.txt").write_text(document)
    (tmp_path / "short.txt").write_text("too short")
    monkeypatch.setattr(lm_eval_model, "find_for_text", lambda checkpoint, dtype: fading())
    found = lm_eval.evaluate(
        model="evalkit",
        model_args={"pretrained": "tiny"},
        tasks=["griffin_loss_by_position"],
        task_manager=hub.manager(
            ["griffin_loss_by_position"], {"text": str(tmp_path), "length": 32, "segments": 2, "pretrained": "tiny"}
        ),
    )
    logits = logits_of(fading(), (BOS, *document.encode()[:-1]))
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    bits = -logprobs[np.arange(len(document)), list(document.encode())] / np.log(2)
    first, second = document.index(" five"), document.index(" eight")
    metrics = found["results"]["griffin_loss_by_position"]
    assert metrics["bits_per_byte@16,none"] == pytest.approx(bits[:first].mean(), abs=1e-4)
    assert metrics["bits_per_byte@32,none"] == pytest.approx(bits[first:second].mean(), abs=1e-4)
    assert found["n-samples"]["griffin_loss_by_position"]["effective"] == 1


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "reads texts of yours; give --metadata text=FILE"),
        ({"text": "nowhere.txt"}, "griffin_loss_by_position: nowhere.txt is no file, no folder and no pattern"),
        ({"text": "{folder}"}, "holds no .txt, .tex, .md, .jsonl, .parquet"),
        ({"text": "{folder}", "length": 4, "segments": 8}, "length=4, segments=8; allowed"),
    ],
)
def test_texts_that_are_not_there_are_one_line(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    given = {name: str(tmp_path) if value == "{folder}" else value for name, value in metadata.items()}
    index = hub.manager(["griffin_loss_by_position"], given)
    with pytest.raises(UserError, match=words):
        index.load(["griffin_loss_by_position"])


def phonebook_of(metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch, window: int | None) -> dict[str, Any]:
    """The task on a model that looks answers up within its window."""
    monkeypatch.setattr(lm_eval_model, "find_for_text", lambda checkpoint, dtype: reading(Reader(window)))
    index = hub.manager(["griffin_phonebook"], {**metadata, "pretrained": "tiny"})
    return lm_eval.evaluate(
        model="evalkit", model_args={"pretrained": "tiny"}, tasks=["griffin_phonebook"], task_manager=index
    )


@pytest.mark.slow
def test_the_phonebook_is_looked_up_by_any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    found = phonebook_of({"entries": [5, 9], "prompts": 3}, monkeypatch, window=None)
    metrics = found["results"]["griffin_phonebook"]
    for size in (5, 9):
        assert metrics[f"exact_match@{size},none"] == metrics[f"digit_accuracy@{size},none"] == 1.0
    forgetful = phonebook_of({"entries": 30, "prompts": 4, "depth": 0.0}, monkeypatch, window=200)
    assert forgetful["results"]["griffin_phonebook"]["exact_match@30,none"] == 0.0


def test_needles_are_found_by_any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_eval_model, "find_for_text", lambda checkpoint, dtype: reading(Finder()))
    metadata = {"sentences": [5, 9], "prompts": 3, "values": 2, "value": "uuids", "pretrained": "tiny"}
    index = hub.manager(["griffin_needle"], metadata)
    asked = {"model": "evalkit", "model_args": {"pretrained": "tiny"}, "tasks": ["griffin_needle"]}
    metrics = lm_eval.evaluate(**asked, task_manager=index)["results"]["griffin_needle"]
    assert all(metrics[f"{metric}@{size},none"] == 1 for metric in ("found", "all_found") for size in (5, 9))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"sentences": 0}, "griffin_needle: sentences=0; allowed: 1 to"),
        ({"sentences": "many"}, "griffin_needle: sentences='many'; allowed: int or a list of int"),
        ({"haystack": "nowhere.txt"}, "haystack='nowhere.txt' is none of noise, needles"),
        ({"depth": "deep"}, "depth='deep'; allowed: float or null"),
        ({"prompts": 0}, "prompts=0; allowed: 1 or more"),
    ],
)
def test_needles_that_cannot_be_are_one_line(metadata: dict[str, Any], words: str) -> None:
    index = hub.manager(["griffin_needle"], metadata)
    with pytest.raises(UserError, match=words):
        index.load(["griffin_needle"])


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"entries": 2}, "griffin_phonebook: entries=2; allowed: 3 to"),
        ({"variant": "x"}, "variant='x'; allowed: jelassi"),
        ({"prompts": 0}, "prompts=0; allowed: 1 or more"),
    ],
)
def test_books_that_cannot_be_are_one_line(metadata: dict[str, Any], words: str) -> None:
    index = hub.manager(["griffin_phonebook"], metadata)
    with pytest.raises(UserError, match=words):
        index.load(["griffin_phonebook"])

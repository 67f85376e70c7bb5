"""lm-eval's command, all of it: flags by version, chat templates, ways to draw, what is refused, what is private."""

import json
import re
from argparse import Namespace
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lm_eval
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.api.task import Task
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.tasks import TaskManager
from packaging.version import Version
from yaml import YAMLError

from evalkit.checkpoints import tokenizer_files
from evalkit.core.chats import Chat
from evalkit.core.contracts import Unread
from evalkit.core.errors import UserError
from evalkit.evaluations.downstream import data_sets
from evalkit.evaluations.downstream.language_model import Wanted, wanted_of
from evalkit.evaluations.downstream.tasks import phonebook
from evalkit.inference.sampling import Sampler
from evalkit.lm_eval import command, private
from evalkit.lm_eval import model as lm_eval_model
from evalkit.lm_eval.model import DEFAULT_DEVICE, EvalkitLM
from evalkit.tasks.text.tokenizers import Bytes
from support import tiny
from support.language_models import fading

TURN = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}\n{% endfor %}"
TURNS = TURN + "{% if add_generation_prompt %}[model]{% endif %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TURNS


def unread(*, chat: Chat | None = None) -> Unread:
    """A checkpoint whose weights must not be read."""
    return Unread(fading().model, Bytes(), None, lambda: pytest.fail("weights are read"), "tiny", chat)


def test_the_table_of_flags_is_lm_evals_own() -> None:
    page = (tiny.ROOT / "docs" / "lm-eval.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(--\w+)` \| ([\d.]+)", page, re.MULTILINE)
    parser = private.parsers(private.HarnessCLI())["run"]
    flags = {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")} - {"--help"}
    installed = Version(Version(version("lm_eval")).base_version)
    assert flags == {flag for flag, since in rows if Version(since) <= installed}, "docs/lm-eval.md lists every flag"
    assert len(rows) == len({flag for flag, _ in rows})


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "do_sample": st.booleans(),
            "temperature": st.sampled_from([0.0, 0.7, 1.0]),
            "top_k": st.sampled_from([None, -1, 0, 1, 40]),
            "top_p": st.sampled_from([None, 0.5, 1.0]),
            "until": st.lists(st.text(min_size=1), max_size=2),
            "num_beams": st.just(1),
        },
    )
)
def test_what_is_drawn_is_what_is_said(said: dict[str, Any]) -> None:
    """Greedy unless something is drawn: at a temperature of 1 if none is given, of what top-k and top-p leave."""
    drawn = said.get("do_sample", said.get("temperature", 0.0) > 0)
    top_k, top_p = said.get("top_k") or 0, said.get("top_p") or 1.0
    if drawn and said.get("temperature") == 0 and (top_k > 0 or top_p < 1):
        with pytest.raises(UserError, match="with temperature=0, which takes the likeliest token"):
            wanted_of(said)
        return
    sampler = Sampler(said.get("temperature", 1.0), top_k if top_k > 0 else None, top_p) if drawn else Sampler()
    assert wanted_of({**said, "max_new_tokens": 7}) == Wanted(tuple(said.get("until", [])), 7, sampler)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"num_beams": 4}, "generation setting num_beams=4 is not served; allowed: until, max_gen_toks, do_sample"),
        ({"do_sample": True, "top_p": 2}, "top_p=2.0; allowed: above 0"),
        ({"do_sample": True, "temperature": "warm"}, "generation settings: could not convert"),
        ({"until": [""]}, "until holds an empty string"),
        ({"max_gen_toks": 0}, "max_gen_toks=0; allowed: 1 or more"),
        ({"max_new_tokens": 1.5}, "max_new_tokens=1.5; allowed: whole numbers"),
        ({"do_sample": True, "top_k": 1.5}, "top_k=1.5; allowed: whole numbers"),
        ({"do_sample": "maybe"}, "do_sample='maybe'; allowed: true, false"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(said: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        wanted_of(said)


CONTENTS = st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip)


@settings(max_examples=30, deadline=None)
@given(st.lists(CONTENTS, min_size=1, max_size=4), st.booleans())
def test_a_conversation_is_written_as_the_template_says(contents: list[str], answers: bool) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    chat = Chat({"default": "{{ bos_token }}" + TURNS}, {"bos_token": "<bos>"})
    whole = "".join(f"[{message['role']}]{message['content'].strip()}\n" for message in messages)
    text = chat.text(messages, answers=answers)
    if answers:
        assert text == f"{whole}[model]"
    else:  # the answer goes on where the last message ends
        assert whole.startswith(text.rstrip()) and text.rstrip().endswith(contents[-1].strip())


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages.append(1) }}", "refuses the conversation"),
        ("{{ ''.__class__.__mro__ }}", "refuses the conversation"),
        ("{% for %}", "refuses the conversation"),
        ("{{ messages[7].content.x }}", "refuses the conversation"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ],
)
def test_a_template_of_a_strangers_reaches_nothing(template: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Chat({"default": template}, {}).text([{"role": "user", "content": "a"}])


def test_what_transformers_gives_to_templates_is_there() -> None:
    template = (
        "{% generation %}{{ messages[0] | tojson }}{% endgeneration %}{% for m in [1, 2] %}{% break %}{% endfor %}"
    )
    assert Chat({"a": template}, {}).text([{"role": "user", "content": "é"}]) == '{"role": "user", "content": "é"}'


CONFIG = "tokenizer_config.json"
SEVERAL = '{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}'
ONE = '{"bos_token": {"content": "<b>"}, "chat_template": "c"}'


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({CONFIG: ONE}, {"default": "c"}),
        ({CONFIG: SEVERAL}, {"rag": "r", "default": "d"}),
        (
            {CONFIG: ONE, "chat_template.jinja": "j", "additional_chat_templates/x.jinja": "x"},
            {"default": "j", "x": "x"},
        ),
        ({CONFIG: "{}"}, None),
        ({}, None),
    ],
)
def test_templates_are_found_where_they_are_released(tmp_path: Path, files: dict[str, str], names: Any) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    chat = tokenizer_files.chat_of(tmp_path)
    assert (chat and dict(chat.templates)) == names
    if chat and files[CONFIG] == ONE:
        assert chat.tokens == {"bos_token": "<b>"}


@pytest.mark.parametrize("content", ["{", "[]", '{"chat_template": 7}', '{"chat_template": [{"name": 1}]}'])
def test_a_broken_file_of_templates_is_one_line_for_who_applies_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / CONFIG).write_text(content)
    chat = tokenizer_files.chat_of(tmp_path)
    with pytest.raises(UserError, match=r"tiny: .*its tokenizer_config\.json"):
        EvalkitLM(replace(fading(), chat=chat)).chat_template(True)


def test_what_lm_eval_hands_over_by_itself_is_passed_over() -> None:
    defaults = {"batch_size": 1, "max_batch_size": None, "device": DEFAULT_DEVICE}
    for device in (DEFAULT_DEVICE, "cpu", None):
        EvalkitLM.create_from_arg_obj(
            {"pretrained": fading(), "trust_remote_code": True}, {**defaults, "device": device}
        )
    with pytest.raises(UserError, match="device='mps' is lm-eval's, and JAX uses cpu; leave it out"):
        EvalkitLM(fading(), device="mps")


def test_a_system_role_that_a_template_has_not_is_left_out_of_tasks_but_never_of_a_users() -> None:
    model = EvalkitLM(replace(fading(), chat=Chat({"default": NO_SYSTEM}, {})))
    assert model.chat_template(True) == NO_SYSTEM
    user = {"role": "user", "content": "a"}
    assert model.apply_chat_template([{"role": "system", "content": "s"}, user]) == "[user]a\n[model]"
    with pytest.raises(UserError, match=r"no system role.*leave out --system_instruction"):
        model.refuse_system("be kind")


@pytest.mark.parametrize(
    ("stated", "allowed"),
    [
        ({"chunk": "a"}, "int"),
        ({"chunk": 1.5}, "int"),
        ({"tokens_per_batch": True}, "int"),
        ({"truncate": "a"}, "bool"),
        ({"share_prefixes": 2}, "bool"),
        ({"add_bos": "maybe"}, "bool or null"),
    ],
)
def test_a_model_argument_of_another_type_is_one_line(stated: dict[str, Any], allowed: str) -> None:
    with pytest.raises(UserError, match=rf"^model argument {next(iter(stated))}=.*; allowed: {allowed}$"):
        EvalkitLM(fading(), **stated)


PHONEBOOK = {"entries": [5], "prompts": 2}


@pytest.mark.parametrize(
    ("chat", "words", "said"),
    [
        (None, {"apply_chat_template": True}, "tiny has no chat template; leave out --apply_chat_template"),
        (
            {"a": TURNS, "b": TURNS},
            {"apply_chat_template": True},
            "chat template 'default' is not there; allowed: a, b",
        ),
        ({"a": TURNS}, {"apply_chat_template": "c"}, "chat template 'c' is not there; allowed: a"),
        ({"a": NO_SYSTEM}, {"apply_chat_template": True, "system_instruction": "s"}, "leave out --system_instruction"),
        ({"a": "{% if %}"}, {"apply_chat_template": True}, "the chat template refuses the conversation"),
        (None, {"gen_kwargs": {"num_beams": 2}}, "task griffin_phonebook: generation setting num_beams=2"),
        (None, {"gen_kwargs": {"top_p": 0.9}}, "--gen_kwargs top_p=0.9 means nothing where the likeliest token"),
        (None, {"gen_kwargs": {"temperature": 0.7}}, "--gen_kwargs temperature=0.7 means nothing where the likeliest"),
        (None, {"device": "tpu"}, "device='tpu' is lm-eval's, and JAX uses cpu"),
        (None, {"num_fewshot": -1}, "--num_fewshot -1; allowed: 0 or more"),
        (None, {"limit": 0}, "--limit 0; allowed"),
        (None, {"limit": float("nan")}, "--limit nan; allowed"),
        (None, {"limit": float("inf")}, "--limit inf; allowed"),
        (None, {"limit": 1.5}, "--limit 1.5; allowed"),
        (None, {"samples": {"griffin_phonebook": 1}}, "--samples gives 1 for griffin_phonebook; give the documents'"),
        (None, {"samples": {"griffin_phonebook": []}}, "--samples gives [] for griffin_phonebook; give the documents'"),
        (None, {"samples": {"piqa": [0]}}, "--samples names 'piqa', which is not run; allowed: griffin_phonebook"),
        (None, {"samples": {"griffin_phonebook": [2]}}, "--samples names document 2 of griffin_phonebook"),
        (None, {"check_integrity": True}, "--check_integrity runs tests that"),
    ],
)
def test_what_can_be_refused_is_refused_before_weights(
    chat: dict[str, str] | None, words: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = unread(chat=None if chat is None else Chat(chat, {}))
    monkeypatch.setattr(lm_eval_model, "find_for_text", lambda checkpoint, dtype: found)
    index = data_sets.manager(["griffin_phonebook"], PHONEBOOK)
    with pytest.raises(UserError) as refused:
        command.evaluate(
            model="evalkit",
            model_args={"pretrained": "tiny"},
            tasks=["griffin_phonebook"],
            task_manager=index,
            **{"gen_kwargs": None, **words},
        )
    assert said in str(refused.value)


def own_task(folder: Path, lines: str, **more: Any) -> TaskManager:
    """An index of one task, `mine`, whose data are these lines of JSON, for examples and for questions."""
    (folder / "data.jsonl").write_text(lines)
    config = {
        "task": "mine",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"train": str(folder / "data.jsonl"), "test": str(folder / "data.jsonl")}},
        **dict(training_split="train", fewshot_split="train", test_split="test", output_type="multiple_choice"),
        **dict(doc_to_text="{{q}}", doc_to_choice=["a", "b"], doc_to_target="{{a}}"),
        **more,
    }
    (folder / "mine.yaml").write_text(json.dumps(config))
    return TaskManager(include_path=[folder], include_defaults=False)


LINES = '{"q": "x", "a": 0}\n{"q": "y", "a": 1}\n'


@pytest.mark.parametrize(
    ("lines", "of_task", "words", "said"),
    [
        (LINES, {}, {"num_fewshot": 3}, "task mine is to show 3 examples; allowed: num_fewshot of 0 to 2"),
        (LINES, {"fewshot_split": "test"}, {"num_fewshot": 2}, "to show 2 examples; allowed: num_fewshot of 0 to 1"),
        (LINES, {"num_fewshot": 3}, {}, "task mine is to show 3 examples"),
        (LINES, {"unsafe_code": True}, {}, "task mine runs code that the model wrote; give --confirm_run_unsafe_code"),
        (LINES, {"doc_to_image": ["q"]}, {}, "task mine shows images or sounds"),
        (LINES + "{", {}, {}, "a data set of the tasks cannot be read ("),
    ],
)
def test_a_task_that_cannot_be_run_is_refused_before_weights(
    lines: str,
    of_task: dict[str, Any],
    words: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lm_eval_model, "find_for_text", lambda checkpoint, dtype: unread())
    with pytest.raises(UserError) as refused:
        command.evaluate(
            model="evalkit",
            model_args={"pretrained": "tiny"},
            tasks=["mine"],
            task_manager=own_task(tmp_path, lines, **of_task),
            **{"gen_kwargs": None, **words},
        )
    assert said in str(refused.value)


@pytest.mark.slow
def test_a_conversation_is_what_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """And texts are drawn from what top-k and top-p leave: with the single likeliest token as by taking it."""
    chatty = replace(fading(), chat=Chat({"default": TURNS}, {}))
    monkeypatch.setattr(lm_eval_model, "find_for_text", lambda checkpoint, dtype: chatty)
    answers = []
    for drawing in ({"do_sample": False}, {"do_sample": True, "top_k": 1, "top_p": 0.9}):
        found = command.evaluate(
            model="evalkit",
            model_args={"pretrained": "tiny"},
            tasks=["griffin_phonebook"],
            task_manager=data_sets.manager(["griffin_phonebook"], PHONEBOOK),
            apply_chat_template=True,
            fewshot_as_multiturn=True,
            gen_kwargs={"max_gen_toks": 3, **drawing},
        )
        samples = found["samples"]["griffin_phonebook"]
        assert all(re.fullmatch(r"\[user\].*\n\[model\]", one["arguments"][0][0], re.DOTALL) for one in samples)
        answers.append([one["resps"] for one in samples])
    assert answers[0] == answers[1]


def parsed(*words: str) -> Any:
    return private.parsed(private.HarnessCLI(), ["run", *words])


def test_tasks_of_a_file_are_tasks_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("tasks: [piqa, 'hellaswag,arc_easy']\nnum_fewshot: 3\nlimit: 2\n")
    found = command._configuration(parsed("--config", str(tmp_path / "c.yaml"), "--limit", "5"))
    assert command._names(found.tasks) == ["piqa", "hellaswag", "arc_easy"]
    assert (found.num_fewshot, found.limit) == (3, 5)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "Config file not found"),
        ("a: [", "Invalid YAML"),
        ("- a", "YAML root must be a mapping"),
        ("taks: piqa", "unknown key 'taks'; allowed: config, model"),
        ("log_samples: true", "Specify --output_path"),
        ("limit: many", "limit='many'; allowed: float or null"),
        ("limit: true", "limit=True; allowed: float or null"),
        ("wandb_args: 7", "wandb_args=7; allowed: dict or str or null"),
        ("cache_requests: true", "cache_requests=True; allowed: dict"),
        ("system_instruction: [a]", r"system_instruction=\['a'\]; allowed: str or null"),
        ("hf_hub_log_args: {a: 1}", "--hf_hub_log_args a is unknown; allowed: output_path, "),
        ("wandb_args: {step: 1, projekt: x}", "--wandb_args projekt is unknown; allowed: entity, "),
        ("samples: no.json", "--samples 'no.json' names no documents"),
        ("samples: '[1]'", r"--samples \[1\] names no documents"),
    ],
)
def test_a_wrong_file_of_settings_is_one_line(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(UserError, match=said):
        command._configuration(parsed("--config", str(tmp_path / "c.yaml")))


@pytest.mark.parametrize("flag", ["--output_path", "--use_cache"])
def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path, flag: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"cannot write {tmp_path}/file"):
        command._configuration(parsed(flag, str(tmp_path / "file" / "below" / "answers")))


@pytest.mark.parametrize("word", ["--seed=a", "--seed=1,2", "--samples={", "--gen_kwargs={", "--cache_requests=b"])
def test_a_word_that_lm_eval_cannot_read_is_refused_with_its_reason(word: str) -> None:
    with pytest.raises(UserError) as refused:
        private.parsed(command._harness(), ["run", word])
    assert re.search(r"a is not an integer|requires 4 integers|Invalid JSON: \{|'b' \(choose", str(refused.value))
    assert "functools" not in str(refused.value) and "try_parse_json" not in str(refused.value)


@pytest.mark.parametrize(
    "stated",
    [{"entries": "x"}, {"entries": [5, "x"]}, {"entries": 1.5}, {"prompts": "a"}, {"seed": 1.5}, {"depth": "a"}],
)
def test_a_setting_of_a_task_with_a_wrong_type_is_one_line(stated: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"task griffin_phonebook: {next(iter(stated))}=.*; allowed: "):
        phonebook.refuse_types(stated)


@pytest.mark.parametrize("error", [ValueError("Tasks not found: *a*"), YAMLError("mapping values")])
def test_tasks_that_are_not_found_or_read_are_one_line(error: Exception) -> None:
    configuration = private.EvaluatorConfig(tasks=["*a*"])
    with (
        patch.object(private.EvaluatorConfig, "process_tasks", side_effect=error),
        private.choosing_tasks(),
        pytest.raises(UserError, match=r"^--tasks: (Tasks not found|mapping values)"),
    ):
        configuration.process_tasks({})


def test_each_verb_has_a_parser_and_reads_its_words() -> None:
    harness = private.HarnessCLI()
    assert {"", "run", "ls"} <= set(private.parsers(harness))
    assert private.parsed(harness, ["ls", "tasks"]).command == "ls"


def test_what_is_put_in_place_of_a_function_is_taken_back() -> None:
    evaluate, build, configuration = lm_eval.simple_evaluate, Task.build_all_requests, EvaluatorConfig()
    with private.configured_by(configuration):
        assert EvaluatorConfig.from_cli(Namespace()) is configuration
    assert EvaluatorConfig.from_cli(Namespace(tasks=["piqa"])).tasks == ["piqa"]
    with private.evaluating_by(dict), private.building_requests_by(lambda original: lambda *_: original(*_)):
        assert lm_eval.simple_evaluate is dict and Task.build_all_requests is not build
    assert lm_eval.simple_evaluate is evaluate and Task.build_all_requests is build

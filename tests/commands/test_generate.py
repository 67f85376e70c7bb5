"""`evalkit generate`: a run says what its model says, as text or as JSON lines; bad input is one line, early."""

import json
from functools import lru_cache, partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from evalkit.__main__ import main
from evalkit.checkpoints import loading, pretrained
from evalkit.configuration import capacity, saved
from evalkit.core.errors import UserError
from evalkit.session import prompting
from evalkit.tasks.text.tokenizers import Numbers, Symbols
from support.shrunk import applied, shrunk

NEW = 6


load = lru_cache(loading.load)


def greedy(folder: Path, tokens: list[int]) -> list[int]:
    """Token after token, each from all before it at once."""
    run, said = load(folder), list(tokens)
    for _ in range(NEW):
        padded = np.zeros((1, 4 + NEW), np.int32)  # one program for all lengths: what comes after changes nothing
        padded[0, : len(said)] = said
        logits, _ = applied(run.model)(run.params, jnp.asarray(padded))
        said.append(int(np.asarray(logits)[0, len(said) - 1].argmax()))
    return said[len(tokens) :]


@pytest.mark.slow
def test_a_prompt_in_symbols_is_answered_in_symbols(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(tiny_run), "a b ★ 3", f"tokens={NEW}"]) == 0
    printed, task = capsys.readouterr(), load(tiny_run).task
    assert printed.out == task.describe(np.asarray(greedy(tiny_run, [0, 1, 15, 3]))) + "\n"
    assert printed.err.startswith(f"{NEW} tokens in ") and " tokens/s, the first text after " in printed.err


def test_a_file_becomes_json_lines_with_all_that_its_lines_said(tiny_run: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"a b c d"\n\n{"prompt": "0 1 ★", "id": 7}\n{"prompt": "b b"}\n')
    words = [f"tokens={NEW}", f"file={prompts}", f"out={tmp_path / 'said.jsonl'}", "batch_size=2", "stop_tokens=15"]
    assert main(["generate", str(tiny_run), *words]) == 0
    lines = sorted(map(json.loads, (tmp_path / "said.jsonl").read_text().splitlines()), key=lambda line: line["index"])
    assert [line["prompt"] for line in lines] == ["a b c d", "0 1 ★", "b b"] and lines[1]["id"] == 7
    for line, tokens in zip(lines, ([0, 1, 2, 3], [0, 1, 15], [1, 1]), strict=True):
        expected = greedy(tiny_run, tokens)
        cut = expected.index(15) + 1 if 15 in expected else NEW
        assert line["tokens"] == expected[:cut]


@pytest.mark.slow
def test_what_is_refused_is_refused_before_weights_are_read(
    tiny_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(pretrained, "restore", never)
    for words, said in (
        (["a", "sampler=beam"], "sampler is no setting of generate; allowed: tokens, seed"),
        (["a", "top_p=0"], "top_p=0.0; allowed: above 0"),
        (["a", "temperature=-1"], "temperature=-1.0; allowed: 0"),
        ([" "], "the prompt is empty"),
        (["a", "stop_tokens=16"], "stop_tokens holds 16; allowed: 0 to 15"),
        (["a zz"], "the prompt: 'zz' is no token of this task; give its symbols (a, b, c"),
    ):
        assert main(["generate", str(tiny_run), *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"evalkit: {said}") and error.count("\n") == 1


def test_a_prompt_longer_than_there_is_memory_for_is_refused_before_weights_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a global cache; that of a window or a state is as large for any prompt."""
    models = (shrunk("mqa"), True), (shrunk("griffin"), False)
    monkeypatch.setattr(capacity, "memory_bytes", lambda: 2**20)
    for model, refused in models:
        found = pretrained.Unread(model, Numbers(16), None, lambda: pytest.fail("weights are read"))
        monkeypatch.setattr(prompting, "find", lambda *_, found=found: found)
        asked = partial(prompting.ready, "anything", ["1 " * 20_000] * 3, prompting.Settings(batch_size=2))
        if not refused:
            assert len(asked().prompts) == 3
            continue
        words = (
            "a prompt of 20,000 tokens and 128 after it takes at least .* 2 of them in a batch.*give a shorter prompt"
        )
        with pytest.raises(UserError, match=words):
            asked()


def test_names_stand_for_the_first_token_that_has_them_and_numbers_for_themselves() -> None:
    names = Symbols(5, lambda tokens: " ".join("ab··9"[token] for token in tokens))
    assert (
        names.encode("a · 3 9 1") == [0, 2, 3, 4, 1] and names.decode([0, 3, 4]) == "a · 9" and names.decode([]) == ""
    )
    with pytest.raises(ValueError, match="'5' is no token of this task; give its symbols \\(a, b, ·, 9, …\\)"):
        names.encode("5")


@pytest.mark.slow
def test_keys_and_values_are_kept_in_the_dtype_that_is_asked_for(tiny_run: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((tiny_run / saved.CONFIG_FILE).read_text(encoding="utf-8"))
    config["model"]["pattern"] = ["attention"]
    saved.save(config, tmp_path / saved.CONFIG_FILE)  # no weight is read
    for settings, itemsize in ((("float32",), 4), (("bfloat16",), 2), (("float32", (), "bfloat16"), 2)):
        cache = pretrained.find(str(tmp_path), *settings).model.init_cache(1, 8)
        assert {block.keys.dtype.itemsize for block in cache if hasattr(block, "keys")} == {itemsize}

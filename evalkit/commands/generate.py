"""`python -m evalkit generate CHECKPOINT PROMPT [key=value …]`: what a model says after a prompt, or after a file's."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from evalkit.commands.guide import Page
from evalkit.core.errors import UserError, typed_path, writing

if TYPE_CHECKING:
    from evalkit.inference.texts import Generated
    from evalkit.session.prompting import Ready

ABOUT = r"""What a run or a released model says after a prompt. The text is shown as it comes, and its speed at the end.
A run on a synthetic task reads the symbols that `example` shows, or token ids, with spaces between.

  tokens=128        tokens that it says, at most
  temperature=0     0 takes the likeliest token; above, tokens are drawn
  top_k=null        draws from so many likeliest tokens alone
  top_p=1           draws from the fewest likeliest tokens whose probabilities sum to this
  seed=0            another seed draws other tokens
  stop=TEXT         the text ends before this; \n in it is a newline; several: 'stop=["a", "b"]'
  stop_tokens=ID,…  the text ends before any of these token ids
  file=FILE         prompts: one a line; of .jsonl a string or an object with "prompt" a line, of .parquet a row.
                    JSON lines come out
  out=FILE          where the JSON lines go, instead of the console
  format=json       a JSON line for a single prompt, too
  batch_size=8      prompts that are read together
  chunk=256         tokens of each prompt that are in memory at a time
  dtype=float32     of activations and of a released model's matrices, or bfloat16
  cache_dtype=null  of attention's keys and values; null: as dtype
  allow_targets=A,B packages whose code a run of another person may name"""
WHOLE, NUMBER, WORD = "a whole number", "a number", "a word"
Parse = Callable[[str], Any]


def _unescaped(text: str) -> str:
    """A stop string as a shell leaves it: backslash and n for a newline."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _stops(text: str) -> tuple[str, ...]:
    if not text.startswith("["):
        return (_unescaped(text),)
    strings = json.loads(text)
    if not all(isinstance(each, str) for each in strings):
        raise ValueError(text)
    return tuple(map(_unescaped, strings))


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.strip("[]").split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.strip("[]").split(","))


def _or_null(parse: Parse) -> Parse:
    return lambda text: None if text == "null" else parse(text)


def _shape(text: str) -> str:
    if text not in ("text", "json"):
        raise ValueError(text)
    return text


# How each setting is read, and what it may be.
SETTINGS: Mapping[str, tuple[Parse, str]] = {
    **{name: (int, WHOLE) for name in ("tokens", "seed", "batch_size", "chunk")},
    **{name: (float, NUMBER) for name in ("temperature", "top_p")},
    "top_k": (_or_null(int), f"{WHOLE}, or null"),
    "stop": (_stops, 'a text, or a list such as ["a", "b"]'),
    "stop_tokens": (_ids, "token ids with commas between"),
    "dtype": (str, WORD),
    "cache_dtype": (_or_null(str), WORD),
    "allow_targets": (_names, "packages with commas between"),
    "file": (Path, WORD),
    "out": (Path, WORD),
    "format": (_shape, "text or json"),
}


def main(arguments: Sequence[str]) -> int:
    """Generates, shows the speed and returns 0; raises UserError, before weights are read, for what cannot be."""
    parser = Page(
        "generate",
        ABOUT,
        "generate runs/text 'Once upon a time' tokens=200 temperature=0.8 top_p=0.95",
        "generate runs/hawk 'a b ★ c d ★' tokens=1",
        "generate google/recurrentgemma-2b file=prompts.txt out=said.jsonl dtype=bfloat16",
    )
    parser.add_argument("checkpoint", help="a run, a released model's folder, or its name on the hub")
    parser.add_argument("words", nargs="*", metavar="PROMPT key=value", help="the prompt, unless file= has them")
    parsed = parser.parse_args(arguments)
    prompt, values = _parsed(parsed.words)
    file, out, shape = values.pop("file", None), values.pop("out", None), values.pop("format", "text")
    if (prompt is None) == (file is None):
        raise UserError("give one prompt in quotation marks, or file=FILE with a prompt a line")
    from evalkit.configuration.experiment import AUTO
    from evalkit.parallel import devices
    from evalkit.session import prompting
    from evalkit.session.compilation import keep_programs

    try:
        settings = prompting.Settings(**values)
    except ValueError as error:
        raise UserError(str(error)) from error
    entries = [{"prompt": prompt}] if file is None else prompting.prompts_in(typed_path(file))
    prompts = [str(entry["prompt"]) for entry in entries]
    devices.use_every_core()
    devices.spare_memory()
    keep_programs(AUTO)
    as_lines = shape == "json" or file is not None or out is not None
    _show(prompting.ready(parsed.checkpoint, prompts, settings), entries, as_lines, out)
    return 0


def _parsed(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The prompt and the settings; the first word is the prompt unless it begins with the key of a setting."""
    prompt, values = None, {}
    for number, word in enumerate(words):
        key, equals, value = word.partition("=")
        if number == 0 and not (equals and key in SETTINGS):
            prompt = word
            continue
        if not equals:
            problem = "is a second prompt" if prompt is not None else "comes after a setting"
            raise UserError(
                f"{word!r} {problem}; give one prompt in quotation marks before all settings, or several with file=FILE"
            )
        if key not in SETTINGS:
            raise UserError(f"{key} is no setting of generate; allowed: {', '.join(SETTINGS)}")
        parse, allowed = SETTINGS[key]
        try:
            values[key] = parse(value)
        except ValueError as error:
            raise UserError(f"{word}; allowed: {allowed}") from error
    return prompt, values


def _show(ready: "Ready", entries: Sequence[Mapping[str, Any]], as_lines: bool, out: Path | None) -> None:
    """Shows the text of a prompt as it comes, or writes a JSON line for each, as soon as it is whole, to `out`."""
    pretrained = ready.read()
    began, first = time.perf_counter(), [0.0]
    escaped = out is None and not sys.stdout.encoding.lower().startswith("utf")  # JSON has a way to say any character
    with nullcontext(sys.stdout) if out is None else _opened(out) as lines:

        def heard(index: int, piece: str) -> None:
            first[0] = first[0] or time.perf_counter() - began
            sys.stdout.write(piece)
            sys.stdout.flush()

        def said(index: int, said: "Generated") -> None:
            if as_lines:
                entry = {"index": index, **entries[index], "text": said.text, "tokens": said.tokens}
                print(json.dumps(entry, ensure_ascii=escaped, default=str), file=lines, flush=True)

        texts = ready.say(pretrained, said, None if as_lines else heard)  # who looks on makes calls shorter
    if not as_lines:
        print()
    count, seconds = sum(len(text.tokens) for text in texts), time.perf_counter() - began
    start = f", the first text after {first[0]:.2f} s" if first[0] else ""
    print(f"{count:,} tokens in {seconds:.2f} s, {count / seconds:,.1f} tokens/s{start}", file=sys.stderr)


@contextmanager
def _opened(out: Path) -> Iterator[TextIO]:
    with writing(out), typed_path(out).open("w", encoding="utf-8") as file:
        yield file

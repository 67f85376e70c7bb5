"""Reads a released checkpoint's tokenizer: `tokenizer.json`, or `tokenizer.model` of SentencePiece."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalkit.core.chats import DEFAULT, Chat
from evalkit.disk.files import text_of
from evalkit.tasks.text.tokenizers import Bytes, SentencePiece, Tokenizer, TokenizerJson

FAST, PIECES = "tokenizer.json", "tokenizer.model"
CONFIG, TEMPLATE, MORE_TEMPLATES = "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates"
GENERATING = "generation_config.json"
PADDING = 1024  # rows that an embedding may have beyond its tokens: Gemma's Flax release has 128


def read(folder: Path, vocab_size: int, config: Mapping[str, Any]) -> Tokenizer:
    """Returns the tokenizer in `folder`, or in its parent, for a model of `vocab_size` tokens.

    `config` is the model's `config.json`, which names the token at the end of a text. Raises ValueError if there is no
    tokenizer, if the package that reads it is not installed, or if it does not match the model.
    """
    file = _file(folder)
    # A model that may end a text in several ways lists them, the tokenizer's own first.
    eos = config.get("eos_token_id")
    own = next(iter(eos), None) if isinstance(eos, list) else eos
    if own is not None and not (isinstance(own, int) and 0 <= own < vocab_size):
        raise ValueError(f"eos_token_id={own!r} in its config.json; allowed: a token from 0 to {vocab_size - 1}")
    tokenizer = SentencePiece(file) if file.name == PIECES else TokenizerJson(file, own)
    if not 0 <= vocab_size - tokenizer.vocab_size <= PADDING:
        raise ValueError(
            f"its tokenizer has {tokenizer.vocab_size} tokens and the model {vocab_size}; take both from one checkpoint"
        )
    return tokenizer


def ends(folder: Path, vocab_size: int, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the tokens that end a text beside the tokenizer's own: of lists in `config.json`, and how it generates.

    An instruction-tuned model ends its turn by another token than a text.
    """
    try:
        generating = _object(folder / GENERATING)
    except ValueError:  # a file that says nothing we need is no reason to refuse a model
        generating = {}
    stated = (content.get("eos_token_id") for content in (config, generating))
    listed = [token for each in stated for token in (each if isinstance(each, list) else [each])]
    return tuple(sorted({token for token in listed if type(token) is int and 0 <= token < vocab_size}))


def digest(folder: Path) -> str:
    """Returns the SHA-256 of the tokenizer's file, in hexadecimal."""
    return hashlib.sha256(_file(folder).read_bytes()).hexdigest()


def chat_of(folder: Path) -> Chat | None:
    """The chat templates beside the tokenizer in `folder`, None without any; broken files are its `problem`.

    They are `chat_template.jinja` and `additional_chat_templates/<name>.jinja`, or stand in `tokenizer_config.json`.
    """
    place = _file(folder).parent
    try:
        config = _object(place / CONFIG)
        templates = {**_stated(config.get("chat_template")), **_beside(place)}
    except ValueError as error:
        return Chat({}, {}, str(error))
    tokens = {name: value.get("content") if isinstance(value, dict) else value for name, value in config.items()}
    special = {name: text for name, text in tokens.items() if name.endswith("_token") and isinstance(text, str)}
    return Chat(templates, special) if templates else None


def _stated(templates: Any) -> dict[str, str]:
    """The templates of a configuration, where one stands alone, or several in a list; raises ValueError."""
    if not templates:
        return {}
    if isinstance(templates, str):
        return {DEFAULT: templates}
    named = [each for each in templates if isinstance(each, dict)] if isinstance(templates, list) else []
    found: dict[Any, Any] = {each.get("name"): each.get("template") for each in named}
    if not found or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise ValueError(f"chat_template in its {CONFIG} is no text, and no list of names and templates; mend it")
    return found


def _beside(place: Path) -> dict[str, str]:
    """The templates in files of their own."""
    files = {path.stem: path for path in sorted(place.glob(f"{MORE_TEMPLATES}/*.jinja"))}
    return {name: _text(path) for name, path in {**files, DEFAULT: place / TEMPLATE}.items() if path.is_file()}


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {path.name} is not JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"its {path.name} is no JSON object; download it again")
    return content


def _text(path: Path) -> str:
    try:
        return text_of(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"its {path.name} cannot be read ({error}); download it again") from error


def _file(folder: Path) -> Path:
    """Returns the tokenizer's file in `folder` or in its parent; raises ValueError if there is none."""
    for place in (folder, folder.absolute().parent):
        for name in (FAST, PIECES):
            if (place / name).is_file():
                return place / name
    raise ValueError(f"it has neither {FAST} nor {PIECES}; put the tokenizer that it was released with beside it")


def write_bytes(folder: Path, bos: int | None = Bytes.bos) -> None:
    """Writes the `Bytes` tokenizer as `tokenizer.json` and `tokenizer_config.json`, for transformers to read.

    With `bos=None` no token begins a text, as in text that was trained on without one.
    """
    ends = {"<bos>": Bytes.bos, "<eos>": Bytes.eos}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": number, "content": text, "special": True, **plain} for text, number in ends.items()]
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    begin = [] if bos is None else [{"SpecialToken": {"id": "<bos>", "type_id": 0}}]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": bytewise,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*begin, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [*begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [bos], "tokens": ["<bos>"]}} if begin else {},
        },
        "decoder": bytewise,
        "model": {"type": "BPE", "vocab": {**_byte_characters(), **ends}, "merges": []},
    }
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    facts |= {"bos_token": "<bos>"} if begin else {}
    (folder / FAST).write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / CONFIG).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _byte_characters() -> dict[str, int]:
    """Returns the printable character that byte-level BPE writes for each byte (Radford et al. 2019), and that byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    return dict(sorted(characters.items(), key=lambda item: item[1]))

"""A conversation as the text that a model was trained on: the Jinja templates that models are released with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

Message = Mapping[str, str]
"""A `role` (system, user or assistant) and its `content`."""
DEFAULT = "default"


@dataclass(frozen=True)
class Chat:
    """A model's templates by name, and the special tokens that they write, such as `bos_token`.

    `problem` says what is wrong with the files that should hold them, for whoever wants to apply one.
    """

    templates: Mapping[str, str]
    tokens: Mapping[str, str]
    problem: str | None = None

    def template(self, name: str | None = None) -> str:
        """The template of this name; None: the only one, or the one that is called default. Raises ValueError."""
        if self.problem is not None:
            raise ValueError(self.problem)
        if name is None:
            name = next(iter(self.templates)) if len(self.templates) == 1 else DEFAULT
        if name not in self.templates:
            raise ValueError(f"chat template {name!r} is not there; allowed: {', '.join(self.templates) or 'none'}")
        return self.templates[name]

    def text(self, messages: Sequence[Message], *, name: str | None = None, answers: bool = True) -> str:
        """The conversation as text, up to where the answer begins, or without `answers` to the end of the last message.

        The token that begins a text is left out, since every text gets it later anyway. Raises ValueError for a
        conversation that the template refuses, and for a template that cannot be read.
        """
        import jinja2

        template, bos = self.template(name), self.tokens.get("bos_token", "")
        try:
            text = _compiled(template).render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=answers,
                **self.tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ValueError(f"the chat template refuses the conversation ({error})") from error
        return (text if answers else _until_last(text, messages)).removeprefix(bos)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    """The compiled template, in the sandbox and with the functions that transformers gives to templates."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what is trained on; here it marks nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment.from_string(template)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)


def _until_last(text: str, messages: Sequence[Message]) -> str:
    """The text up to the end of the last message, which the answer continues; a template may write more after it."""
    last = messages[-1]["content"]
    start = text.rfind(last.strip())
    if start < 0:
        raise ValueError("the chat template changes the last message, so that an answer cannot continue it")
    kept = last.lstrip()
    return text[: start + len(kept if text.startswith(kept, start) else last.strip())]

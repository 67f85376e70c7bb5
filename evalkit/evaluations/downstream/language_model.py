"""A model with its parameters and tokenizer behind lm-eval's interface."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import warning_once
from tqdm import tqdm

from evalkit.checks import refuse_below_1
from evalkit.core.contracts import Pretrained, Unread
from evalkit.core.errors import UserError, said_of
from evalkit.inference.generation import generate
from evalkit.inference.sampling import Sampler
from evalkit.inference.scoring import Request, Scorer, Tokens, fit
from evalkit.inference.texts import Generated

SERVED = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")
TOKENS = ("max_new_tokens", "max_tokens", "max_completion_tokens")  # lm-eval's other names of max_gen_toks
# Other settings, which are accepted at these values alone, where they have no effect.
NEUTRAL = {"num_beams": 1, "repetition_penalty": 1.0, "min_p": 0.0}

logger = logging.getLogger(__name__)


class PretrainedLM(TemplateLM):
    """One set of parameters behind lm-eval's interface; those of an `Unread` are read when they are first needed.

    The weights are thus read only after lm-eval has made all its prompts and refused what it cannot run.
    `max_length` is the number of tokens that the model may read at once; None: no limit. A longer request is refused,
    or with `truncate` loses context on its left. `add_bos` says whether texts begin with the tokenizer's
    beginning-of-text token; None: as the checkpoint was trained. `share_prefixes`, `tokens_per_batch` and `chunk` are
    passed to `Scorer`. `dtype` names the type of activations, for the record. Raises UserError for an invalid value.
    """

    def __init__(
        self,
        pretrained: Pretrained | Unread,
        *,
        dtype: str = "float32",
        max_length: int | None = None,
        truncate: bool = False,
        add_bos: bool | None = None,
        share_prefixes: bool = True,
        tokens_per_batch: int = 8192,
        chunk: int = 2048,
    ) -> None:
        super().__init__()
        if max_length is not None and max_length < 1:
            raise UserError(f"max_length={max_length}; allowed: 1 or more")
        try:
            refuse_below_1(tokens_per_batch=tokens_per_batch, chunk=chunk)
        except ValueError as error:
            raise UserError(str(error)) from error
        self._unread, self._tokenizer = pretrained, pretrained.tokenizer
        self._source, self._chat = pretrained.source, pretrained.chat
        self._scoring = {"share_prefixes": share_prefixes, "tokens_per_batch": tokens_per_batch, "chunk": chunk}
        self.dtype, self.max_length, self.truncate = dtype, max_length, truncate
        self.add_bos = self._tokenizer.bos is not None if add_bos is None else add_bos
        if self.add_bos and self._tokenizer.bos is None:
            raise UserError(f"add_bos=true, but the tokenizer of {self._source} has no such token; leave it out")
        self._template: str | None = None
        self.truncated = 0

    @cached_property
    def checkpoint(self) -> Pretrained:
        """The parameters, which are read now."""
        return self._unread if isinstance(self._unread, Pretrained) else self._unread.read()

    @cached_property
    def scorer(self) -> Scorer:
        """What scores continuations."""
        return Scorer(self.checkpoint.model, self.checkpoint.params, self._tokenizer.vocab_size, **self._scoring)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text; raises UserError if there is none."""
        if self._tokenizer.eos is None:
            raise UserError(f"the tokenizer of {self._source} has no token that ends a text")
        return self._tokenizer.eos

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context: the token that begins texts, else the one that ends them."""
        bos = self._tokenizer.bos
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """The name of the checkpoint, which the tokenizer belongs to."""
        return self._source

    @property
    def fingerprint(self) -> str:
        """A hash of all that an answer depends on, except the request; a response cache is valid for one hash alone."""
        settings = [self.checkpoint.identity, self.dtype, self.add_bos, self.max_length, self.truncate]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes beside the results."""
        return {
            "model_source_name": self.checkpoint.source,
            "model_sha": self.checkpoint.digest,
            "model_dtype": self.dtype,
            "max_length": self.max_length,
            "add_bos": self.add_bos,
            "truncated_requests": self.truncated,
        }

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template that `apply_chat_template` applies from now on; raises UserError for one that is not there."""
        if not chat_template:
            return None
        if self._chat is None:
            raise UserError(
                f"{self._source} has no chat template; leave out --apply_chat_template, or put the chat_template.jinja "
                "that the model was trained with beside its tokenizer"
            )
        self._template = chat_template if isinstance(chat_template, str) else None
        try:
            return self._chat.template(self._template)
        except ValueError as error:
            raise UserError(f"{self._source}: {error}") from error

    def refuse_system(self, instruction: str) -> None:
        """Raises UserError for an instruction of the user's where the chat template has no place for one."""
        assert self._chat is not None, "chat_template refuses a model without one"
        try:
            messages = [{"role": "system", "content": instruction}, {"role": "user", "content": "?"}]
            self._chat.text(messages, name=self._template)
        except ValueError as error:
            raise UserError(f"{self._source}: {error}; leave out --system_instruction") from error

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text. A system message that the template refuses is left out, as by lm-eval's `hf`."""
        if self._chat is None:
            raise UserError(f"{self._source} has no chat template; leave out --apply_chat_template")
        text = partial(self._chat.text, name=self._template, answers=add_generation_prompt)
        try:
            return text(chat_history)
        except ValueError as error:
            without = [message for message in chat_history if message["role"] != "system"]
            if len(without) == len(chat_history):
                raise UserError(f"{self._source}: {error}") from error
            try:
                shortened = text(without)
            except ValueError:
                raise UserError(f"{self._source}: {error}") from error
            warning_once(logger, f"{self._source}: {error}; the system's messages are left out")
            return shortened

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        """The tokens of a text, with the beginning-of-text token first if it is wanted; it is never added twice."""
        tokens, dropped = self._tokenizer.read(string)
        bos = self._tokenizer.bos
        if dropped:
            warning_once(
                logger,
                f"the tokenizer of {self._source} has no token for some characters of the texts; what is not read "
                "costs nothing, so bits a byte are too low",
            )
        wanted = self.add_bos if add_special_tokens is None else add_special_tokens
        return [bos, *tokens] if wanted and bos is not None and tokens[:1] != [bos] else tokens

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """As lm-eval's own; but if a token spans the join, each part is encoded alone: the continuation stays whole."""
        kept = context.rstrip()
        context, continuation = kept, context[len(kept) :] + continuation
        before = self.tok_encode(context) or [self.prefix_token_id]
        whole = self.tok_encode(context + continuation)
        if whole[: len(before)] == before and len(whole) > len(before):
            return before, whole[len(before) :]
        return before, self.tok_encode(continuation, add_special_tokens=False)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        tokens = [Request(tuple(context), tuple(continuation)) for _, context, continuation in requests]
        if self.max_length is not None:
            tokens, cut = fit(tokens, self.max_length, truncate=self.truncate, keep=self._tokenizer.bos)
            self.truncated += cut
            if cut:
                logger.warning("%d of %d requests were cut to max_length=%d", cut, len(tokens), self.max_length)
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(tokens)
        done = tqdm(self.scorer.stream(tokens), total=len(tokens), desc="loglikelihood", disable=disable_tqdm)
        for index, score in done:
            answers[index] = score.logprob, score.is_greedy
            self.cache_hook.add_partial("loglikelihood", requests[index][0], answers[index])
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, read through the cache; raises UserError for one beyond `max_length`."""
        texts = [request.args[0] for request in requests]
        tokens = [self.tok_encode(text, add_special_tokens=False) for text in texts]
        kept = [number for number, of_text in enumerate(tokens) if of_text]
        whole = [Request((self.prefix_token_id,), tuple(tokens[number])) for number in kept]
        longest = max((len(one.continuation) for one in whole), default=0)
        if self.max_length is not None and longest > self.max_length:
            raise UserError(
                f"a text of {longest} tokens is longer than max_length={self.max_length}; whole texts are never cut, "
                "so give a larger max_length"
            )
        answers = [0.0] * len(texts)
        for index, score in tqdm(self.scorer.stream(whole), total=len(whole), desc="rolling", disable=disable_tqdm):
            answers[kept[index]] = score.logprob
            self.cache_hook.add_partial("loglikelihood_rolling", (texts[kept[index]],), score.logprob)
        return answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that the model generates after each context, cut before the first stop string.

        Decoding is greedy; with `do_sample` tokens are drawn at random, the same ones in every run (see `wanted_of`).
        Raises UserError.
        """
        answers = [""] * len(requests)
        progress = tqdm(total=len(requests), desc="generate", disable=disable_tqdm)
        for wanted, members in _alike(requests).items():
            prompts = [prompt_of(self, requests[member].args[0], wanted.most) for member in members]

            def said(index: int, said: Generated, wanted: Wanted = wanted, members: Sequence[int] = members) -> None:
                member = members[index]
                answers[member] = postprocess_generated_text(said.text, list(wanted.stop), None)
                self.cache_hook.add_partial("generate_until", requests[member].args, answers[member])
                progress.update()

            generate(self.checkpoint, prompts, wanted.most, stop=wanted.stop, sampler=wanted.sampler, said=said)
        progress.close()
        return answers


def prompt_of(model: PretrainedLM, context: str, room: int) -> Tokens:
    """The tokens of a context, cut or refused where `room` tokens after it would not fit."""
    prompt = tuple(model.tok_encode(context) or [model.prefix_token_id])
    if model.max_length is None:
        return prompt
    bos = model._tokenizer.bos
    (fitted,), cut = fit([Request(prompt, (0,) * room)], model.max_length, truncate=model.truncate, keep=bos)
    model.truncated += cut
    return fitted.context


class Wanted(NamedTuple):
    """The generation settings of a request: stop strings, the largest number of tokens, and the sampler."""

    stop: tuple[str, ...]
    most: int
    sampler: Sampler


def wanted_of(settings: Mapping[str, Any]) -> Wanted:
    """What lm-eval's generation settings say; raises UserError for a way that is not served.

    With `do_sample` tokens are drawn, at a `temperature` of 1 unless one is given, from the `top_k` likeliest and from
    the nucleus `top_p`. Without it the likeliest token is taken, and these settings mean nothing.
    """
    for name, value in settings.items():
        if name not in (*SERVED, *TOKENS) and value is not None and value != NEUTRAL.get(name):
            raise UserError(f"generation setting {name}={value!r} is not served; allowed: {', '.join(SERVED)}")
    try:
        stated = {name: value for name, value in settings.items() if value is not None}
        _refuse_types(stated)
        plain: dict[str, Any] = {**normalize_gen_kwargs(stated)}
        sampler = Sampler()
        if plain["do_sample"]:
            top_k = int(stated.get("top_k", 0))  # 0 and -1 are other programs' words for all
            temperature, top_p = float(stated.get("temperature", 1.0)), float(stated.get("top_p", 1.0))
            sampler = Sampler(temperature, top_k if top_k > 0 else None, top_p)
        stop = tuple(map(str, plain["until"]))
        if "" in stop:
            raise ValueError("until holds an empty string, which is in every text; leave it out")
        refuse_below_1(max_gen_toks=plain["max_gen_toks"])
    except (TypeError, ValueError) as error:
        raise UserError(f"generation settings: {error}") from error
    return Wanted(stop, plain["max_gen_toks"], sampler)


def _refuse_types(stated: Mapping[str, Any]) -> None:
    """Raises ValueError for what lm-eval would round, or take for true."""
    if not isinstance(stated.get("do_sample", False), bool):
        raise ValueError(f"do_sample={stated['do_sample']!r}; allowed: true, false")
    for name in ("max_gen_toks", *TOKENS, "top_k"):
        value = stated.get(name, 0)
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(f"{name}={value}; allowed: whole numbers")


def refuse_unserved(task: str, output_type: str | None, settings: Mapping[str, Any] | None) -> None:
    """Raises UserError, naming the task, for a task whose texts are wanted in a way that is not served."""
    if output_type == "generate_until":
        with said_of(f"task {task}"):
            wanted_of(settings or {})


def _alike(requests: Sequence[Instance]) -> dict[Wanted, list[int]]:
    """The requests' indices by how they want their texts; raises UserError for a way that is not served."""
    groups: dict[Wanted, list[int]] = {}
    for number, request in enumerate(requests):
        _, settings = request.arguments
        groups.setdefault(wanted_of(settings), []).append(number)
    return groups

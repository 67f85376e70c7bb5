"""A model with its parameters and tokenizer behind lm-eval's interface."""

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from tqdm import tqdm

from evalkit.core.contracts import Pretrained
from evalkit.core.errors import UserError
from evalkit.inference.generation import generate
from evalkit.inference.sampling import Sampler
from evalkit.inference.scoring import Request, Scorer, Tokens, fit
from evalkit.inference.texts import Said

# Settings that mean nothing at these values.
NEUTRAL = {"top_p": 1.0, "num_beams": 1, "top_k": None}

logger = logging.getLogger(__name__)


class PretrainedLM(TemplateLM):
    """One set of parameters behind lm-eval's interface.

    `max_length` is the number of tokens that the model may read at once; None for as many as there are. A longer
    request is refused, or with `truncate` loses context on its left. `add_bos` says whether texts begin with the
    tokenizer's first token; None as the checkpoint was trained. `share_prefixes`, `tokens_per_batch` and `chunk` are
    those of `Scorer`. `dtype` is what activations are computed in, for the record. Raises UserError.
    """

    def __init__(
        self,
        pretrained: Pretrained,
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
        self.checkpoint = pretrained
        self.dtype, self.max_length, self.truncate = dtype, max_length, truncate
        self.add_bos = pretrained.tokenizer.bos is not None if add_bos is None else add_bos
        if self.add_bos and pretrained.tokenizer.bos is None:
            raise UserError(f"add_bos=true, but the tokenizer of {pretrained.source} has no such token; leave it out")
        self.scorer = Scorer(
            pretrained.model,
            pretrained.params,
            pretrained.tokenizer.vocab_size,
            share_prefixes=share_prefixes,
            tokens_per_batch=tokens_per_batch,
            chunk=chunk,
        )
        self.truncated = 0

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text; raises UserError if there is none."""
        if self.checkpoint.tokenizer.eos is None:
            raise UserError(f"the tokenizer of {self.checkpoint.source} has no token that ends a text")
        return self.checkpoint.tokenizer.eos

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context: the token that begins texts, else the one that ends them."""
        bos = self.checkpoint.tokenizer.bos
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """The checkpoint, whose own the tokenizer is."""
        return self.checkpoint.source

    @property
    def fingerprint(self) -> str:
        """Names everything that an answer depends on but the request: a response cache of another one does not fit."""
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

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        """Tokens of a text, after the one that begins texts where there is to be one, which then stands once."""
        tokens = self.checkpoint.tokenizer.encode(string)
        bos = self.checkpoint.tokenizer.bos
        wanted = self.add_bos if add_special_tokens is None else add_special_tokens
        return [bos, *tokens] if wanted and bos is not None and tokens[:1] != [bos] else tokens

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """As lm-eval's own, except where a token spans the join: then each part is encoded by itself, so that nothing
        of the continuation is lost."""
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
            tokens, cut = fit(tokens, self.max_length, truncate=self.truncate, keep=self.checkpoint.tokenizer.bos)
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
        """What the model says after each context, cut before the first stop string.

        The likeliest tokens, or with `do_sample` tokens drawn at `temperature`, the same ones in every run; other ways
        to sample are refused. Raises UserError.
        """
        answers = [""] * len(requests)
        progress = tqdm(total=len(requests), desc="generate", disable=disable_tqdm)
        for wanted, members in _alike(requests).items():
            prompts = [prompt_of(self, requests[member].args[0], wanted.most) for member in members]

            def said(index: int, said: Said, wanted: Wanted = wanted, members: Sequence[int] = members) -> None:
                member = members[index]
                answers[member] = postprocess_generated_text(said.text, list(wanted.stop), None)
                self.cache_hook.add_partial("generate_until", requests[member].args, answers[member])
                progress.update()

            sampler = Sampler(temperature=wanted.temperature)
            generate(self.checkpoint, prompts, wanted.most, stop=wanted.stop, sampler=sampler, said=said)
        progress.close()
        return answers


def prompt_of(model: PretrainedLM, context: str, room: int) -> Tokens:
    """The tokens of a context, cut or refused where `room` tokens after it would not fit."""
    prompt = tuple(model.tok_encode(context) or [model.prefix_token_id])
    if model.max_length is None:
        return prompt
    bos = model.checkpoint.tokenizer.bos
    (fitted,), cut = fit([Request(prompt, (0,) * room)], model.max_length, truncate=model.truncate, keep=bos)
    model.truncated += cut
    return fitted.context


class Wanted(NamedTuple):
    """How a request wants its text."""

    stop: tuple[str, ...]
    most: int
    temperature: float


def _alike(requests: Sequence[Instance]) -> dict[Wanted, list[int]]:
    """The requests' indices by how they want their texts; raises UserError for a way that is not served."""
    groups: dict[Wanted, list[int]] = {}
    for number, request in enumerate(requests):
        _, given_settings = request.arguments
        settings: dict[str, Any] = {**normalize_gen_kwargs(given_settings)}
        served = ("until", "max_gen_toks", "do_sample", "temperature")
        for name, value in settings.items():
            if name not in served and value != NEUTRAL.get(name):
                raise UserError(f"generation setting {name}={value!r} is not served; allowed: {', '.join(served)}")
        temperature = float(settings.get("temperature") or 0.0) if settings.get("do_sample") else 0.0
        wanted = Wanted(tuple(settings.get("until", [])), settings["max_gen_toks"], temperature)
        groups.setdefault(wanted, []).append(number)
    return groups

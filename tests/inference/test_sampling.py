"""Samplers draw from the distribution that they name, whatever else is in the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from evalkit.inference.sampling import Sampler

DRAWS = 4000
LOGITS = np.array([0.3, 2.0, -1.0, 1.1, 0.9, -3.0, 1.7])


def oracle(temperature: float, top_k: int | None, top_p: float) -> np.ndarray:
    """Probabilities in float64, by going through the tokens from the likeliest on."""
    weights = np.exp(LOGITS / temperature)
    order = np.argsort(-weights)
    kept = order[: len(order) if top_k is None else top_k]
    share = np.cumsum(weights[kept]) / weights[kept].sum()
    kept = kept[: 1 + np.searchsorted(share, top_p)]
    found = np.zeros_like(weights)
    found[kept] = weights[kept] / weights[kept].sum()
    return found


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, 1.0), (0.5, None, 1.0), (1.3, 3, 1.0), (1.0, 99, 1.0), (1.0, None, 0.6), (0.8, 4, 0.7), (1, 1, 0.01)],
)
def test_tokens_are_drawn_as_often_as_they_should_be(temperature: float, top_k: int | None, top_p: float) -> None:
    logits = jnp.tile(jnp.asarray(LOGITS, jnp.float32)[None], (DRAWS, 1))
    sampler = Sampler(temperature, top_k, top_p)
    found = jax.jit(sampler.choose)(logits, jnp.arange(DRAWS), jnp.array(0), jnp.array(5))
    counts, wanted = np.bincount(np.asarray(found), minlength=len(LOGITS)), oracle(temperature, top_k, top_p)
    assert not counts[wanted == 0].any()
    if (wanted > 0).sum() > 1:
        assert chisquare(counts[wanted > 0], DRAWS * wanted[wanted > 0]).pvalue > 1e-4


def test_a_draw_is_of_its_row_its_step_and_the_seed() -> None:
    choose = jax.jit(Sampler(1.0, top_p=0.9).choose)
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((40, 50)), jnp.float32)
    rows = jnp.arange(40)

    def drawn(rows, seed=0, step=0, logits=logits):
        return np.asarray(choose(logits, rows, jnp.array(seed), jnp.array(step)))

    alone = drawn(rows)
    np.testing.assert_array_equal(drawn(rows[::-1], logits=logits[::-1])[::-1], alone)
    for other in (drawn(rows + 40), drawn(rows, seed=1), drawn(rows, step=1)):
        assert (other != alone).mean() > 0.5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 1e-46}, "temperature=1e-46; allowed: 0"),
        ({"temperature": -1.0}, "temperature=-1.0; allowed: 0 "),
        ({"temperature": float("nan")}, "temperature=nan; allowed: 0 "),
        ({"temperature": 1.0, "top_k": 0}, "top_k=0; allowed: 1 or more, or null"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p=0.0; allowed: above 0"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p=1.5; allowed: above 0, and 1"),
        ({"top_k": 3}, "top_k=3 with temperature=0, which takes the likeliest token; give temperature=1"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sampler(**settings)


def test_a_nucleus_that_float32_cannot_hold_is_the_likeliest_token() -> None:
    logits = jnp.log(jnp.array([[0.1, 0.2, 0.6, 0.1]]))
    drawn = Sampler(temperature=1.0, top_p=1e-46).choose(logits, jnp.array([0]), jnp.array(0), jnp.array(0))
    assert drawn.tolist() == [2]

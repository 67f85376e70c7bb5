"""How large a text must be for prompts of so many tokens, whoever's tokens these are."""

from collections.abc import Callable

PROBED, CORRECTIONS = 8, 4  # the tokens of one more are taken from so many more; guesses are corrected at most 4 times


def fitted(tokens: int, fewest: int, mean: Callable[[int], float], of: str = "sentences") -> int:
    """Returns how many entries or sentences, at least `fewest`, give prompts of about `tokens` tokens.

    `mean` says how many tokens prompts of a size have on average. Raises ValueError if those of the `fewest` have more.
    """
    shortest, longer = mean(fewest), mean(fewest + PROBED)
    if tokens < shortest:
        raise ValueError(f"length={tokens}; allowed: at least {int(shortest) + 1}, the tokens of {fewest} {of}")
    # Tokens of one, from two sizes; a few corrections make up for the error of this line.
    rate = (longer - shortest) / PROBED
    size = fewest + int((tokens - shortest) / rate)
    for _ in range(CORRECTIONS):
        missing = round((tokens - mean(size)) / rate)
        size = max(fewest, size + missing)
        if not missing:
            break
    return size

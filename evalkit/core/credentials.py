"""Keys and tokens: what must not be written into a configuration, a log, a report or `environment.json`."""

import os
import re

VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
SHORTEST = 12  # a shorter value of such a variable may be an ordinary word
# Tokens of Hugging Face, W&B and GitHub, which say what they are; and what stands before the @ of an address.
# `Path` writes such an address with one slash.
PASSWORD = r"[^/\s:@]+:[^/\s@]+(?=@)"
TOKEN = re.compile(
    rf"\b(?:hf|gh[pousr]|github_pat|wandb_v\d+)_[A-Za-z0-9_]{{20,}}|(?<=://){PASSWORD}|(?<=:/){PASSWORD}"
)
MASK = "***"


def masked(text: str) -> str:
    """`text` without keys and tokens: those of a known form, and the values of variables whose names say so.

    >>> masked("https://me:hunter2@example.org refused hf_abcdefghijklmnopqrstuvwxyz")
    'https://***@example.org refused ***'
    """
    for value in _values():
        text = text.replace(value, MASK)
    return TOKEN.sub(MASK, text)


def _values() -> list[str]:
    """The values of the environment's keys and tokens, the longest first, since one may be a part of another."""
    values = {value for name, value in os.environ.items() if VARIABLE.search(name) and len(value) >= SHORTEST}
    return sorted(values, key=len, reverse=True)

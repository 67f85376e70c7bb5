"""Noisy in-context recall: a fifth of the pairs is noise (Poli et al. 2024)."""

from dataclasses import dataclass

from evalkit.tasks.mad.in_context_recall import InContextRecall


@dataclass(frozen=True, kw_only=True)
class NoisyRecall(InContextRecall):
    """In-context recall where a fifth of the pairs is noise; 16 of the 32 tokens are only noise.

    With keys a to d, values 1 to 4 and noise `·`, an example is `b 3 · · a 1 b 3 · · a 1`.

    >>> NoisyRecall().keys
    8
    """

    vocab_size: int = 32
    noise_vocab_size: int = 16
    frac_noise: float = 0.2

"""How long a sequence can be at all, and how a number of bytes is written."""

from evalkit.core.errors import UserError

LONGEST = 2**31 - 1
"""Positions are 32-bit integers."""
TOKEN_BYTES = 9
"""Bytes per token of an example: the token, its target, and whether it is scored."""


def refuse_beyond_positions(setting: str, length: int) -> None:
    """Raises UserError for a `length`, given by `setting`, that no position can count."""
    if length > LONGEST:
        raise UserError(
            f"{setting}: a length of {length:,} tokens takes at least {shown(TOKEN_BYTES * length)} a sequence, and "
            f"positions end at {LONGEST:,}; give a shorter one"
        )


def shown(size: float) -> str:
    """A number of bytes as people read it: `838 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024 or unit == "PiB":
            break
        size /= 1024
    return f"{size:,.3g} {unit}" if size < 1000 else f"{size:,.0f} {unit}"

"""A line of the sheet in words: numbers, marks, scale and price, as the terminal and the page show them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from evalkit.claims.claims import SCALES, Claim
from evalkit.claims.parts import Finding
from evalkit.claims.sheet import JudgedClaim, Verdict
from evalkit.core.statistics import exact_interval

SIGNS = {
    Verdict.EXACT: "=",
    Verdict.HOLDS: "✓",
    Verdict.SEEN_ONCE: "1",
    Verdict.DOES_NOT_HOLD: "✗",
    Verdict.NOT_DECIDABLE: "?",
    Verdict.NOT_RUN: "–",
    Verdict.NOT_HERE: "∅",
}
"""A sign of each verdict, for those who do not see its colour."""
SYMBOLS = {">=": "≥", "<=": "≤", ">": ">", "<": "<"}
NONE = "–"
"""What stands where there is nothing."""


def number(value: float) -> str:
    """Three digits; in words a step that was never reached, and a difference or a ratio of such.

    >>> number(0.80078), number(24_576_000), number(math.inf)
    ('0.801', '24,576,000', 'never')
    """
    if not math.isfinite(value):
        return "undefined" if math.isnan(value) else "never" if value > 0 else "the other never"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}"


def finding(one: Finding) -> str:
    """What one part measured: value, interval, the seeds at the mark and the test."""
    if one.part.statistic == "tests":
        return one.part.says
    text = f"{'by ' if one.part.statistic == 'order' else ''}{number(one.value)}"
    if one.low is not None and one.high is not None and one.low < one.high:
        text += f" ({number(one.low)} to {number(one.high)})"
    if one.documents is not None:
        text += f", {one.documents} documents"
    elif one.part.meets is not None and len(one.each) > 1:
        low, high = exact_interval(one.at_the_mark, len(one.each))
        text += f", {one.at_the_mark} of {len(one.each)} at the mark ({low:.2f} to {high:.2f})"
    if one.p is not None and one.p_adjusted is not None:
        text += f", p that it is {'higher' if one.part.upward else 'lower'} {one.p:.2g}, by Holm {one.p_adjusted:.2g}"
    return text


def marks(one: Finding) -> str:
    """The marks of one part."""
    if one.part.statistic == "order":
        return "an order if p by Holm is at most 0.05"
    named = {"meets": one.part.meets, "fails": one.part.fails}
    return ", ".join(f"{name} {SYMBOLS[mark.sign]} {mark.number:g}" for name, mark in named.items() if mark is not None)


def here(judged: JudgedClaim) -> str:
    """Our value: that of the part which decides."""
    if not judged.findings:
        return NONE
    by_side = {one.side: one for one in reversed(judged.findings)}
    return finding(by_side.get("fails") or by_side.get("open") or judged.findings[0])


def counts(sheet: Mapping[str, JudgedClaim]) -> dict[Verdict, int]:
    """How many claims have each verdict, in the order of the verdicts."""
    counted = Counter(judged.verdict for judged in sheet.values())
    return {verdict: counted[verdict] for verdict in Verdict}


def command(claim: Claim) -> str:
    """The command that reproduces a claim: it makes the runs, or runs the tests that prove the claim."""
    tests = [test for part in claim.test if part.statistic == "tests" for test in part.of]
    return f"python -m pytest -m '' {' '.join(tests)}" if tests else f"python -m evalkit {claim.runs.command}"


def price(claim: Claim) -> str:
    """The hours that reproducing a claim takes."""
    hours = claim.hours
    parts = [f"{hours[name]:g} h of {words}" for name, words in (("cpu", "a core"), ("gpu", "a GPU")) if hours[name]]
    return " or ".join(parts) or NONE


def scale(ratios: Mapping[str, float | None]) -> str:
    """Our parameters, tokens and length over the paper's."""
    known = [f"{name} {ratio:.2g}" for name in SCALES if (ratio := ratios[name]) is not None]
    return f"{', '.join(known)} of the paper's" if known else NONE


def control(judged: JudgedClaim) -> str:
    """The positive control, and whether it passed."""
    says = judged.claim.control.says
    if judged.control is None:
        return f"{'not run' if judged.claim.control.parts else 'none measured'}: {says}"
    measured = "; ".join(f"{one.part.says}: {finding(one)}" for one in judged.control)
    return f"{'passed' if judged.control_passed else 'failed'}. Asked: {says}. Measured: {measured}"


def registered(claim: Claim) -> str:
    """When the marks were fixed."""
    if claim.registered is None:
        return "no; the marks were written after the runs"
    return f"{claim.registered['date']}, commit {claim.registered['commit']}"


def facts(judged: JudgedClaim) -> Sequence[tuple[str, str]]:
    """All that is said of a claim beside its test."""
    claim = judged.claim
    seeds = ", ".join(map(str, claim.runs.seeds))
    compared = any(one.p is not None for one in judged.findings)
    comparisons = (
        [("comparisons", f"{judged.comparisons} in {claim.figure}, for which Holm adjusts")] if compared else []
    )
    return [
        ("the paper", claim.paper),
        ("control", control(judged)),
        ("registered", registered(claim)),
        *comparisons,
        ("seeds", seeds or NONE),
        ("our scale", scale(judged.ratios)),
        ("not claimed", claim.not_claimed),
        ("command", command(claim)),
        ("price", price(claim)),
        ("read on", f"studies/{claim.read}"),
    ]


def plain(sheet: Mapping[str, JudgedClaim], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sheet as JSON has it."""
    return {"counts": {verdict.value: count for verdict, count in counts(sheet).items()}, "claims": lines}

"""The sheet: of every claim what its test measures in the kept rows, and the verdict that follows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from evalkit.claims.claims import SCALES, Claim
from evalkit.claims.measures import NoRows, record_of
from evalkit.claims.parts import Finding, Part, measure
from evalkit.core.statistics import exact_interval, holm


class Verdict(StrEnum):
    """What may be said of a claim."""

    EXACT = "exact"
    HOLDS = "holds"
    SEEN_ONCE = "seen once"
    DOES_NOT_HOLD = "does not hold"
    NOT_DECIDABLE = "not decidable"
    NOT_RUN = "not run"
    NOT_HERE = "cannot be run here"


@dataclass(frozen=True)
class JudgedClaim:
    """A claim, what was measured, and the verdict with its reason; `control` is None where none was measured."""

    claim: Claim
    verdict: Verdict
    why: str
    findings: Sequence[Finding]
    control: Sequence[Finding] | None
    comparisons: int
    """How many comparisons its figure makes, for which the p-values are adjusted."""
    ratios: Mapping[str, float | None]
    """Our parameters, tokens and length over the paper's; None where one of the two is not known."""

    @property
    def control_passed(self) -> bool | None:
        """Whether the assay can say yes; None where there is no control."""
        return None if self.control is None else all(one.side in ("exact", "meets") for one in self.control)


def judge(claims: Mapping[str, Claim], studies: Path) -> dict[str, JudgedClaim]:
    """The sheet, from the rows in the folder of studies."""
    found = {id: _measured(claim.test, studies) for id, claim in claims.items() if claim.lacking is None}
    controls = {id: _measured(claim.control.parts, studies) for id, claim in claims.items()}
    figures: dict[str, list[str]] = {}
    for id in found:
        figures.setdefault(claims[id].figure, []).append(id)
    judged = {}
    for id, claim in claims.items():
        findings, reason = found.get(id, ([], ""))
        family = [one for other in figures.get(claim.figure, ()) for one in found[other][0]]
        adjusted = _adjusted(findings, family)
        of_control, lacking = controls[id]
        control = None if lacking or not of_control else _adjusted(of_control, of_control)  # a part of it shows nothing
        verdict, why = decide(claim, adjusted, control, reason)
        count = sum(one.p is not None for one in family)
        judged[id] = JudgedClaim(claim, verdict, why, adjusted, control, count, scale_of(claim, studies))
    return judged


def decide(
    claim: Claim, findings: Sequence[Finding], control: Sequence[Finding] | None, missing: str = ""
) -> tuple[Verdict, str]:
    """The verdict of what was measured, and why; `missing` says which rows there are not."""
    if claim.lacking is not None:
        return Verdict.NOT_HERE, claim.lacking
    if missing or not findings:
        return Verdict.NOT_RUN, missing or "no run answers it"
    of_runs = [one for one in findings if one.part.statistic != "tests"]
    repeats = min(one.repeats for one in of_runs or findings)
    once = "one round" if findings[0].part.is_timing else "one seed"
    if claim.runs.seeds and repeats < len(claim.runs.seeds):
        return Verdict.NOT_DECIDABLE, f"{repeats} of {len(claim.runs.seeds)} seeds are kept so far"
    sides = [one.side for one in findings]
    if set(sides) <= {"exact", "meets"}:
        of_seeds = [side for side, one in zip(sides, findings, strict=True) if not one.part.median_alone]
        if set(of_seeds) == {"exact"} and (repeats > 1 or not of_runs):
            return Verdict.EXACT, "every seed is at its mark" if of_runs else "tests of the suite hold it"
        return (Verdict.SEEN_ONCE, once) if repeats == 1 else (Verdict.HOLDS, "every mark is met")
    if "fails" not in sides:
        return Verdict.NOT_DECIDABLE, _open(findings)
    failed = next(one for one in findings if one.side == "fails").part.says
    if repeats == 1:
        return Verdict.NOT_DECIDABLE, f"{once}, and it is against the claim: {failed}"
    if control is None:
        return Verdict.NOT_DECIDABLE, f"the mark is missed ({failed}), and there is no control: {claim.control.says}"
    if any(one.side not in ("exact", "meets") for one in control):
        return Verdict.NOT_DECIDABLE, f"the mark is missed ({failed}), and its control misses its own"
    return Verdict.DOES_NOT_HOLD, f"the mark is missed ({failed}), and its control passes"


def scale_of(claim: Claim, studies: Path) -> dict[str, float | None]:
    """Our parameters, tokens and length over the paper's."""
    paper = claim.scale["paper"]
    try:
        ours = claim.scale["ours"] if "ours" in claim.scale else _of_run(studies, claim.scale["run"])
    except NoRows:
        ours = {}
    return {name: ours[name] / paper[name] if ours.get(name) and paper.get(name) else None for name in SCALES}


def plain(judged: JudgedClaim) -> dict[str, Any]:
    """One line of the sheet as JSON has it."""
    claim = judged.claim
    return {
        "id": claim.id,
        "claim": claim.says,
        "section": claim.section,
        "figure": claim.figure,
        "paper": claim.paper,
        "verdict": judged.verdict.value,
        "why": judged.why,
        "test": [_plain(one) for one in judged.findings],
        "control": {
            "says": claim.control.says,
            "passed": judged.control_passed,
            "test": [_plain(one) for one in judged.control or ()],
        },
        "comparisons": judged.comparisons,
        "registered": claim.registered,
        "runs": vars(claim.runs),
        "scale": judged.ratios,
        "hours": claim.hours,
        "not_claimed": claim.not_claimed,
        "read": claim.read,
    }


def _measured(parts: Sequence[Part], studies: Path) -> tuple[list[Finding], str]:
    """What the parts measure; where one has no rows, those before it and what is missing."""
    findings: list[Finding] = []
    for part in parts:
        try:
            findings.append(measure(part, studies))
        except NoRows as missing:
            return findings, str(missing)
    return findings, ""


def _adjusted(findings: Sequence[Finding], family: Sequence[Finding]) -> list[Finding]:
    """The findings with p-values adjusted by Holm for all comparisons of `family`, to which they belong."""
    compared = [one for one in family if one.p is not None]
    forward = holm([one.p for one in compared if one.p is not None])
    reverse = holm([one.p_reverse for one in compared if one.p_reverse is not None])
    by_finding = {id(one): pair for one, *pair in zip(compared, forward, reverse, strict=True)}
    return [one.adjusted(*by_finding.get(id(one), (None, None))) for one in findings]


def _open(findings: Sequence[Finding]) -> str:
    """Why nothing is decided."""
    one = next(one for one in findings if one.side == "open")
    meets, fails = one.part.meets, one.part.fails
    if one.part.statistic == "order":
        return f"no order: {one.part.says}"
    if one.documents is None and any(mark is not None and mark.holds(one.value) for mark in (meets, fails)):
        return f"its seeds split at the mark: {one.part.says}"
    return f"between its marks: {one.part.says}"


def _of_run(studies: Path, run: str) -> dict[str, float | None]:
    record, configuration = record_of(studies, run)
    header, train = record.header, configuration.get("train", {})
    length = (header.train_length or 0) + (header.answer_length or 0)
    tokens = (header.steps or 0) * train.get("batch_size", 0) * length
    return {"parameters": header.parameters, "tokens": tokens, "length": header.train_length}


def _plain(finding: Finding) -> dict[str, Any]:
    part = finding.part
    at, seeds = finding.at_the_mark, len(finding.each)
    marks = {name: f"{mark.sign} {mark.number:g}" for name in ("meets", "fails") if (mark := getattr(part, name))}
    return {
        "says": part.says,
        "statistic": part.statistic,
        "of": part.of,
        **marks,
        "value": _finite(finding.value),
        "low": _finite(finding.low),
        "high": _finite(finding.high),
        "each": {str(seed): _finite(x) for seed, x in finding.each.items()},
        "repeats": finding.repeats,
        "documents": finding.documents,
        "at_the_mark": [at, seeds, *exact_interval(at, seeds)] if part.meets and seeds else None,
        "p": finding.p,
        "p_adjusted": finding.p_adjusted,
        "side": finding.side,
    }


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None

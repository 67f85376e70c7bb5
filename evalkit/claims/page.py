"""`claims.html`: the sheet as a page that needs no other file, on a screen of any width and in print."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from evalkit.claims import shown
from evalkit.claims.parts import Finding
from evalkit.claims.sheet import JudgedClaim, Verdict, plain
from evalkit.reports import page

TITLE = "What the Griffin paper says, and what was measured"
LEAD = (
    "Each verdict is computed from kept rows by a test with marks. Circles are seeds, the bar is their median, dashed "
    "lines are marks. A missed mark is “does not hold” only if a positive control reaches it, and one seed is at most "
    "“seen once”. Models are up to five orders of magnitude smaller than the paper's: each line says by how much."
)
TONES = {Verdict.EXACT: "yes", Verdict.HOLDS: "yes", Verdict.DOES_NOT_HOLD: "no"}
CSS = """
body { max-width: 86rem; }
:root { --yes: #00694f; --no: #a8380a; --open: #59616b; }
@media (prefers-color-scheme: dark) { :root { --yes: #4fc3a1; --no: #ff9a66; --open: #a5aeb8; } }
.chip { display: inline-block; padding: 0.1rem 0.55rem; border: 1.5px solid currentColor; border-radius: 1rem;
  font-weight: 600; font-size: 0.85rem; white-space: nowrap; color: var(--open); }
.chip.yes { color: var(--yes); } .chip.no { color: var(--no); border-style: double; border-width: 3px; }
.counts { display: flex; flex-wrap: wrap; gap: 0.5rem; margin: 0 0 1.5rem; }
.claim { display: grid; grid-template-columns: 7rem minmax(0, 1.2fr) minmax(0, 1.2fr) minmax(0, 1.8fr);
  gap: 0.4rem 1.5rem; padding: 1rem 0; border-top: 1px solid var(--line); break-inside: avoid; font-size: 0.9rem;
  overflow-wrap: anywhere; }
.claim h3 { margin: 0 0 0.3rem; font-size: 1rem; } .claim p { margin: 0 0 0.4rem; }
.at { color: var(--muted); }
.claim svg { display: block; width: 100%; max-width: 24rem; height: auto; margin: 0 0 0.7rem; color: var(--open); }
.yes svg { color: var(--yes); } .no svg { color: var(--no); }
.claim dl { display: grid; grid-template-columns: 5.2rem minmax(0, 1fr); align-content: start; gap: 0.15rem 0.8rem;
  margin: 0; font-size: 0.8rem; line-height: 1.4; } .claim dt { color: var(--muted); } .claim dd { margin: 0; }
.claim code { font-size: 0.75rem; }
svg text { font: 11px system-ui, sans-serif; fill: var(--muted); } svg .of-mark { fill: var(--ink); }
.axis { stroke: var(--line); stroke-width: 2; } .range { stroke: currentColor; stroke-width: 5; opacity: 0.3; }
.mark { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 3 3; }
.median { stroke: currentColor; stroke-width: 3; }
.seed { fill: var(--page); stroke: currentColor; stroke-width: 1.5; }
@media (max-width: 68rem) { .claim { grid-template-columns: 5rem minmax(0, 1fr) minmax(0, 1fr); }
  .claim dl { grid-column: 2 / -1; } }
@media (max-width: 40rem) { .claim { grid-template-columns: minmax(0, 1fr); } .claim dl { grid-column: 1; }
  body { padding: 1.5rem 1rem 3rem; } }
@media print { .claim { grid-template-columns: 4.5rem 1fr 1fr; font-size: 8.5pt; padding: 0.6rem 0; }
  .claim dl { grid-column: 2 / -1; font-size: 8pt; } }
"""
WIDTH, HEIGHT, EDGE = 260, 46, 14
LINE = 20
"""Where the line lies, from the top."""
ROOM = 40
"""The width of a number below the line."""


def html(sheet: Mapping[str, JudgedClaim]) -> str:
    """The whole page; the sheet is embedded as JSON, for whoever wants the numbers back."""
    chips = "".join(f"<span>{_chip(verdict)} × {count}</span>" for verdict, count in shown.counts(sheet).items())
    parts = [f"<style>{CSS}</style>", f'<p class="counts">{chips}</p>', *map(_claim, sheet.values())]
    return page.page(TITLE, LEAD, parts, shown.plain(sheet, [plain(judged) for judged in sheet.values()]))


def _claim(judged: JudgedClaim) -> str:
    claim = judged.claim
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{_fact(name, text)}</dd>"
        for name, text in shown.facts(judged)
        if text != shown.NONE
    )
    measured = "".join(map(_finding, judged.findings))
    return (
        f'<article class="claim {TONES.get(judged.verdict, "open")}" id="{escape(claim.id)}">'
        f'<div><h3>{escape(claim.id)}</h3><p class="at">{escape(claim.figure)}</p></div>'
        f"<div><p>{escape(claim.says)}</p><p>{_chip(judged.verdict)} {escape(judged.why)}</p></div>"
        f"<div>{measured or f'<p>{shown.NONE}</p>'}</div><dl>{facts}</dl></article>"
    )


def _finding(finding: Finding) -> str:
    says, measured = escape(finding.part.says), escape(shown.finding(finding))
    if finding.part.statistic == "tests":
        return f"<p>{measured}</p>"
    return f'<p>{says}: <b>{measured}</b> <span class="at">{escape(shown.marks(finding))}</span></p>{strip(finding)}'


def _chip(verdict: Verdict) -> str:
    return f'<span class="chip {TONES.get(verdict, "open")}">{shown.SIGNS[verdict]} {verdict.value}</span>'


def _fact(name: str, text: str) -> str:
    return f"<code>{escape(text)}</code>" if name == "command" else escape(text)


def strip(finding: Finding) -> str:
    """The figure of one finding; nothing for what is held by tests, or has no value."""
    if finding.part.statistic == "tests" or math.isnan(finding.value):
        return ""
    marks = list(dict.fromkeys(mark.number for mark in (finding.part.meets, finding.part.fails) if mark is not None))
    if finding.part.statistic == "order":
        marks = [0.0]
    numbers = [x for x in (*finding.each.values(), finding.value, finding.low, finding.high) if x is not None]
    low, high = _range([*filter(math.isfinite, numbers), *marks] or [0.0])

    def at(number: float) -> float:
        share = float(number > 0) if math.isinf(number) else (number - low) / (high - low)
        return round(EDGE + share * (WIDTH - 2 * EDGE), 1)

    parts = [f'<line class="axis" x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{LINE}" y2="{LINE}"/>']
    if finding.low is not None and finding.high is not None:
        parts.append(f'<line class="range" x1="{at(finding.low)}" x2="{at(finding.high)}" y1="{LINE}" y2="{LINE}"/>')
    parts += [f'<line class="mark" x1="{at(mark)}" x2="{at(mark)}" y1="4" y2="{LINE + 12}"/>' for mark in marks]
    seeds = [number for number in finding.each.values() if not math.isnan(number)]
    parts += [f'<circle class="seed" cx="{at(number)}" cy="{LINE}" r="4"/>' for number in seeds]
    parts.append(f'<line class="median" x1="{at(finding.value)}" x2="{at(finding.value)}" y1="8" y2="{LINE + 12}"/>')
    parts += _labels({low: at(low), high: at(high)}, {mark: at(mark) for mark in marks})
    says = escape(f"{finding.part.says}: {shown.finding(finding)}; {shown.marks(finding)}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{says}">{"".join(parts)}</svg>'


def _range(numbers: Sequence[float]) -> tuple[float, float]:
    """From 0 to 1 where all lies there, else a little wider than the numbers."""
    low, high = min(numbers), max(numbers)
    if low >= 0 and high <= 1 and high > 0.3:
        return 0.0, 1.0
    pad = 0.08 * (high - low) or abs(high) * 0.1 or 1.0
    return low - pad, high + pad


def _labels(ends: Mapping[float, float], marks: Mapping[float, float]) -> list[str]:
    """Numbers below the line, by where they lie: the marks, then the ends, each only if none is near it."""
    placed: dict[float, str] = {}
    of_marks = [(x, f"{mark:g}", "of-mark") for mark, x in marks.items()]
    for x, text, kind in [*of_marks, *((x, f"{end:.3g}", "end") for end, x in ends.items())]:
        if all(abs(x - other) > ROOM for other in placed):
            anchor = "start" if x < ROOM else "end" if x > WIDTH - ROOM else "middle"
            placed[x] = f'<text class="{kind}" x="{x}" y="{HEIGHT - 2}" text-anchor="{anchor}">{text}</text>'
    return list(placed.values())

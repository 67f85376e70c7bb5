"""`claims.html`: the sheet as a page that needs no other file, on a screen of any width and in print."""

from collections.abc import Mapping
from html import escape

from evalkit.claims import shown
from evalkit.claims.parts import Finding
from evalkit.claims.sheet import Judged, Verdict, plain
from evalkit.claims.strips import strip
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


def html(sheet: Mapping[str, Judged]) -> str:
    """The whole page; the sheet is embedded as JSON, for whoever wants the numbers back."""
    chips = "".join(f"<span>{_chip(verdict)} × {count}</span>" for verdict, count in shown.counts(sheet).items())
    parts = [f"<style>{CSS}</style>", f'<p class="counts">{chips}</p>', *map(_claim, sheet.values())]
    return page.page(TITLE, LEAD, parts, shown.plain(sheet, [plain(judged) for judged in sheet.values()]))


def _claim(judged: Judged) -> str:
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

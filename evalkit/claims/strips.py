"""The small figure of a measurement: its seeds on a line, their median, the interval and the marks, as inline SVG."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from evalkit.claims import shown
from evalkit.claims.parts import Finding

WIDTH, HEIGHT, EDGE = 260, 46, 14
LINE = 20
"""Where the line lies, from the top."""
ROOM = 40
"""What a number below the line takes."""


def strip(finding: Finding) -> str:
    """The figure of one finding; nothing for what is held by tests, or has no value."""
    if finding.part.statistic == "tests" or math.isnan(finding.value):
        return ""
    marks = list(dict.fromkeys(mark.number for mark in (finding.part.meets, finding.part.fails) if mark is not None))
    numbers = [x for x in (*finding.each.values(), finding.value, finding.low, finding.high) if x is not None]
    low, high = _range([*filter(math.isfinite, numbers), *marks])
    if finding.part.statistic == "order":
        marks = [0.0]

    def at(number: float) -> float:
        share = 1.0 if math.isinf(number) else (number - low) / (high - low)
        return round(EDGE + share * (WIDTH - 2 * EDGE), 1)

    parts = [f'<line class="axis" x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{LINE}" y2="{LINE}"/>']
    if finding.low is not None and finding.high is not None:
        parts.append(f'<line class="range" x1="{at(finding.low)}" x2="{at(finding.high)}" y1="{LINE}" y2="{LINE}"/>')
    parts += [f'<line class="mark" x1="{at(mark)}" x2="{at(mark)}" y1="4" y2="{LINE + 12}"/>' for mark in marks]
    parts += [f'<circle class="seed" cx="{at(number)}" cy="{LINE}" r="4"/>' for number in finding.each.values()]
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

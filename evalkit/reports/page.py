"""Self-contained HTML pages: text, tables and inline figures, no script to run and nothing to fetch."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from evalkit.reports.canvas import AXIS, GRID, INK, MUTED

THEME = {INK: "--ink", MUTED: "--muted", AXIS: "--muted", GRID: "--line", "#ffffff": "--page"}
CSS = """
:root { color-scheme: light dark; --ink: #1f2328; --muted: #626a73; --line: #dfe3e8; --tint: #f6f7f9; --mark: #0072b2;
  --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --muted: #9aa3ad; --line: #333a42; --tint: #1d2126;
  --mark: #56b4e9; --page: #14171a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 54rem; padding: 3rem 1.5rem 5rem; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 0.35rem; }
h2 { font-size: 1.1rem; margin: 2.6rem 0 0.8rem; letter-spacing: -0.005em; }
.lead { color: var(--muted); margin: 0 0 1.6rem; }
.facts { display: flex; flex-wrap: wrap; gap: 0.9rem 2.2rem; margin: 0 0 1.6rem; }
.facts dt { color: var(--muted); font-size: 0.78rem; } .facts dd { margin: 0; font-weight: 600; }
.notes { margin: 0 0 1.6rem; padding: 0.7rem 1.1rem; background: var(--tint); border-left: 3px solid var(--mark);
  border-radius: 0 6px 6px 0; } .notes p { margin: 0.2rem 0; }
figure { margin: 1.2rem 0 0.6rem; } figure svg { width: 100%; height: auto; display: block; }
figcaption { color: var(--muted); font-size: 0.85rem; margin-top: 0.4rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--muted); border-bottom: 1px solid var(--ink); }
td { text-align: right; border-bottom: 1px solid var(--line); }
th, td { padding: 0.38rem 0.55rem; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
pre { overflow-x: auto; padding: 0.8rem 1rem; background: var(--tint); border: 1px solid var(--line);
  border-radius: 6px; font: 0.8rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
details { margin: 0.8rem 0; } summary { cursor: pointer; color: var(--muted); }
@media print { body { max-width: none; padding: 0; } details { display: none; } }
"""


def page(title: str, lead: str, parts: Sequence[str], data: Any) -> str:
    """The whole page; `data` is embedded as JSON under the id `results`, for whoever wants the numbers back."""
    numbers = json.dumps(data, allow_nan=False).replace("<", "\\u003c")  # no tag and no comment begins in it
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>",
            f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>',
            *[part for part in parts if part],
            f'<script type="application/json" id="results">{numbers}</script>\n</body>\n</html>\n',
        ]
    )


def heading(text: str) -> str:
    """A second-level heading."""
    return f"<h2>{escape(text)}</h2>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, side by side."""
    items = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{"".join(items)}</dl>'


def notes(lines: Sequence[str]) -> str:
    """What a reader must know before trusting a number; empty for no lines."""
    return f'<div class="notes">{"".join(f"<p>{escape(line)}</p>" for line in lines)}</div>' if lines else ""


def figure(svg: str, caption: str) -> str:
    """An inline figure in the page's colours; the caption also serves those who cannot see it."""
    for colour, variable in THEME.items():
        svg = svg.replace(colour, f"var({variable}, {colour})")
    image = svg.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def code(text: str) -> str:
    """Preformatted text."""
    return f"<pre>{escape(text)}</pre>"


def details(summary: str, text: str) -> str:
    """Preformatted text that unfolds."""
    return f"<details><summary>{escape(summary)}</summary>{code(text)}</details>"


def display_name(task: str) -> str:
    """A task's name as a title says it: `induction_heads` is "Induction heads", `arxiv` as arXiv writes itself."""
    return "arXiv" if task == "arxiv" else task.replace("_", " ").capitalize()

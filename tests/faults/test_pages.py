"""What a run says of itself is shown as text: a page has no element and no script of a run's author."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

import evalkit
from evalkit.reports.writer import report
from support.made_up_runs import run_record, write_run

pytestmark = pytest.mark.fault
MARKUP = "<script>alert('x')</script><img src=x onerror=alert(1)><!--<script>\"'&$\\frac{$"


class Tags(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.slow
def test_pages_show_markup_as_text(tmp_path: Path) -> None:
    """Of names, notes, texts, commands, the environment and the configuration."""
    record = run_record(
        model=f"m{MARKUP}", task=f"t{MARKUP}", notes=[MARKUP], preset=MARKUP, text={"used": MARKUP, "digest": MARKUP}
    )
    folder = write_run(tmp_path / "made", record)
    (folder / "config.yaml").write_text(f"# {MARKUP}\n", encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps({"command": MARKUP, MARKUP: MARKUP}), encoding="utf-8")
    (folder / "history.json").write_text(json.dumps([{"command": MARKUP}]), encoding="utf-8")
    report(folder, Console(quiet=True))
    out = evalkit.compare(folder, folder=tmp_path / "out", quiet=True)
    for page in (folder / "report.html", out / "compare.html"):
        text = page.read_text(encoding="utf-8")
        found = Tags(text).found
        assert [attributes for tag, attributes in found if tag == "script"] == [
            {"type": "application/json", "id": "results"}
        ]
        assert not any(tag == "img" or name.startswith("on") for tag, named in found for name in named)
        embedded = text.partition('id="results">')[2].partition("</script>")[0]
        assert "<" not in embedded and json.loads(embedded)
        assert text.rstrip().endswith("</script>\n</body>\n</html>")

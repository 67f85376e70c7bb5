"""`python -m evalkit reproduce [ID…]`: every claim of the paper on one sheet, with its verdict, evidence and price."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evalkit.commands.guide import Page
from evalkit.core.errors import UserError, typed_path, writing

if TYPE_CHECKING:
    from evalkit.claims.claims import Claim
    from evalkit.claims.sheet import JudgedClaim

SETTINGS = ("out", "format", "studies", "run", "archive")
PAGE = "claims.html"
SUFFIXES = (".tar.gz", ".tgz")
STYLES = {"exact": "green", "holds": "green", "does not hold": "red", "not decidable": "yellow", "seen once": "cyan"}
ABOUT = """\
Every claim of the paper on one sheet: what was measured, does it hold, what does it cost to see it with one's own eyes.
With the ids of claims, such as B3, those alone with all their evidence. Verdicts follow from the rows in studies/.

  out=FOLDER      write claims.html there: a page with a small figure of each claim
  archive=FILE    pack the sheet, claims, rows, configurations and figures with their sums, as FILE.tar.gz
  format=json     print it as JSON
  run=true        with one id: train and measure its runs anew in the folder out=, then judge them beside the kept
                  ones; settings may follow, such as preset=paper, seeds=2, dry_run=true. What was stopped goes on
                  when the same line is typed again
  hawk=MODEL      with run=true: another model takes the place of the run hawk, and is trained by its recipe; with
                  --config-dir a model or mixer of your own
  studies=FOLDER  the kept rows and claims.yaml; default: studies/ here, or that of the clone"""


def main(arguments: Sequence[str]) -> int:
    """Prints the sheet, or single claims, and returns 0; raises UserError for an id that is none."""
    parser = Page(
        "reproduce", ABOUT, "reproduce", "reproduce B3", "reproduce out=sheet", "reproduce A2 run=true out=mine"
    )
    parser.add_argument("words", nargs="*", metavar="ID", help="of a claim; none: the whole sheet")
    words = parser.parse_args(arguments).words
    from evalkit.claims import claims, shown
    from evalkit.claims.sheet import judge, plain

    settings = dict(word.split("=", 1) for word in words if "=" in word)
    if "out" in settings and not settings["out"]:
        raise UserError("out= names no folder; give one, such as out=sheet")
    if settings.get("run", "true") != "true":
        raise UserError(f"run={settings['run']} is none of reproduce; give run=true, or leave it out")
    if "run" in settings:
        return _anew(words)
    if strange := sorted(set(settings) - set(SETTINGS)):
        allowed = f"it takes {', '.join(SETTINGS)} and ids of claims, and settings of runs with run=true alone"
        raise UserError(f"reproduce takes no {strange[0]}=; {allowed}")
    if settings.get("format", "text") not in ("text", "json"):
        raise UserError(f"format={settings['format']} is none of reproduce; choose text or json")
    folder = claims.folder_of(typed_path(settings["studies"]) if "studies" in settings else None)
    every = claims.read(folder)
    chosen = [claims.nearest(every, word) for word in words if "=" not in word]
    if "archive" in settings:
        _refuse_part(settings["archive"], chosen)
    figures = {claim.figure for claim in chosen}
    sheet = judge({id: claim for id, claim in every.items() if not chosen or claim.figure in figures}, folder)
    if chosen:
        sheet = {claim.id: sheet[claim.id] for claim in chosen}
    if settings.get("format") == "json":
        print(json.dumps(shown.plain(sheet, [plain(judged) for judged in sheet.values()]), indent=1))
    elif chosen:
        for judged in sheet.values():
            _print_claim(Console(), judged)
    else:
        _print_sheet(Console(), sheet)
    # Of format=json stdout has the JSON alone.
    beside = sys.stderr if settings.get("format") == "json" else sys.stdout
    if "out" in settings:
        print(_write(settings["out"], sheet), file=beside)
    if "archive" in settings:
        print(_pack(settings["archive"], sheet, folder), file=beside)
    elif "out" not in settings and not chosen and settings.get("format") != "json":
        print(f"\nA page with figures: python -m evalkit reproduce out=FOLDER, which writes FOLDER/{PAGE}.")
    return 0


def _anew(words: Sequence[str]) -> int:
    """Makes the runs of one claim anew; prints its verdict by the kept runs, then by the new ones."""
    from evalkit.claims import anew, claims, shown
    from evalkit.claims.sheet import judge
    from evalkit.commands import run
    from evalkit.session.reproduction import reproduction

    keys = [word.partition("=")[0] for word in words if "=" in word]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise UserError(f"{twice[0]}= is given twice; give it once")
    ids = [word for word in words if "=" not in word and not word.startswith("~")]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    if len(ids) != 1:
        raise UserError(f"run=true makes the runs of one claim, and {len(ids)} are named; give one, such as A2")
    studies = claims.folder_of(typed_path(settings["studies"]) if "studies" in settings else None)
    every = claims.read(studies)
    claim = claims.nearest(every, ids[0])
    made = reproduction(claim, studies, words)
    code = run.main(made.words)
    if code or settings.get("dry_run") == "true":
        return code
    of_figure = {id: one for id, one in every.items() if one.figure == claim.figure}
    heading = f"By the runs in {made.folder}{f' ({made.differs})' if made.differs else ''}"
    for says, figure in (
        ("By the kept runs", of_figure),
        (heading, {**of_figure, claim.id: anew.on(claim, made.folder)}),  # so that Holm counts the same comparisons
    ):
        judged = judge(figure, studies)[claim.id]
        verdict = f"{shown.SIGNS[judged.verdict]} {judged.verdict.value} ({judged.why})"
        Console().print(Text(f"{says}: {verdict}; {shown.here(judged)}"), soft_wrap=True)
    return 0


def _write(out: str, sheet: Mapping[str, "JudgedClaim"]) -> str:
    from evalkit.claims.page import html
    from evalkit.record.files import write_text

    path = typed_path(out) / PAGE
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html(sheet))
    return f"written to {path}"


def _refuse_part(archive: str, chosen: "Sequence[Claim]") -> None:
    """Raises UserError for an archive of single claims, or of another kind of file."""
    if chosen:
        raise UserError(f"archive={archive} is of the whole sheet; leave {chosen[0].id} out")
    if not archive.endswith(SUFFIXES):
        example = f"archive={Path(archive).stem or 'claims'}{SUFFIXES[0]}"
        raise UserError(f"archive={archive}; allowed: a name that ends in {' or '.join(SUFFIXES)}, such as {example}")


def _pack(archive: str, sheet: Mapping[str, "JudgedClaim"], studies: Path) -> str:
    from evalkit.claims.archive import packed
    from evalkit.disk.files import write_whole

    path, content = typed_path(archive), packed(sheet, studies)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    return f"packed into {path}, {len(content) / 2**20:.1f} MiB"


def _print_sheet(console: Console, sheet: Mapping[str, "JudgedClaim"]) -> None:
    from evalkit.claims import shown

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("", "verdict", "the paper says", "figure", "here", "price"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("", "verdict"))
    for id, judged in sheet.items():
        verdict = Text(f"{shown.SIGNS[judged.verdict]} {judged.verdict.value}", STYLES.get(judged.verdict.value, "dim"))
        claim = judged.claim
        table.add_row(id, verdict, Text(claim.says), claim.figure, Text(shown.here(judged)), shown.price(claim))
    console.print(table)
    counts = ", ".join(f"{verdict.value} {count}" for verdict, count in shown.counts(sheet).items())
    console.print(Text(f"\n{len(sheet)} claims: {counts}."))
    console.print(Text("All evidence of one: python -m evalkit reproduce B3"))


def _print_claim(console: Console, judged: "JudgedClaim") -> None:
    from evalkit.claims import shown

    claim = judged.claim
    style = STYLES.get(judged.verdict.value, "dim")
    console.print(Text(f"{claim.id}  {shown.SIGNS[judged.verdict]} {judged.verdict.value}", f"bold {style}"))
    console.print(Text(f"{claim.says} (section {claim.section}, {claim.figure})"))
    console.print(Text(f"{judged.why[:1].upper()}{judged.why[1:]}.\n"))
    table = Table("", "", box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.columns[1].overflow = "fold"
    for one in judged.findings:
        each = ", ".join(f"{seed}: {shown.number(value)}" for seed, value in one.each.items())
        table.add_row(Text(one.part.says), Text(shown.finding(one)))
        table.add_row("", Text(f"{shown.marks(one)}{f'; {each}' if each else ''}", "dim"))
    for name, text in shown.facts(judged):
        table.add_row(Text(name), Text(text))
    console.print(table)
    console.print()

"""The sheet of claims: every entry is whole, and every verdict follows from kept rows by the entry's test."""

import json
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from evalkit.__main__ import main
from evalkit.claims import claims, page, shown
from evalkit.claims.claims import Claim
from evalkit.claims.measures import NoRows
from evalkit.claims.parts import Finding, Part, finding_of, measure
from evalkit.claims.sheet import JudgedClaim, Verdict, decide, judge
from evalkit.commands import run
from evalkit.configuration import grammar
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError
from evalkit.core.rows import RowLog, read
from evalkit.disk import sums
from support.killing import Attempt, Driver

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"
ENTRIES: Mapping[str, Any] = yaml.safe_load((STUDIES / claims.FILE).read_text(encoding="utf-8"))
OF_THE_PAPER = "1a 1b 3 4 5 6a 6b 6c 7 8a 8b 9 10"
SHARES = st.floats(0, 1, allow_nan=False)


@pytest.fixture(scope="module")
def sheet() -> dict[str, JudgedClaim]:
    return judge(claims.read(STUDIES), STUDIES)


def part(meets: str = ">= 0.99", fails: str = "< 0.99", **more: Any) -> Part:
    return Part.read({"median": {}, "says": "accuracy", "meets": meets, "fails": fails, **more})


def measured(*numbers: float, of: Part | None = None) -> Finding:
    return finding_of(of or part(), [dict(enumerate(numbers))])


def claim(seeds: Sequence[int] = (), lacking: str | None = None) -> Claim:
    entry = {**ENTRIES["B3"], "runs": {"seeds": list(seeds), "command": ""}}
    return claims._claim("B3", {**entry, "lacking": lacking})


def protocol() -> str:
    return (STUDIES / "protocol.md").read_text(encoding="utf-8")


# The verdicts, on made-up numbers.


def test_a_mark_that_every_seed_meets_holds() -> None:
    assert decide(claim(), [measured(1.0, 0.99, 1.0)], None)[0] == Verdict.HOLDS


def test_one_seed_is_at_most_seen_once() -> None:
    assert decide(claim(), [measured(1.0)], [measured(1.0, 1.0)])[0] == Verdict.SEEN_ONCE
    verdict, why = decide(claim(), [measured(0.1)], [measured(1.0, 1.0)])
    assert verdict == Verdict.NOT_DECIDABLE and "one" in why and "against" in why
    exact = part(exact=">= 0.99")
    assert decide(claim(), [measured(1.0, of=exact)], None)[0] == Verdict.SEEN_ONCE
    assert decide(claim(), [measured(1.0, 1.0, of=exact)], None)[0] == Verdict.EXACT


@given(st.lists(SHARES, min_size=2, max_size=6), st.lists(SHARES, min_size=1, max_size=6))
def test_does_not_hold_needs_a_control_that_passes(numbers: list[float], of_control: list[float]) -> None:
    findings = [measured(*numbers)]
    assert decide(claim(), findings, None)[0] != Verdict.DOES_NOT_HOLD
    control = [measured(*of_control)]
    verdict = decide(claim(), findings, control)[0]
    assert (verdict == Verdict.DOES_NOT_HOLD) == (findings[0].side == "fails" and control[0].side == "meets")


@given(st.lists(SHARES, min_size=2, max_size=8))
def test_the_seeds_decide_nothing_where_they_split(numbers: list[float]) -> None:
    """Two of five, or one of three, on the other side of the mark, as the protocol has it."""
    at = sum(number >= 0.99 for number in numbers)
    strays = min(at, len(numbers) - at)
    verdict = decide(claim(), [measured(*numbers)], [measured(1.0, 1.0)])[0]
    if strays > len(numbers) // 5:
        assert verdict == Verdict.NOT_DECIDABLE
    else:
        assert verdict == (Verdict.HOLDS if at > strays else Verdict.DOES_NOT_HOLD)


def test_the_median_alone_may_decide_and_lies_between_marks_too() -> None:
    assert measured(0.9, 1.0, 1.0).side == "open"
    assert measured(0.9, 1.0, 1.0, of=part(median_alone=True)).side == "meets"
    assert measured(0.8, 0.8, 0.8, of=part(">= 0.95", "<= 0.5")).side == "open"


def test_exact_needs_a_median_of_1_and_every_seed_at_its_mark() -> None:
    strict = part(exact=">= 0.99")
    assert decide(claim(), [measured(1.0, 1.0, 0.99, of=strict)], None)[0] == Verdict.EXACT
    assert decide(claim(), [measured(1.0, 0.995, 0.99, of=strict)], None)[0] == Verdict.HOLDS


def test_a_test_that_exists_makes_no_median_exact() -> None:
    by_tests = measure(Part.read(ENTRIES["X1"]["test"][0]), STUDIES)
    assert decide(claim(), [by_tests], None)[0] == Verdict.EXACT
    assert decide(claim(seeds=[0, 1, 2]), [measured(1.0, 0.99, 1.0), by_tests], None)[0] == Verdict.HOLDS


def test_a_control_that_is_kept_in_part_passes_nothing(tmp_path: Path) -> None:
    """The control of B3 with a second run, which was never made."""
    entry = {**ENTRIES["B3"], "figure": "alone"}
    own = entry["control"]["test"][0]
    easy = {"median": {**entry["test"][0]["median"], "length": 256}, "says": "Hawk at 256", "meets": ">= 0.9"}
    never = {**own, "median": {**own["median"], "run": "synthetic/fig6b/never"}}
    for parts, verdict in (([easy], Verdict.DOES_NOT_HOLD), ([easy, never], Verdict.NOT_DECIDABLE)):
        entry["control"] = {"says": "it can", "test": parts}
        (tmp_path / claims.FILE).write_text(yaml.safe_dump({"B3": entry}), encoding="utf-8")
        assert judge(claims.read(tmp_path), STUDIES)["B3"].verdict == verdict


def test_groups_of_other_seeds_are_not_compared_one_by_one() -> None:
    slope = Part.read({"slope": [{}, {}], "says": "x", "meets": ">= 0"})
    with pytest.raises(NoRows, match=r"of seeds \[0, 1\] and \[0\]"):
        finding_of(slope, [{0: 1.0, 1: 2.0}, {0: 1.0}])


def test_seeds_that_were_registered_and_are_missing_leave_it_open() -> None:
    verdict, why = decide(claim(seeds=[1, 2, 3]), [measured(1.0, 1.0)], None)
    assert verdict == Verdict.NOT_DECIDABLE and why.startswith("2 of 3 seeds")


def test_what_was_not_run_or_cannot_be_is_said() -> None:
    assert decide(claim(), [], None, "no run is kept as a/b") == (Verdict.NOT_RUN, "no run is kept as a/b")
    assert decide(claim(lacking="no weights"), [measured(1.0)], None) == (Verdict.NOT_HERE, "no weights")


def test_an_interval_over_documents_must_lie_beyond_the_mark() -> None:
    falls = part("< 0", "> 0")
    sides = [Finding(falls, (a + b) / 2, low=a, high=b, documents=9).side for a, b in ((-2, -1), (-1, 1), (1, 2))]
    assert sides == ["meets", "open", "fails"]


def test_ratios_are_of_medians_and_each_seed_has_its_own() -> None:
    slower = Part.read({"ratio": [{"run": "a"}, {"run": "b"}], "says": "", "meets": "<= 1.5", "fails": "> 2"})
    finding = finding_of(slower, [{0: 4000, 1: 3600, 2: 3900}, {0: 1900, 1: 2000, 2: 1900}])
    assert finding.value == pytest.approx(3900 / 1900) and finding.low == pytest.approx(3600 / 1900)
    assert finding.side == "open" and finding.p == pytest.approx(0.05)


def test_a_ratio_of_what_neither_reached_decides_nothing() -> None:
    slower = Part.read({"ratio": [{"run": "a"}, {"run": "b"}], "says": "", "meets": ">= 2", "fails": "< 1.5"})
    never = {0: float("inf"), 1: float("inf")}
    finding = finding_of(slower, [never, never])
    assert finding.side == "open" and shown.finding(finding).startswith("undefined") and page.strip(finding) == ""
    assert finding_of(slower, [never, {0: 900, 1: 800}]).side == "meets"


def test_an_order_is_one_after_holm_alone_and_the_opposite_one_is_two_sided() -> None:
    order = Part.read({"order": [{"run": "a"}, {"run": "b"}], "says": ""})
    high, low = {0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.1, 1: 0.2, 2: 0.3}
    finding, opposite = finding_of(order, [high, low]), finding_of(order, [low, high])
    assert (finding.p, opposite.p_reverse) == (0.05, 0.1)
    assert finding.side == "open" and finding.adjusted(0.05, 1.0).side == "meets"
    assert finding.adjusted(0.1, 1.0).side == "open" and opposite.adjusted(1.0, 0.04).side == "fails"


def test_a_slope_is_that_of_the_line_through_numbers_in_order() -> None:
    slope = Part.read({"slope": [{}, {}, {}], "says": "", "meets": "< 0", "fails": "> 0"})
    assert finding_of(slope, [{0: 3.0}, {0: 2.0}, {0: 1.0}]).value == pytest.approx(-1)


# From rows to the sheet.


def test_one_changed_row_changes_the_sheet(tmp_path: Path) -> None:
    """The run of B3 with every question at 16,384 right, then with one seed's lost, then as it was."""
    (tmp_path / claims.FILE).write_text(yaml.safe_dump({"B3": {**ENTRIES["B3"], "figure": "alone"}}), encoding="utf-8")
    header, rows = read(STUDIES / "synthetic/fig6b/hawk")
    far = [row for row in rows if (row["length"], row["split"], row["metric"]) == (16384, "test", "accuracy")]
    assert len(far) == 5
    seen = []
    for totals in ([384] * 5, [0, 0, *[384] * 3], [row["total"] for row in far]):
        for row, total in zip(far, totals, strict=True):
            row["total"], row["count"] = total, max(row["count"] or 0, 384 if total in (0, 384) else 0)
        folder = tmp_path / str(len(seen)) / "synthetic/fig6b/hawk"
        folder.mkdir(parents=True)
        with RowLog(folder / "metrics.jsonl") as log:
            log.begin(header)
            log.write(far)
        judged = judge(claims.read(tmp_path), tmp_path / str(len(seen)))["B3"]
        seen.append((judged.verdict, judged.findings[0].at_the_mark))
    assert seen[0] == (Verdict.HOLDS, 5) and seen[1] == (Verdict.NOT_DECIDABLE, 3)
    assert seen[2] == (Verdict.NOT_DECIDABLE, 0)  # no control is kept in this folder


def test_rows_that_are_not_kept_are_named() -> None:
    with pytest.raises(NoRows, match="no run is kept as fig6b/never"):
        measure(
            Part.read({**ENTRIES["B3"]["test"][0], "median": {"of": "accuracy", "run": "synthetic/fig6b/never"}}),
            STUDIES,
        )


def test_at_least_thirty_claims_have_rows_and_none_is_judged_without_reason(sheet: Mapping[str, JudgedClaim]) -> None:
    with_rows = [id for id, judged in sheet.items() if any(one.part.statistic != "tests" for one in judged.findings)]
    assert len(with_rows) >= 30
    assert all(judged.why for judged in sheet.values())
    assert not [
        id for id, judged in sheet.items() if judged.verdict == Verdict.DOES_NOT_HOLD and not judged.control_passed
    ]
    assert not [
        id
        for id, judged in sheet.items()
        if judged.verdict in (Verdict.HOLDS, Verdict.DOES_NOT_HOLD) and min(one.repeats for one in judged.findings) < 2
    ]


def test_what_the_protocol_decided_is_taken_over(sheet: Mapping[str, JudgedClaim]) -> None:
    """studies/protocol.md and studies/corrections.md, and B3's control by the second reading."""
    decided = {"A0": "holds", "A1": "not decidable", "A2": "holds", "B1": "holds", "B2": "not decidable", "B4": "holds"}
    assert {id: sheet[id].verdict.value for id in decided} == decided
    assert sheet["B3"].verdict == Verdict.NOT_DECIDABLE and sheet["B3"].control is not None
    assert f"{sheet['B3'].control[0].value:.3f}" == "0.586"
    assert sheet["C1"].verdict == Verdict.NOT_DECIDABLE and sheet["C1"].control_passed is False


def test_the_comparisons_of_a_figure_are_counted_together(sheet: Mapping[str, JudgedClaim]) -> None:
    of_figure = [judged for judged in sheet.values() if judged.claim.figure == "figure 6a"]
    p_values = [one.p for judged in of_figure for one in judged.findings if one.p is not None]
    assert {judged.comparisons for judged in of_figure} == {len(p_values)} and len(p_values) == 5
    (slower,) = sheet["A2"].findings
    assert slower.p == pytest.approx(0.05) and slower.p_adjusted == pytest.approx(0.25)


# The entries.


def test_every_figure_table_and_appendix_of_the_paper_is_on_the_sheet() -> None:
    figures = " ".join(entry["figure"] for entry in ENTRIES.values())
    assert all(re.search(rf"figure {name}\b", figures) for name in OF_THE_PAPER.split())
    assert all(f"table {number}" in figures for number in (1, 2, 3)) and "equation 5" in figures
    sections = " ".join(entry["section"] for entry in ENTRIES.values())
    assert all(re.search(rf"appendix [^;]*\b{letter}\b", sections) for letter in "BDEF")
    assert {"figure 5, left", "figure 5, right"} <= {entry["figure"] for entry in ENTRIES.values()}


@pytest.mark.parametrize("id", ENTRIES)
def test_an_entry_is_whole(id: str, sheet: Mapping[str, JudgedClaim]) -> None:
    found = sheet[id].claim
    assert found.says.endswith(".") and found.not_claimed and found.control.says and found.paper
    assert (STUDIES / found.read).is_file()
    assert found.test or found.lacking or id == "D3"  # whose rows have no measure yet
    assert set(found.hours) == {"cpu", "gpu"} and all(x is None or x > 0 for x in found.hours.values())
    assert set(found.scale) in ({"ours", "paper"}, {"run", "paper"})
    if found.registered is not None:
        assert re.fullmatch(r"2026-\d\d-\d\d", found.registered["date"])
        assert re.fullmatch(r"[0-9a-f]{7}", found.registered["commit"])
    experiment = found.runs.experiment
    if experiment is not None:
        assert any(path.is_file() for path in (ROOT / experiment, ROOT / "conf/experiment" / f"{experiment}.yaml"))
        assert f"experiment={experiment}" in found.runs.command


def test_the_seeds_of_an_entry_are_those_that_are_kept(sheet: Mapping[str, JudgedClaim]) -> None:
    for id, judged in sheet.items():
        by_seed = [one for one in judged.findings if one.each and judged.claim.runs.seeds]
        if judged.verdict != Verdict.NOT_DECIDABLE or "are kept so far" not in judged.why:
            assert all(set(one.each) == set(judged.claim.runs.seeds) for one in by_seed), id


def test_a_mark_that_changes_needs_a_new_date() -> None:
    """What is compared with which marks, as of the date in `registered`; write the file anew with the new date."""
    kept = json.loads((ROOT / "tests/golden/marks.json").read_text(encoding="utf-8"))
    for id, entry in ENTRIES.items():
        if entry["registered"] is not None and id in kept:
            date, digest = kept[id]
            changed = sha256(json.dumps(entry["test"], sort_keys=True).encode()).hexdigest()[:12] != digest
            assert not changed or entry["registered"]["date"] > date, f"{id}: its test is no longer that of {date}"
    assert set(kept) == {id for id, entry in ENTRIES.items() if entry["registered"] is not None}


REGISTERED = re.compile(r"^\| `(\w+)/(\w+)` \| (\w+)(?:, [\d-]+)? \| ([^|]+) \| (\w+), [\d-]+ \|$", re.MULTILINE)


def test_the_table_of_registrations_has_every_commit_of_the_kept_runs() -> None:
    table = {(study, name): runs for study, name, _, runs, _ in REGISTERED.findall(protocol())}
    for study in ("synthetic", "scaling", "suite"):
        made: dict[str, set[str]] = {}
        for name, kept in json.loads((STUDIES / study / "runs.json").read_text(encoding="utf-8")).items():
            git = kept["environment.json"]["git"]
            words = f"{git['commit'][:7]}{' and changes' * git['dirty']}"
            made.setdefault(name.partition("/")[0], set()).add(words)
        for name, commits in made.items():
            assert set(table.pop((study, name)).split(", ")) == commits, name
    assert not table


def test_what_was_registered_is_older_than_its_runs() -> None:
    def ends(*words: str) -> int:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False).returncode

    rows = [
        (name, first, runs.replace(" and changes", "")) for _, name, first, runs, _ in REGISTERED.findall(protocol())
    ]
    pairs = [(name, first, run) for name, first, runs in rows if first != "no" for run in runs.split(", ")]
    marks = [(id, claim["registered"]["commit"]) for id, claim in ENTRIES.items() if claim["registered"]]
    if any(ends("cat-file", "-e", commit) for _, commit in marks):
        pytest.skip("the history is not here: a shallow clone, or no clone")
    assert len(pairs) > 30
    assert [pair for pair in pairs if ends("merge-base", "--is-ancestor", *pair[1:])] == []


@pytest.mark.parametrize(
    "change, words",
    [
        ({"verdict": "holds"}, "has ['verdict']"),
        ({"control": None}, "claim B3"),
        ({"hours": ...}, "lacks ['hours']"),
        ({"test": [{"median": {}, "says": "x"}]}, "has no mark"),
        ({"test": [{"mean": {}, "says": "x", "meets": "> 1"}]}, "give one of median"),
        ({"test": [{"median": {}, "says": "x", "meets": "about 1"}]}, "no mark of a claim"),
    ],
)
def test_an_entry_that_is_not_whole_is_refused(change: Mapping[str, Any], words: str, tmp_path: Path) -> None:
    entry = {name: value for name, value in {**ENTRIES["B3"], **change}.items() if value is not ...}
    (tmp_path / claims.FILE).write_text(yaml.safe_dump({"B3": entry}), encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(words)):
        claims.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no claims"),
        (b"- 1\n", "has no claims"),
        (b"a: [1", "is no YAML"),
        (b"A\xe9: 1\n", "line 1, is not UTF-8"),
        (b"A1: 3\n", "claim A1 is 3"),
    ],
)
def test_a_file_of_claims_that_is_none_is_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / claims.FILE).write_bytes(content)
    with pytest.raises(UserError, match=said):
        claims.read(tmp_path)


# The page, the pages that quote it, and the command.


def test_the_page_needs_no_other_file_and_shows_every_claim(sheet: Mapping[str, JudgedClaim]) -> None:
    text = page.html(sheet)
    assert not re.search(r'(?:src|href)="|url\(|@import|<script src', text)
    assert [id for id in sheet if f'id="{id}"' not in text] == []
    assert len(set(shown.SIGNS.values())) == len(Verdict)
    assert all(f"{shown.SIGNS[judged.verdict]} {judged.verdict.value}</span>" in text for judged in sheet.values())


@given(st.lists(st.floats(-1e4, 1e4) | st.just(float("inf")), min_size=1, max_size=6).filter(lambda x: min(x) < 1e9))
def test_the_small_figure_keeps_within_its_edges(numbers: list[float]) -> None:
    order = Part.read({"order": {}, "says": "one above the other"})
    apart = [dict.fromkeys(range(2), -1e3), {0: -2e3, 1: -2e3 + 1}]  # both differences lie far above 0
    findings = (measured(*numbers, of=part("> 0.5", "< 0.1")), finding_of(order, apart))
    for svg in map(page.strip, findings):
        across = [float(x) for x in re.findall(r' (?:x|x1|x2|cx)="([\d.-]+)"', svg)]
        assert across and all(0 <= x <= page.WIDTH for x in across)


OF_THE_README = {
    "Griffin learns": "A1",
    "Hawk learns": "A2",
    "the Transformer": "B2",
    "Hawk is": "B3",
    "Griffin is": "B4",
}
QUOTED = re.compile(r"^\| ([A-Z]\d+) \|.*\| ([a-z ]+) \|$", re.M)


def test_the_pages_quote_the_sheet(sheet: Mapping[str, JudgedClaim]) -> None:
    quotes = QUOTED.findall((ROOT / "docs/reproduction.md").read_text(encoding="utf-8"))
    assert len(quotes) >= 10
    assert [(id, verdict) for id, verdict in quotes if sheet[id].verdict.value != verdict] == []


@pytest.mark.parametrize("begins", OF_THE_README)
def test_the_readme_quotes_the_sheet(begins: str, sheet: Mapping[str, JudgedClaim]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (verdict,) = re.findall(rf"^\| {begins} .*\| (yes|not decidable|no)\b[^|]*\|$", readme, re.M)
    words = {"holds": "yes", "does not hold": "no"}
    measured = sheet[OF_THE_README[begins]].verdict.value
    assert words.get(measured, measured) == verdict


def test_the_page_of_the_sheet_is_short_and_counts_as_it_does(sheet: Mapping[str, JudgedClaim]) -> None:
    text = (ROOT / "docs/reproduction.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    counted = ", ".join(f"{count} {verdict.value}" for verdict, count in shown.counts(sheet).items())
    assert f"{len(sheet)} claims: {counted}" in " ".join(text.split())


def test_one_claim_is_printed_with_all_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "B3", f"studies={STUDIES}"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "not decidable",
        "0.801 (0.516 to 0.971)",
        "S6 at 16,384: 0.586",
        "2026-11-21, commit d21831e",
        "1.3 h",
    ):
        assert words in text
    assert main(["reproduce", "B3", "format=json", f"studies={STUDIES}"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["claims"]
    assert line["control"]["passed"] is False and len(line["test"][0]["each"]) == 5


def test_the_page_is_written_where_it_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "X1", f"studies={STUDIES}", f"out={tmp_path / 'sheet'}"]) == 0
    assert "X1" in (tmp_path / "sheet/claims.html").read_text(encoding="utf-8")
    assert "written to" in capsys.readouterr().out


@pytest.mark.slow
def test_an_archive_gives_the_same_sheet_elsewhere_without_jax(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["reproduce", f"studies={STUDIES}", "format=json"]
    for name in ("one.tar.gz", "other.tgz"):
        assert main([*given, f"archive={tmp_path / 'deep' / name}"]) == 0
    said = capsys.readouterr()
    here = said.out[: len(said.out) // 2]
    assert said.out == here * 2 and said.err.count("packed into") == 2
    one, other = (tmp_path / "deep" / name for name in ("one.tar.gz", "other.tgz"))
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as archive:
        archive.extractall(tmp_path / "elsewhere", filter="data")
    folder = tmp_path / "elsewhere" / "evalkit-claims"
    assert sums.check(folder) and (folder / "CITATION.cff").read_bytes() == (ROOT / "CITATION.cff").read_bytes()
    code = "import sys; from evalkit.__main__ import main; main(sys.argv[1:])"
    code += "; print([name for name in ('jax', 'flax', 'optax', 'hydra') if name in sys.modules], file=sys.stderr)"
    command = [sys.executable, "-c", code, "reproduce", f"studies={folder / 'studies'}", "format=json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == here == (folder / "sheet.json").read_text(encoding="utf-8") and json.loads(here)["counts"]
    assert done.stderr.strip() == "[]"
    # A file that was changed is told from what was packed.
    (folder / "studies" / claims.FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(sums.Damaged, match=r"claims\.yaml is not what was written"):
        sums.check(folder)


def test_a_claim_is_judged_by_runs_that_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The two families of A2 are asked for, and no other run; here they are one seed of the kept ones."""
    commands = []

    def train(words: Sequence[str]) -> int:
        commands.append(list(words))
        for name in ("hawk", "mqa"):
            header, rows = read(STUDIES / "synthetic/fig6a" / name)
            (tmp_path / name).mkdir()
            with RowLog(tmp_path / name / "metrics.jsonl") as log:
                log.begin(header)
                log.write(row for row in rows if row["seed"] == 2002)
        return 0

    monkeypatch.setattr(run, "main", train)
    own = ["train.steps=9", "parameters=last"]
    assert main(["reproduce", "A2", "run=true", f"out={tmp_path}", f"studies={STUDIES}", *own]) == 0
    kept, made = capsys.readouterr().out.splitlines()
    assert "By the kept runs: ✓ holds" in kept and "1 seen once (one seed); 3.00" in made
    ((experiment, preset, *left_out, folder, steps, parameters),) = commands
    assert (experiment, preset, steps, parameters) == ("experiment=fig6a", "preset=cpu", *own)
    assert "; ".join(own) in made, "the verdict does not say how its runs differ"
    assert folder == f"hydra.run.dir='{tmp_path}'"
    assert left_out == ["~runs.griffin", "~controls.griffin_lm", "~controls.hawk_lm", "~controls.mqa_lm"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "choice"),
    [pytest.param([], "model=gla", marks=pytest.mark.exhaustive), (["--config-dir", "OWN"], "+mixer=mine")],
)
def test_a_model_of_ones_own_is_trained_as_the_family_whose_place_it_takes(
    own: list[str], choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixer = tmp_path / "mixer" / "mine.yaml"
    mixer.parent.mkdir()
    mixer.write_text(
        "_target_: evalkit.models.mixers.mingru.MinGRUBlock\n_partial_: true\nwidth_rnn: 64\nconv_width: 4\n",
        encoding="utf-8",
    )
    commands: list[Sequence[str]] = []
    monkeypatch.setattr(run, "main", lambda words: commands.append(words) or 0)
    given = [str(tmp_path) if word == "OWN" else word for word in own]
    name = choice.partition("=")[2]
    assert main([*given, "reproduce", "B3", "run=true", "dry_run=true", f"studies={STUDIES}", f"hawk={name}"]) == 0
    experiment = [word for word in commands[0] if word.startswith(("experiment=", "preset=", "hydra.searchpath="))]
    (place,) = (override for override in grammar.parse(commands[0]) if override.key_or_group == "runs.hawk")
    words = [str(word) for word in place.value()]
    assert words[0] == choice
    mine, hawk = (Spec.of([*experiment, *of]).plain for of in (words, ["model=hawk"]))
    assert all(mine[same] == hawk[same] for same in ("task", "train", "selected_by"))
    assert mine["eval"]["lengths"] == hawk["eval"]["lengths"]
    assert mine["model"] != hawk["model"] and mine["train"]["curriculum"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_claim_goes_from_nothing_to_a_verdict_though_it_is_killed_midway(tmp_path: Path) -> None:
    words = ["reproduce", "A2", "run=true", "preset=tiny", f"studies={STUDIES}", f"out={tmp_path / 'a2'}"]
    words += ["seeds=1", "model.pattern=[recurrent]", "model.width=16", "model.mixers.recurrent.width_rnn=16"]
    words += [f"train.{name}=4" for name in ("steps", "log_every", "eval_every", "checkpoint_every")]
    words += ["train.warmup_steps=1", "eval.lengths=[16]", "eval.sequences=8", "wandb.mode=disabled", "mqa=griffin"]
    with Driver(tmp_path / "log") as drive:
        # The second run has begun to write its rows.
        assert drive(Attempt(words, "evalkit.core.rows.RowLog._append", nth=5)) == -signal.SIGKILL
        assert drive(Attempt(words)) == 0
    said = (tmp_path / "log").read_text(encoding="utf-8")
    kept, made = (line for line in said.splitlines() if line.startswith("By the "))
    assert (
        "✓ holds" in kept
        and "griffin in the place of mqa, by its recipe; a toy" in made
        and "train.steps=4" in made
        and "holds" not in made
    )


@pytest.mark.parametrize(
    "words, message",
    [
        (["B33"], "'B33' is no claim; the nearest is B3"),
        (["b3x"], "'b3x' is no claim; the nearest is B3"),
        (["B3", "colour=red"], "takes no colour="),
        (["format=yaml"], "choose text or json"),
        (["X1", "out="], "out= names no folder"),
        (["X1", "archive=a.tgz"], "archive=a.tgz is of the whole sheet; leave X1 out"),
        (["archive=a.zip"], "archive=a.zip; allowed: a name that ends in .tar.gz or .tgz, such as archive=a.tar.gz"),
        (["archive="], "such as archive=claims.tar.gz"),
        (["B3", "run=yes"], "give run=true, or leave it out"),
        (["run=true"], "makes the runs of one claim, and 0 are named"),
        (["A2", "run=true", "griffin=gla"], "griffin is not read by its test; claim A2 judges hawk, mqa"),
        (["B9", "run=true", "mamba=gla"], "mamba is its control, which shows that the test can say yes"),
        (["A2", "run=true", "hawk=eagle"], "hawk=eagle is no model; choose one of deltanet, "),
        (["A2", "run=true", "hawk=gla", "hawk=mamba"], "hawk= is given twice"),
        (["B3", "run=true", "preset=tiny"], "preset=tiny is no size of task=induction_heads; choose one of cpu, "),
        (["A0", "run=true", "preset=tiny"], "claim A0 is judged at length 128, and preset=tiny evaluates 16, 32, 64"),
        (["A2", "run=true", "model=gla"], "model=gla: the runs are those of claim A2; for another model in the place"),
        (["A2", "run=true", "runs.hawk=[model=gla]"], "the runs are those of claim A2"),
        (["A2", "run=true", "~runs.mqa"], "~runs.mqa: the runs are those of claim A2"),
        (["A2", "run=true", "hydra.run.dir=x"], "hydra.run.dir=x: give out=FOLDER"),
        (["A2", "run=true", "format=json"], "format=json is of the sheet"),
        (["A2", "hawk=gla"], "takes no hawk=; it takes"),
        (["G1", "run=true", "hawk=gla"], "hawk=gla: hawk is not read by its test; claim G1 judges hawk_complex"),
        (
            ["C2", "run=true"],
            "what claim C2 reads is no run that run=true could start; type python -m evalkit task=books",
        ),
        (["X1", "studies=nowhere"], "no claims.yaml in nowhere"),
        (["X1", f"out={STUDIES / claims.FILE}/below"], "cannot write"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    given_studies = [] if any(word.startswith("studies=") for word in words) else [f"studies={STUDIES}"]
    assert main(["reproduce", *words, *given_studies]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1

"""An archive that a paper can cite: the sheet, and the claims, rows, configurations and figures behind it."""

import gzip
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from evalkit.claims import shown
from evalkit.claims.page import html
from evalkit.claims.sheet import JudgedClaim, plain
from evalkit.disk import sums

ROOT, STUDIES = "evalkit-claims", "studies"
README = """\
Every claim of De et al. 2024 (arXiv 2402.19427), section 6, as evalkit {version} judges it by the rows in {studies}/.

claims.html and sheet.json are the sheet, {studies}/claims.yaml says what is claimed and by which test it is judged, and
CITATION.cff how this is cited. To check that all is as it was, and to judge the rows again:

    sha256sum -c {sums}
    pip install griffin-evalkit
    python -m evalkit reproduce studies={studies}
"""


def packed(sheet: Mapping[str, JudgedClaim], studies: Path) -> bytes:
    """The archive, a `.tar.gz`; of the same studies and version it is the same to the last byte."""
    files = dict(sorted(_files(sheet, studies)))
    lines = [f"{sums.of_bytes(content)}  {name}" for name, content in files.items()]
    files[sums.FILE] = "\n".join([f"# {len(files)} files", *lines, ""]).encode()
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{ROOT}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return raw.getvalue()


def _files(sheet: Mapping[str, JudgedClaim], studies: Path) -> Iterator[tuple[str, bytes]]:
    """The names of what is packed, and their contents."""
    try:
        of_this = version("griffin-evalkit")
    except PackageNotFoundError:  # a folder that is not installed
        of_this = "of a clone"
    yield "README.txt", README.format(version=of_this, studies=STUDIES, sums=sums.FILE).encode()
    yield "claims.html", html(sheet).encode()
    lines = [plain(judged) for judged in sheet.values()]
    yield "sheet.json", (json.dumps(shown.plain(sheet, lines), indent=1) + "\n").encode()
    parts = [part for judged in sheet.values() for part in judged.claim.test if part.statistic == "tests"]
    named = {test.partition("::")[0] for part in parts for test in part.of}
    for name in ("CITATION.cff", *sorted(named)):  # some verdicts follow from tests, which lie beside the studies
        if (studies.parent / name).is_file():
            yield name, (studies.parent / name).read_bytes()
    for path in studies.rglob("*"):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(studies).parts)
        if path.is_file() and not hidden:
            yield f"{STUDIES}/{path.relative_to(studies).as_posix()}", path.read_bytes()

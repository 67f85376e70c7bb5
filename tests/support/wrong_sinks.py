"""Right sinks, and many wrong ways to write one: each breaks one promise, which `WRONG` names beside it."""

from evalkit.core.contracts import Sink

WRONG: dict[str, tuple[type, str]] = {}


class Lines(Sink):
    """A file with the metric of each row, which every session writes anew."""

    def begin(self, header, start):
        self.path = start.folder / "lines"
        self.path.write_text("")
        return 0

    def write(self, rows):
        with self.path.open("a") as file:
            file.writelines(f"{row['metric']}\n" for row in rows)


class Appends(Lines):
    """The same, but it keeps the rows received in ended sessions, and removes what a killed session wrote."""

    def begin(self, header, start):
        self.path = start.folder / "lines"
        lines = self.path.read_text().splitlines(keepends=True) if start.received else []
        self.path.write_text("".join(lines[: start.received]))
        return start.received


class Buffers(Lines):
    """The same with rows that are held back until the end."""

    def begin(self, header, start):
        self.rows = []
        return super().begin(header, start)

    def write(self, rows):
        self.rows += rows

    def finish(self, end):
        super().write(self.rows)
        return [f"{len(self.rows)} rows"]


class TakesNone(Lines):
    """It is switched off."""

    def begin(self, header, start):
        return None


RIGHT = (Lines, Appends, Buffers, TakesNone)


def breaks(promise):
    """Lists a wrong sink with the promise that it breaks."""

    def listed(wrong):
        WRONG[wrong.__name__] = (wrong, promise)
        return wrong

    return listed


@breaks("sink")
class IsNoSink:
    begin, write, finish = Lines.begin, Lines.write, Lines.finish


@breaks("sink")
class BeginsWithOne(Lines):
    def begin(self, header):
        return 0


@breaks("sink")
class FinishesWithNothing(Lines):
    def finish(self):
        return ()


@breaks("session")
class NeedsAValue(Lines):
    def write(self, rows):
        for row in rows:
            row["total"] / row["count"]


@breaks("session")
class ChangesRows(Lines):
    def write(self, rows):
        super().write(rows)
        for row in rows:
            row["extra"] = None


@breaks("session")
class KeepsMoreThanItHas(Lines):
    def begin(self, header, start):
        super().begin(header, start)
        return 7


@breaks("session")
class SaysYes(Lines):
    def begin(self, header, start):
        super().begin(header, start)
        return True


@breaks("session")
class EndsInAWord(Lines):
    def finish(self, end):
        return "done"


@breaks("session")
class CannotEndWithoutRows(Buffers):
    def finish(self, end):
        return [self.rows[-1]["metric"]]


@breaks("once")
class WritesOnAfterAKill(Lines):
    def begin(self, header, start):
        self.path = start.folder / "lines"
        return 0


@breaks("once")
class LosesWhatItHad(Lines):
    def begin(self, header, start):
        super().begin(header, start)
        return start.received


@breaks("once")
class TakesAFileForEachSession(Lines):
    def begin(self, header, start):
        self.path = start.folder / f"lines{len(list(start.folder.iterdir()))}"
        return start.received


@breaks("once")
class CannotBeginTwice(Lines):
    def begin(self, header, start):
        (start.folder / "made").mkdir()
        return super().begin(header, start)

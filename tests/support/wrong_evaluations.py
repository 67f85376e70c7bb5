"""A right evaluation, and many wrong ways to write one: each breaks one promise, which `WRONG` names beside it."""

from evalkit.core.contracts import Evaluation

WRONG: dict[str, tuple[type, str]] = {}


class CountsSeeds(Evaluation):
    """One row a seed."""

    kind = "evalkit.evaluations.extrapolation.report"

    def run(self, trained):
        for _, make_row in trained.each(split="test", length=trained.task.length):
            yield make_row(metric="accuracy", total=1, count=1)


def breaks(promise):
    """Lists a wrong evaluation with the promise that it breaks."""

    def listed(wrong):
        WRONG[wrong.__name__] = (wrong, promise)
        return wrong

    return listed


@breaks("evaluation")
class IsNoEvaluation:
    kind = "evalkit.evaluations.extrapolation.report"

    def run(self, trained):
        yield {}


@breaks("evaluation")
class ReturnsAList(CountsSeeds):
    def run(self, trained):
        return list(super().run(trained))


@breaks("evaluation")
class TakesNothing(CountsSeeds):
    def run(self):
        yield {}


@breaks("evaluation")
class ProbesWithTwo(CountsSeeds):
    def probe(self, trained, step):
        yield {}


@breaks("evaluation")
class LimitsNothing(CountsSeeds):
    def limits(self):
        return []


@breaks("evaluation")
class LooksWithoutACadence(CountsSeeds):
    def check_looks(self):
        return None


@breaks("evaluation")
class HoldsOfATask(CountsSeeds):
    def held(self, task):
        return []


@breaks("kind")
class HasNoKind(Evaluation):
    run = CountsSeeds.run


@breaks("kind")
class HasAKindOfNothing(CountsSeeds):
    kind = "evalkit.reports.nothing"


@breaks("kind")
class HasAKindWithoutTables(CountsSeeds):
    kind = "evalkit.reports.writer"


@breaks("kind")
class HasAModuleAsKind(CountsSeeds):
    kind = len


@breaks("pieces")
class HasHalfAPiece(CountsSeeds):
    @property
    def pieces(self):
        return 0.5


@breaks("limits")
class LimitsAWord(CountsSeeds):
    def limits(self, model):
        return "none"


@breaks("rows")
class YieldsNumbers(CountsSeeds):
    def run(self, trained):
        yield 0.5


@breaks("rows")
class YieldsItsOwnFields(CountsSeeds):
    def run(self, trained):
        yield {"accuracy": 0.5}


@breaks("rows")
class YieldsAnArray(CountsSeeds):
    def run(self, trained):
        for row in super().run(trained):
            yield row | {"extra": {"logits": object()}}


@breaks("rows")
class Raises(CountsSeeds):
    def run(self, trained):
        yield trained.make_row(metric=trained.mettric)


@breaks("rows")
class YieldsNothing(CountsSeeds):
    def run(self, trained):
        yield from ()


@breaks("report")
class PromisesANumber(CountsSeeds):
    def verdict(self, trained):
        return 1


@breaks("report")
class HasRowsOfAnotherKind(CountsSeeds):
    kind = "evalkit.evaluations.phonebook.report"


class RunsNot(Evaluation):
    """It leaves out what it must have."""

    kind = "evalkit.evaluations.extrapolation.report"


UNBUILT = {"RunsNot": (RunsNot, "abstract method")}

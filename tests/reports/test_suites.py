"""The report of a suite: its board, what a square of it says, what differs; its tables and figures."""

import re
from dataclasses import replace
from typing import Any

import pytest

from evalkit.reports.kinds import COSTS
from evalkit.reports.suite.board import Board, comparisons, controls, html, picture, reach, window
from evalkit.reports.suite.cells import Cell, Measured, RateTrial, beside, kept
from evalkit.reports.suite.report import (
    figures,
    of_seeds,
    searched_otherwise,
    sized_otherwise,
    tables,
    trained_otherwise,
)

COMMAND = "python -m evalkit experiment=mine"


def cell(
    task: str, model: str, *seeds: float, beyond: float | None = None, rates: dict[float, float] | None = None
) -> Cell:
    measured = [Measured(40, number, accuracy, accuracy - 0.005, 1.0) for number, accuracy in enumerate(seeds)]
    if beyond is not None:
        measured += [Measured(160, number, beyond, 0.0, 1.0) for number in range(len(seeds))]
    trials = [RateTrial(rate, accuracy, 0.1) for rate, accuracy in (rates or {}).items()]
    return Cell(task, model, None, "cpu", 100, 64, 1000, 0.25, 40, 10, 1e-3, measured, trials)


def board(*cells: Cell, wanted: tuple[tuple[str, str], ...] = (), floors: dict[str, float] | None = None) -> Board:
    return Board(cells, wanted, floors or {}, COMMAND)


def order(page: str, column: int) -> list[str]:
    """The models as the page sorts them by a column."""
    lines = re.findall(r'style="(--o0[^"]*)"><div role="rowheader">([^<]*)<', page)
    places = {model: int(dict(re.findall(r"--o(\d+): (\d+)", style))[str(column)]) for style, model in lines}
    return sorted(places, key=places.__getitem__)


def square(page: str, accuracy: str) -> str:
    (found,) = re.findall(rf'<div class="run[^>]*>(?:(?!</div>).)*{re.escape(accuracy)}(?:(?!</div>).)*</div>', page)
    return found


def test_a_square_has_median_range_reach_and_window() -> None:
    page = html(board(cell("copying", "gla", 1.0, 0.99, 0.995, beyond=0.99, rates={1e-3: 0.95, 1e-2: 1.0, 3e-2: 0.2})))
    shown = square(page, "<b>0.995</b>")
    assert 'class="run solved"' in shown
    for words in ("(0.990 – 1.000)", "beyond: 160", "rates: 1.0 decades"):
        assert words in shown


def test_what_is_no_better_than_the_floor_is_a_dash_as_light_as_the_floor() -> None:
    """Nor is what is above it by less than its interval."""
    for floor, share, words in ((0.1, 7, "0.250"), (0.247, 0, "–"), (0.25, 0, "–"), (0.3, 0, "–")):
        page = html(board(cell("mqar", "gla", 0.25, 0.25), floors={"mqar": floor}))
        assert f'style="--share: {share}%"><b>{words}</b>' in page


def test_what_was_not_run_is_there_with_its_command() -> None:
    page = html(board(cell("copying", "gla", 1.0), wanted=(("copying", "gla"), ("mqar", "hawk"))))
    for task, model in (("mqar", "gla"), ("mqar", "hawk"), ("copying", "hawk")):
        assert f"{COMMAND} task={task} model={model}" in page
    assert f"{COMMAND} task=copying model=gla" not in page and "2 tasks, 2 models, 1 of 4 cells run" in page


def test_a_square_of_a_mixer_of_ones_own_has_its_own_word() -> None:
    page = html(Board([], [("mqar", "theirs"), ("mqar", "gla")], {}, COMMAND, ["theirs"]))
    assert f"{COMMAND} task=mqar +mixer=theirs<" in page and f"{COMMAND} task=mqar model=gla<" in page


def test_a_cell_that_was_not_asked_at_its_training_length_was_not_run() -> None:
    page = html(board(replace(cell("mqar", "a", 0.5), measured=[]), cell("mqar", "b", 0.1), wanted=(("mqar", "a"),)))
    assert "1 task, 2 models, 1 of 2 cells run" in page and order(page, 4) == ["b", "a"]


def test_lines_are_sorted_by_each_column() -> None:
    """By name, parameters, state and operations from the least, accuracy from the most; what was not run comes last."""
    cells = (
        replace(cell("copying", "b", 0.5), parameters=9, state_bytes=10, flops_per_token=3),
        replace(cell("copying", "a", 0.9), parameters=7, state_bytes=30, flops_per_token=1),
        replace(cell("copying", "c", 0.7), parameters=8, state_bytes=20, flops_per_token=2),
        cell("mqar", "d", 0.3),
    )
    page = html(board(*cells))
    sorted_by = ["abcd", "acbd", "bcad", "acbd", "acbd", "dabc"]
    assert ["".join(order(page, column)) for column in range(6)] == sorted_by


@pytest.mark.parametrize(
    ("seeds", "beyond", "longest"),
    [((1.0, 0.99), 0.99, 160), ((1.0, 0.99), 0.98, 40), ((1.0, 0.98), 1.0, None), ((1.0,), None, 40)],
)
def test_a_cell_reaches_as_far_as_every_seed_is_right(
    seeds: tuple[float, ...], beyond: float | None, longest: int | None
) -> None:
    assert reach(cell("parity", "lstm", *seeds, beyond=beyond)) == longest


@pytest.mark.parametrize(
    ("rates", "decades"),
    [
        ({}, None),
        ({1e-3: 0.5}, 0.0),
        ({1e-4: 0.1, 1e-3: 0.95, 1e-2: 1.0, 1e-1: 0.92}, 2.0),
        ({1e-4: 1.0, 1e-3: 0.1, 1e-2: 1.0}, 0.0),  # a gap ends it
        ({1e-3: 0.95, 1e-2: 1.0, 1e-1: 0.0}, 1.0),
        ({1e-4: 0.05, 1e-3: 0.06, 1e-2: 0.05}, 0.0),  # only one is above the floor
        ({1e-4: 0.05, 1e-3: 0.05}, None),
        ({1e-5: 0.95, 1e-4: 0.95, 1e-3: 0.1, 1e-2: 1.0}, 1.0),  # the best is alone beyond a gap
    ],
)
def test_the_window_of_rates_is_the_longest_row_of_those_that_work(
    rates: dict[float, float], decades: float | None
) -> None:
    assert window(cell("mqar", "gla", 1.0, rates=rates), 0.05) == (None if decades is None else pytest.approx(decades))


def test_a_rate_that_is_no_better_than_a_guess_has_no_window() -> None:
    """Of eight rates at chance one is above it: its interval says that nothing was learned."""
    by_chance = [RateTrial(1e-3, 0.53, 0.7, 0.45), RateTrial(1e-2, 0.49, 0.7, 0.41)]
    assert window(replace(cell("parity", "gla", 0.5), trials=by_chance), 0.5) is None
    learned = [RateTrial(1e-3, 0.63, 0.7, 0.55), RateTrial(1e-2, 0.49, 0.7, 0.41)]
    assert window(replace(cell("parity", "gla", 0.5), trials=learned), 0.5) == 0.0


def test_cells_differ_only_after_all_comparisons_were_counted() -> None:
    """Ten seeds against ten: p = 2 / C(20, 10) each way, which the count of pairs does not hide; three cannot."""
    low, high = [0.1 + 0.001 * n for n in range(10)], [0.9 + 0.001 * n for n in range(10)]
    assert "1 pair of" in comparisons(board(cell("mqar", "a", *low), cell("mqar", "b", *high)))
    one = board(cell("mqar", "a", *low), cell("mqar", "b", *high))
    assert ": 1 differ at 0.05: mqar: a and b." in comparisons(one)
    few = comparisons(
        board(*(cell("mqar", model, *(n / 10 + k / 100 for k in range(3))) for n, model in enumerate("abc")))
    )
    others = [cell("copying", str(n), 0.1, 0.2, 0.3) for n in range(40)]
    assert "for the 1 that have seeds enough (Holm): 1 differ" in comparisons(board(*one.cells, *others))
    assert "3 pairs" in few and ": 0 differ at 0.05; so few seeds cannot show more" in few and "at least 0.1" in few
    alone = board(cell("mqar", "a", 1.0), cell("copying", "b", 1.0, 1.0))
    assert (
        comparisons(alone)
        == "No two cells of one task were trained alike with several seeds each, so none were compared."
    )


def test_what_a_control_lacks_is_said_of_its_task_alone() -> None:
    """A control holds where every seed has 0.99; one that was not run, or a task without one, says nothing."""
    cells = (cell("parity", "lstm", 1.0, 0.99), cell("cycle", "lstm", 1.0, 0.98, 1.0), cell("mqar", "lstm", 0.1))
    shown = replace(board(*cells), controls={"parity": "lstm", "cycle": "lstm", "s3": "lstm"})
    failed, holds, without = controls(shown)
    assert failed.startswith("lstm, the control of cycle, has 1.000 (0.980 – 1.000), and not 0.99 on every seed")
    assert holds == "lstm, the control of parity, has 0.99 on every seed there."
    assert without.startswith("No control was run of mqar:") and not list(controls(board(*cells)))
    assert failed in html(shown)
    others = [replace(cell("cycle", model, 0.2), steps=11) for model in ("a", "b")]
    longer = replace(shown, cells=[*cells, *others])
    assert failed not in list(controls(longer)) and "No control was run of cycle" in " ".join(controls(longer))


def test_a_name_with_markup_is_text() -> None:
    page = html(board(cell("<b>", "<i>&", 1.0)))
    assert "<i>&<" not in page and "&lt;i&gt;&amp;" in page


def test_the_kept_cells_are_drawn() -> None:
    cells = kept("cpu")
    figure = picture(board(*cells, floors={"mqar": 1 / 64}))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "1.000" in texts
    assert len([text for text in texts if re.fullmatch(r"[01]\.\d{3}|–", text)]) == len(board(*cells).by_square)


def test_the_picture_is_as_dark_as_a_cell_is_above_its_floor() -> None:
    """A guess of one in two is as light as one in a hundred, and a cell that is not solved has no frame."""
    figure = picture(board(cell("a", "m", 0.25, 0.25), cell("b", "m", 0.99, 1.0), cell("c", "m", 0.625, 0.625)))
    squares = [patch for patch in figure.axes[0].patches if patch.get_width() == 1]
    red = [square.get_facecolor()[0] for square in squares]
    assert red[0] > red[2] > red[1]
    assert len(figure.axes[0].patches) == 3 + 1


def drawn(*cells: Cell) -> set[str]:
    """The names of a suite's figures."""
    return set(figures(board(*cells)))


def cell_with(**changes) -> Cell:
    shared = {
        "preset": "cpu",
        "parameters": 10,
        "state_bytes": 64,
        "flops_per_token": 5,
        "chance": 0.1,
        "train_length": 8,
        "steps": 4,
    }
    measured = [Measured(8, seed, 0.995, 0.9, 1.0) for seed in (1, 2)]
    given = {
        "task": "t",
        "model": "m",
        "size": None,
        "rate": 0.1,
        "measured": measured,
        "trials": [RateTrial(0.1, 0.5, 1.0)],
    }
    return Cell(**{**shared, **given, **changes})


def test_a_cell_of_ones_own_takes_the_place_of_a_kept_one() -> None:
    others = [cell_with(model="a"), cell_with(model="b"), cell_with(model="b", size="large")]
    own = [cell_with(model="b", steps=9), cell_with(model="c")]
    assert [(found.model, found.size, found.steps) for found in beside(own, others)] == [
        ("a", None, 4), ("b", None, 9), ("b", "large", 4), ("c", None, 4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "changes", [{"steps": 9}, {"chance": 0.2}, {"typed": ["task.pairs=16"]}, {"tokens": 9}, {"task_version": 2}]
)
def test_a_cell_that_was_trained_otherwise_than_another_of_its_task_is_told(changes: dict[str, Any]) -> None:
    """Else A5 would stand beside parity as one of its models, and 16 pairs beside 64."""
    assert not list(trained_otherwise([cell_with(model="b")], [cell_with(model="a"), cell_with(model="b")]))
    own = cell_with(model="b", **changes)
    told = list(trained_otherwise([own], [cell_with(model="a"), own]))
    assert len(told) == 1 and told[0].startswith("t · b was trained otherwise") and "where a has length 8" in told[0]


def test_other_seeds_or_rates_are_told_once_a_model_and_are_not_compared() -> None:
    """As of the quick form: the training is the same, so it stands beside the others, and no test is made."""
    others = [cell_with(task=task, model="a") for task in ("t", "u")]
    one = [Measured(8, 1, 0.995, 0.9, 1.0)]
    own = [cell_with(task=task, model="b", measured=one, typed=["quick=true"]) for task in ("t", "u")]
    assert not list(trained_otherwise(own, [*others, *own]))
    (told,) = searched_otherwise(own, [*others, *own])
    assert told == "b has 1 seed (quick=true) in t, u, where other cells have 2 seeds: no test compares them."
    more = cell_with(
        model="b", measured=[Measured(8, seed, 0.1, 0.1, 0.1) for seed in range(9)], typed=["suite.seeds=9"]
    )
    assert "none were compared" in comparisons(board(others[0], more))


def test_a_model_of_another_size_is_told() -> None:
    """A further size of its state is none."""
    others = [cell_with(model=model, parameters=count) for model, count in (("a", 1000), ("b", 1040), ("c", 1010))]
    larger = [cell_with(model="mine", parameters=1500, task=task) for task in ("t", "u")]
    (told,) = sized_otherwise(larger, [*others, *larger])
    assert told.startswith("mine has 1,500 parameters, where the other models have 1,010 in the median")
    alike = [cell_with(model="mine", parameters=1050), cell_with(model="mine", parameters=4000, size="large")]
    assert not [*sized_otherwise(alike, [*others, *alike]), *sized_otherwise(larger, larger)]


def test_beyond_the_training_length_the_longest_is_also_taken_apart() -> None:
    """Positions up to four times the training length, and the last ones."""
    spans = [
        Measured(length, 1, 0.5, 0.4, 0.6, last - 7, last) for length in (32, 64) for last in range(8, length + 1, 8)
    ]
    own = cell_with(measured=[*(Measured(length, 1, 0.9, 0.8, 1.0) for length in (8, 32, 64)), *spans])
    beyond = next(table for table in tables([own]) if "beyond" in table.heading)
    assert beyond.header == ["model", *COSTS, "32", "64", "at 25–32", "at 57–64"]
    assert beyond.lines == [["m", "10", "64", "5", "0.900", "0.900", "0.500", "0.500"]]
    assert "t-position" in drawn(own) and "t-length" not in drawn(own), "a mean over positions hides chance"


def test_tables_mark_what_every_seed_solves() -> None:
    assert (
        of_seeds([0.99, 1.0, 0.995]) == "0.995 (0.990 – 1.000) ✓" and of_seeds([0.98, 1.0]) == "0.990 (0.980 – 1.000)"
    )
    assert of_seeds([]) == "–" and of_seeds([1.0]) == "1.000", "one seed decides nothing"
    found = {table.heading: table for table in tables([cell_with(), cell_with(size="large", state_bytes=256)])}
    (line,) = found["Accuracy at the training length"].lines
    assert line == ["m", "10", "64", "5", "0.995 (0.995 – 0.995) ✓"]
    assert [line[2] for line in found["Accuracy by the size of the state"].lines] == ["64", "256"]
    assert drawn(cell_with(), cell_with(size="large", state_bytes=256)) == {"t-state", "t-rate"}


def test_a_model_whose_cost_differs_by_task_is_shown_with_the_least_and_the_most() -> None:
    own = [cell_with(), cell_with(task="u", state_bytes=999)]
    found = {table.heading: table for table in tables(own)}
    assert found["Accuracy at the training length"].lines[0][:4] == ["m", "10", "64 – 999", "5"]


def test_a_rate_at_the_edge_of_its_grid_is_marked() -> None:
    trials = [RateTrial(rate, 0.5, 1.0) for rate in (0.1, 0.2, 0.3)]
    own = [cell_with(trials=trials, rate=0.1), cell_with(model="n", trials=trials, rate=0.2)]
    (rates,) = (table for table in tables(own) if "by learning rate" in table.heading)
    assert [line[-1] for line in rates.lines] == ["0.1 (edge)", "0.2"]
    diverged = [*trials[:2], RateTrial(0.3, None, None)]
    (rates,) = (
        table for table in tables([cell_with(trials=diverged, rate=0.2)]) if "by learning rate" in table.heading
    )
    assert rates.lines[0][1:] == ["0.500", "0.500", "–", "0.2"], "a rate that diverged was tried"

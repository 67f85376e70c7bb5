"""`bench cost`: its numbers are the paper's closed forms, and its limits are where they say that they are."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.__main__ import main
from evalkit.bench.cost import Machine, Price
from evalkit.configuration.models import FAMILIES, SCALES, chosen

# Table 2: width, width of the recurrence, depth, heads.
TABLE_2 = {
    "100m": (768, 1024, 12, 6),
    "200m": (1024, 1536, 12, 8),
    "400m": (1536, 2048, 12, 12),
    "1b": (2048, 2560, 24, 16),
    "3b": (3072, 4096, 24, 24),
    "7b": (4096, 5632, 32, 32),
    "14b": (5120, 8192, 40, 40),
}
SHORT = ["scale=100m", "scale.depth=3", "length=3000"]
"""A row of table 2 with one group of Griffin's blocks, which is built in seconds."""


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str | None], dict[str, Any]]:
    """What is printed of the three families, by family and attention."""
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("builtins.print", lambda text, **_: said.append(text))
        assert main(["bench", "cost", *SHORT, "format=json"]) == 0
    return {(row["model"], row.get("attention")): row for row in json.loads(said[-1])["rows"]}


@pytest.mark.slow
def test_parameters_are_the_maps_of_the_equations(rows: dict[Any, dict[str, Any]]) -> None:
    width, wide, _, heads = TABLE_2["100m"]
    around = 3 * 3 * width**2 + 2 * width  # the MLP's three maps and two norms
    recurrent = 3 * width * wide + 4 * wide + 2 * (wide**2 // 16 + wide) + wide  # maps, convolution, gates, decay
    multi_query = 2 * width * heads * 128 + 2 * width * 128
    multi_head = 4 * width * heads * 128
    for family, attention, mixers in (
        ("hawk", None, 3 * recurrent),
        ("mqa", "multi-query", 3 * multi_query),
        ("mqa", "multi-head", 3 * multi_head),
        ("griffin", "multi-query", 2 * recurrent + multi_query),
        ("griffin", "multi-head", 2 * recurrent + multi_head),
    ):
        row = rows[family, attention]
        assert row["without_embedding"] == mixers + 3 * around + width, family
        assert row["parameters"] == row["without_embedding"] + 32000 * width
        assert row["weight_bytes"] == 2 * row["parameters"]


def test_caches_are_those_of_appendix_f(rows: dict[Any, dict[str, Any]]) -> None:
    _, wide, _, heads = TABLE_2["100m"]
    recurrent, local, everything = wide + 3 * wide, 2 * 1024 * 128, 2 * 3000 * 128
    for family, attention, numbers in (
        ("hawk", None, 3 * recurrent),
        ("mqa", "multi-query", 3 * everything),
        ("mqa", "multi-head", 3 * everything * heads),
        ("griffin", "multi-query", 2 * recurrent + local),
        ("griffin", "multi-head", 2 * recurrent + local * heads),
    ):
        assert rows[family, attention]["cache_bytes"] == 2 * numbers, family


def test_the_operations_of_the_last_token_are_two_a_weight_and_four_a_key(rows: dict[Any, dict[str, Any]]) -> None:
    heads = TABLE_2["100m"][3]
    for (family, attention), row in rows.items():
        keys = {"hawk": 0, "mqa": 3 * 3000, "griffin": 1024}[family]
        expected = 2 * row["parameters"] + 4 * 128 * heads * keys
        assert row["flops_per_token"] == pytest.approx(expected, rel=0.01), (family, attention)


def test_a_layer_meets_the_limits_of_appendix_f(rows: dict[Any, dict[str, Any]]) -> None:
    width, _, _, heads = TABLE_2["100m"]
    ratio = 123e12 / 900e9
    for row in rows.values():
        at = row["map_compute_bound_at"]
        assert width * at / (width + at) >= ratio > width * (at - 1) / (width + at - 1)
    assert rows["mqa", "multi-query"]["attention_flops_per_byte"] == heads
    assert rows["mqa", "multi-head"]["attention_flops_per_byte"] == 1
    assert rows["griffin", "multi-query"]["window_small_below"] == width**2 // (16 * 128)


SIZES = st.integers(1, 10**12)


@given(st.builds(Price, SIZES, SIZES, SIZES), st.builds(Machine, SIZES, SIZES, SIZES))
def test_limits_lie_where_one_row_less_is_on_the_other_side(price: Price, machine: Machine) -> None:
    def bound(batch: int) -> float:
        return price.seconds_of_compute(batch, machine) / price.seconds_of_memory(batch, machine)

    at = price.batch_bound_by_compute(machine)
    if at is None:
        assert bound(10**15) <= 1 + 1e-9
    else:
        assert bound(at) >= 1 - 1e-6 and (at == 1 or bound(at - 1) <= 1 + 1e-6)
    equal, most = price.batch_of_equal_reads(), price.largest_batch(machine)
    assert equal is not None and equal * price.cache >= price.weights > (equal - 1) * price.cache
    assert most is not None and price.weights + (most + 1) * price.cache > machine.memory
    assert most == 0 or price.weights + most * price.cache <= machine.memory


@pytest.mark.slow
def test_a_scale_is_a_row_of_table_2_in_each_family() -> None:
    found = {(sized.name, sized.words): sized.node for sized in chosen([FAMILIES, SCALES])}
    assert len(found) == 3 * len(TABLE_2)
    for (name, words), node in found.items():
        width, wide, depth, heads = TABLE_2[words.removeprefix("scale=")]
        assert (node["width"], node["depth"], node["mlp_expansion"]) == (width, depth, 3)
        mixers = node["mixers"]
        assert set(node["pattern"]) == set(mixers)
        assert name == "mqa" or mixers["recurrent"]["width_rnn"] == wide
        assert name == "hawk" or (mixers["attention"]["heads"], mixers["attention"]["head_dim"]) == (heads, 128)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_scale_has_about_the_parameters_of_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cost", "format=json"]) == 0
    named = {"100m": 0.1, "200m": 0.2, "400m": 0.4, "1b": 1.3, "3b": 3, "7b": 7, "14b": 14}
    seen = json.loads(capsys.readouterr().out)["rows"]
    assert len(seen) == len(TABLE_2) * (3 + 2)
    for row in seen:
        billions = named[row["settings"].removeprefix("scale=")]
        assert 0.7 * billions < row["parameters"] / 1e9 < 1.35 * billions, row


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["length=0"], "length=0; allowed"),
        (["model=hawk", "length=99999999999"], "positions end at"),
        (["tflops=nan"], "tflops=nan; allowed"),
        (["bandwidth_gb_per_s=-1"], "a number above 0"),
        (["model=griffin", "task=books"], "task=books is of a run"),
        (["model=grifin"], "model=grifin does not exist"),
        (["model=hawk", "scale=2b"], "scale=2b does not exist"),
        (["model=mamba", "scale=1b"], "has no model/scaled/mamba.yaml"),
        (["model=hawk", "model.widht=3"], "model.width"),
        (["model=hawk", "model.depth=0"], "model.depth=0; allowed"),
        (["model=hawk", "format=csv"], "format (text or json)"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cost", *arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and words in said[0]


def test_a_device_of_a_mesh_is_told_what_training_keeps_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO divides all, Megatron what is no embedding, norm or map of keys and values."""
    said: list[str] = []
    monkeypatch.setattr("builtins.print", lambda text, **_: said.append(text))
    for data, model in ((8, 1), (4, 2)):
        assert (
            main(["bench", "cost", "model=hawk", *SHORT, f"mesh={{data: {data}, model: {model}}}", "format=json"]) == 0
        )
    zero, both = (json.loads(line)["rows"][0] for line in said if line.startswith("{"))
    width, *_ = TABLE_2["100m"]
    whole = 4 * 32000 * width + 4 * (6 + 1) * width
    assert zero["parameters_on_a_device_bytes"] == zero["parameters"] * 4 // 8
    assert zero["optimizer_on_a_device_bytes"] == 2 * zero["parameters_on_a_device_bytes"]
    assert zero["gathered_on_a_device_bytes"] == zero["gradient_on_a_device_bytes"] == zero["parameters"] * 4
    assert both["gathered_on_a_device_bytes"] == whole + (both["parameters"] * 4 - whole) // 2
    assert both["parameters_on_a_device_bytes"] == both["gathered_on_a_device_bytes"] // 4

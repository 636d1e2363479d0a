# SPDX-License-Identifier: Apache-2.0
"""Quantities: the grammar, exactness, and errors that help."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.quantity import LARGEST_NANOS, ZERO, Quantity, QuantityError, parse_quantity

NANO = 10**9


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("0", 0),
        ("4", 4),
        ("+4", 4),
        ("-4", -4),
        ("3920m", Fraction(3920, 1000)),
        ("1500u", Fraction(1500, 10**6)),
        ("7n", Fraction(7, 10**9)),
        ("2k", 2000),
        ("2M", 2 * 10**6),
        ("2G", 2 * 10**9),
        ("2T", 2 * 10**12),
        ("2P", 2 * 10**15),
        ("2E", 2 * 10**18),
        ("2Ki", 2048),
        ("2Mi", 2 << 20),
        ("2Gi", 2 << 30),
        ("2Ti", 2 << 40),
        ("2Pi", 2 << 50),
        ("2Ei", 2 << 60),
        ("0.5Ki", 512),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-1", Fraction(12, 10)),
        ("1.", 1),
        (".5", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        ("00012", 12),
    ],
)
def test_every_way_to_write_a_quantity_is_read_exactly(text, units):
    """TOP-9: capacity is summed before it is rounded, so reading must not round."""
    assert parse_quantity(text).nanos == units * NANO


@pytest.mark.parametrize(
    "text",
    ["", " ", ".", "-", "4 cpu", "four", "1.2.3", "4mi", "4K", "4ki", "1e", "e3", "4e+", "0x10", "1_000", "4\n", "١"],
)
def test_what_is_no_quantity_is_refused_with_the_value_and_an_example(text):
    """Bad input gets one line that carries the value and says what is right."""
    with pytest.raises(QuantityError) as caught:
        parse_quantity(text)

    message = str(caught.value)
    assert repr(text) in message
    assert '"0.5"' in message
    assert "Ki" in message


def test_a_huge_text_is_refused_without_being_repeated_in_full():
    """A message stays one readable line whatever was given."""
    with pytest.raises(QuantityError) as caught:
        parse_quantity("9" * 5000)

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "nanos"), [("1e999999999", LARGEST_NANOS), ("100Ei", LARGEST_NANOS), ("-1e400", -LARGEST_NANOS)]
)
def test_what_is_too_large_is_cut_to_the_largest_quantity(text, nanos):
    """Kubernetes caps at 2^63-1; no exponent may make us build a giant number."""
    assert parse_quantity(text).nanos == nanos


@pytest.mark.parametrize(
    ("text", "nanos"), [("0.1n", 1), ("-0.1n", -1), ("1e-999999999", 1), ("0e-5", 0), ("1.0000000001", NANO + 1)]
)
def test_what_is_finer_than_a_billionth_rounds_away_from_zero(text, nanos):
    """Some resources asked for are never rounded to none."""
    assert parse_quantity(text).nanos == nanos


def test_milli_rounds_up_once_after_the_sum():
    """TOP-9: 1500u + 200u is 1.7 milli and counts as 2, not as 2 + 1."""
    assert parse_quantity("1500u").milli() == 2
    assert (parse_quantity("1500u") + parse_quantity("200u")).milli() == 2
    assert ZERO.milli() == 0


@given(st.integers(min_value=-(10**24), max_value=10**24))
def test_a_quantity_reads_back_what_it_prints(nanos):
    """What a message shows can be pasted into a manifest."""
    quantity = Quantity(nanos=nanos)

    assert parse_quantity(str(quantity)) == quantity


@given(st.integers(0, 10**12), st.sampled_from(["n", "u", "m", "", "k", "M"]), st.integers(0, 10**12))
def test_milli_is_the_smallest_whole_milli_that_is_not_less(left, suffix, right):
    """TOP-9 in general."""
    total = parse_quantity(f"{left}{suffix}") + parse_quantity(f"{right}n")

    assert 0 <= total.milli() * 10**6 - total.nanos < 10**6

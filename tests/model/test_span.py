# SPDX-License-Identifier: Apache-2.0
"""Traces that are kept, parents that callers name, and what of a span may leave the node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric

from agent.model.histogram import EXEMPLAR_S, Exemplars, Histogram
from agent.model.span import (
    MOST_ATTRIBUTES,
    MOST_BYTES,
    SpanRef,
    bounded,
    is_sampled,
    parent_value,
    plain_image,
    read_parent,
    span_id_of,
    trace_id_of,
)

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
VALUE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_parent_is_read_as_its_sender_wrote_it() -> None:
    """TRC-12."""
    assert read_parent(VALUE) == SpanRef(TRACE, SPAN, is_sampled=True)
    assert read_parent(VALUE[:-1] + b"0") == SpanRef(TRACE, SPAN, is_sampled=False)
    assert parent_value(SpanRef(TRACE, SPAN)) == VALUE


@pytest.mark.parametrize(
    "value",
    [
        b"", b"00", VALUE + b"-x", b"01" + VALUE[2:], b"ff" + VALUE[2:], VALUE.upper(), VALUE[:-3],
        b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
    ],
)  # fmt: skip
def test_what_is_no_parent_counts_as_none(value: bytes) -> None:
    """TRC-12."""
    assert read_parent(value) is None


@given(st.binary(max_size=80))
def test_no_value_of_a_client_breaks_the_reading(value: bytes) -> None:
    """TRC-12."""
    found = read_parent(value)
    assert found is None or read_parent(parent_value(found)) == found


def test_the_ratio_decides_by_the_trace_alone() -> None:
    """TRC-14."""
    traces = [trace_id_of("pod", number) for number in range(4000)]
    kept = {ratio: {one for one in traces if is_sampled(one, ratio)} for ratio in (0.0, 0.1, 0.5, 1.0)}
    assert (kept[0.0], kept[1.0]) == (set(), set(traces))
    assert kept[0.1] < kept[0.5]
    assert 300 < len(kept[0.1]) < 500


def test_the_same_operation_has_the_same_ids() -> None:
    trace = trace_id_of("pod.start", "u1", 17.25)
    assert trace == trace_id_of("pod.start", "u1", 17.25) != trace_id_of("pod.start", "u1", 17.5)
    assert 0 < trace < 1 << 128
    assert 0 < span_id_of(trace, "create", "app", 1) < 1 << 64
    assert span_id_of(trace, "create", "app", 1) != span_id_of(trace, "create", "app", 2)


def test_what_leaves_the_node_is_bounded_and_has_no_secret() -> None:
    """TRC-13."""
    many = {f"a{number}": "x" for number in range(50)}
    assert len(bounded(many)) == MOST_ATTRIBUTES
    assert bounded({"empty": "", "number": 0}) == {"number": 0}
    long = bounded({"text": "ä" * 1000})["text"]
    assert len(str(long).encode()) == MOST_BYTES
    assert "hunter2" not in str(bounded({"text": "https://me:hunter2@host/ token=hunter2 \x1b[2J"}))
    assert str(bounded({"text": "\x1b[2J"})["text"]).isprintable()


@pytest.mark.parametrize(
    ("reference", "plain"),
    [
        ("docker.io/library/app:1", "docker.io/library/app:1"),
        ("me:pw@registry:5000/app", "registry:5000/app"),
        ("registry/app?token=pw", "registry/app"),
        ("app@sha256:" + "0" * 64, "app@sha256:" + "0" * 64),
        ("r/app@sha256:" + "0" * 64, "r/app@sha256:" + "0" * 64),
    ],
)
def test_the_name_of_an_image_leaves_without_logins(reference: str, plain: str) -> None:
    """TRC-13."""
    assert plain_image(reference) == plain


def exemplars(family: Metric) -> list[tuple[str, dict[str, str], float]]:
    return [(one.labels["le"], one.exemplar.labels, one.exemplar.value) for one in family.samples if one.exemplar]


def test_a_bucket_names_the_last_operation_whose_trace_is_kept() -> None:
    """TRC-16."""
    histogram, span = Histogram((1, 5)), SpanRef(TRACE, SPAN)
    histogram.observe((), 0.5, SpanRef(1, 1))
    histogram.observe((), 0.7, span)
    histogram.observe((), 0.8)
    histogram.observe((), 9.0)
    found = exemplars(histogram.family("x_seconds", "X.", ()))
    assert found == [("1.0", span.labels, 0.7)]
    assert sum(len(name) + len(value) for name, value in span.labels.items()) <= 128


def test_what_is_older_than_ten_minutes_is_forgotten() -> None:
    """TRC-16."""
    now = [1000.0]
    kept = Exemplars(lambda: now[0])
    kept.note((), 0, 0.5, SpanRef(1, 1))
    assert len(kept.row((), 0, "1.0", 1)) == 3
    now[0] += EXEMPLAR_S + 1
    assert kept.row((), 0, "1.0", 1) == ("1.0", 1)

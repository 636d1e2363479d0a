# SPDX-License-Identifier: Apache-2.0
"""The small pure parts: lines, token bucket, ring of servers, addresses of objects, texts of errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.drivers.kube import errors
from agent.drivers.kube.lines import LineSplitter
from agent.drivers.kube.rate_limit import RequestBucket
from agent.drivers.kube.resource import ENDPOINT_SLICES, NODES, SERVICES
from agent.drivers.kube.servers import ServerRing


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line and not line.isspace())), st.data())
def test_lines_are_the_same_however_the_stream_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    splitter = LineSplitter()

    assert [line for piece in pieces for line in splitter.feed(piece)] == lines
    assert not splitter.has_partial_line


@pytest.mark.parametrize("chunks", [[b"x" * 11], [b"x" * 6, b"x" * 6], [b"x" * 6, b"xxxxx\n"]])
def test_line_above_the_bound_is_an_error(chunks: list[bytes]) -> None:
    splitter = LineSplitter(max_line_bytes=10)
    *first, last = chunks
    assert [splitter.feed(chunk) for chunk in first] == [[]] * len(first)

    with pytest.raises(errors.AnswerTooBig):
        splitter.feed(last)
    assert not splitter.has_partial_line


def test_line_at_the_bound_passes() -> None:
    assert LineSplitter(max_line_bytes=10).feed(b"x" * 10 + b"\n") == [b"x" * 10]


def test_burst_goes_out_at_once_and_the_rest_at_the_rate() -> None:
    bucket = RequestBucket(5.0, 3)

    assert [bucket.take(100.0) for _ in range(5)] == pytest.approx([0.0, 0.0, 0.0, 0.2, 0.4])


def test_unused_tokens_are_kept_up_to_the_burst() -> None:
    bucket = RequestBucket(5.0, 3)
    for _ in range(5):
        bucket.take(0.0)

    assert [bucket.take(1000.0) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 0.2])


def test_clock_that_steps_back_gives_no_tokens() -> None:
    bucket = RequestBucket(1.0, 1)
    bucket.take(100.0)

    assert bucket.take(50.0) == pytest.approx(1.0)


def test_new_limits_hold_from_now_on() -> None:
    bucket = RequestBucket(1.0, 10)
    bucket.change(10.0, 1, 0.0)

    assert [bucket.take(0.0) for _ in range(3)] == pytest.approx([0.0, 0.1, 0.2])


def test_ring_moves_once_for_all_who_saw_the_same_failure() -> None:
    ring = ServerRing(["a", "b", "c"])
    ring.failed("a")
    ring.failed("a")

    assert (ring.current, repr(ring)) == ("b", "ServerRing(at=b of 3)")


def test_ring_starts_where_luck_says_and_comes_round() -> None:
    ring = ServerRing(["a", "b", "c"], luck=0.99)
    assert ring.current == "c"
    ring.failed("c")

    assert ring.current == "a"


def test_ring_needs_a_server() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ServerRing([])


def test_paths_name_group_namespace_and_object() -> None:
    assert SERVICES.path == "/api/v1/services"
    assert ENDPOINT_SLICES.narrowed(namespace="a b").path == "/apis/discovery.k8s.io/v1/namespaces/a%20b/endpointslices"
    assert NODES.object_path("n/1", "status") == "/api/v1/nodes/n%2F1/status"


def test_query_carries_selectors_encoded_and_leaves_out_what_is_empty() -> None:
    chosen = SERVICES.narrowed(label_selector="!a/b", field_selector="spec.clusterIP!=None")

    assert chosen.query({"limit": "5", "continue": ""}) == (
        "fieldSelector=spec.clusterIP%21%3DNone&labelSelector=%21a%2Fb&limit=5"
    )


def test_refusal_is_one_printable_line_of_bounded_length() -> None:
    error = errors.refusal("list services at s", 500, errors.Status(message="a\nb\x1b[31m" + "x" * 1000))

    assert "\n" not in str(error)
    assert "\x1b" not in str(error)
    assert len(str(error)) < 450


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [("7", None, 7.0), ("", 3, 3.0), ("junk", None, None), ("999999", None, 300.0), ("-1", None, None)],
)
def test_retry_after_is_read_from_header_or_body(header: str, details: int | None, expected: float | None) -> None:
    status = errors.Status(details=errors.Details(retry_after_seconds=details)) if details else None

    assert errors.refusal("", 429, status, header).retry_after_s == expected

# SPDX-License-Identifier: Apache-2.0
"""`kepctl top`: columns, orders, and a screen that loses what it must."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.api.messages import to_message
from agent.cli.commands.node.top import TopScreen
from agent.cli.session import CommandFailed
from agent.cli.texts.usage import (
    ORDERS,
    cores_text,
    node_listing,
    ordered_pods,
    percent,
    pod_usage_listing,
    size_text,
    stalls_text,
    worst_stall,
)
from agent.model.nodes.usage_report import ContainerUsage, NodeUsage, PodUsage, Stalls, Usage, UsageReport
from agent.wire.kepd.v1 import node_pb2 as pb
from kepd_ui.cells import line_width
from kepd_ui.screen import Size
from kepd_ui.top_screen import TopView, bar, draw_top, fitting_cells, press

MIB = 1 << 20
SOME = Usage(
    cpu_cores=0.25, cpu_limit_cores=0.5, memory_bytes=64 * MIB, memory_limit_bytes=80 * MIB, throttled=0.5,
    stalls=Stalls(cpu=12.3, memory=0.0, io=1.0),
)  # fmt: skip


def answer(count: int = 3) -> pb.ListStatsResponse:
    pods = tuple(
        PodUsage(
            namespace="default", name=f"p{number}", restarts=number, ooms=count - number,
            usage=Usage(cpu_cores=number / 10, memory_bytes=(count - number) * MIB, stalls=Stalls(io=float(number))),
            containers=(ContainerUsage(name="main", id=f"c{number}", usage=SOME),),
        )
        for number in range(count)
    )  # fmt: skip
    report = UsageReport(node=NodeUsage(name="n1", processors=2, usage=SOME, pods=count), pods=pods, window_s=2.0)
    return to_message(pb.ListStatsResponse, report, meta=None)


def test_what_nobody_knows_is_a_dash() -> None:
    empty = pb.Usage()

    assert [cores_text(empty), stalls_text(empty), worst_stall(empty), percent(None), size_text(None)] == [
        "-", "- - -", "-", "-", "-",
    ]  # fmt: skip


def test_units_are_those_of_kubectl() -> None:
    """LIV-02."""
    (node,) = node_listing(answer()).items
    cells = [column.cell(node) for column in node_listing(answer()).columns]

    assert cells == ["n1", "50%", "250m", "64Mi", "80%", "12.3 0.0 1.0", "-", "3", "0"]
    assert size_text(20 << 30) == "20.0Gi"
    assert worst_stall(node.usage) == "c 12.3"


@pytest.mark.parametrize(
    ("order", "expected"),
    [("cpu", "p2"), ("memory", "p0"), ("psi", "p2"), ("restarts", "p2"), ("oom", "p0"), ("name", "p0")],
)
def test_the_most_comes_first(order: str, expected: str) -> None:
    assert ordered_pods(answer().pods, order)[0].name == expected


def test_what_is_not_known_comes_last() -> None:
    unknown = pb.PodUsage(namespace="default", name="a")

    assert [ordered_pods([unknown, *answer().pods], one)[-1].name for one in ("cpu", "memory", "psi")] == ["a"] * 3


def test_only_the_pods_that_are_meant_are_shown() -> None:
    shown = TopScreen("pods", ("p1",), "default", "cpu", None)

    assert [pod.name for pod in shown.picked(answer()).pods] == ["p1"]
    assert [pod.name for pod in TopScreen("pods", (), "default", "cpu", 2).picked(answer()).pods] == ["p2", "p1"]
    assert list(TopScreen("pods", (), "other", "cpu", None).picked(answer()).pods) == []
    with pytest.raises(CommandFailed, match='no pod "none"'):
        TopScreen("pods", ("none",), "", "cpu", None).picked(answer())
    assert pod_usage_listing([]).empty


@given(
    width=st.integers(20, 220), height=st.integers(6, 60), of=st.sampled_from(("pods", "containers")),
    top=st.integers(0, 400), is_ascii=st.booleans(),
)  # fmt: skip
def test_a_screen_fits_whatever_its_size(width: int, height: int, of: str, top: int, is_ascii: bool) -> None:
    """LIV-07."""
    lines = draw_top(answer(30), of, TopView(top=top), Size(width, height), is_ascii=is_ascii)

    assert len(lines) == height
    assert all(line_width(line) <= width for line in lines)
    assert not is_ascii or all(span.text.replace("…", "").isascii() for line in lines for span in line)


def test_columns_give_way_in_their_order() -> None:
    """LIV-07: bars first, then ages, throttling, kills; of pressure the worst stays."""
    whole = [one.title for one in fitting_cells("containers", 250, is_ascii=False)]
    lost = []
    for width in range(250, 40, -1):
        titles = [one.title for one in fitting_cells("containers", width, is_ascii=False)]
        lost += [one for one in whole if one not in titles and one not in lost]

    assert lost == ["AGE", "THROTTLED", "OOM"]
    assert [one.width for one in fitting_cells("pods", 60, is_ascii=False) if one.title == "PRESSURE"] == [8]


def test_what_does_not_fit_is_counted() -> None:
    lines = draw_top(answer(100), "pods", TopView(), Size(120, 20), is_ascii=False)

    assert lines[-1][0].text.startswith("… 83 more")


@pytest.mark.parametrize(
    ("share", "style", "text"),
    [(0.0, "green", " " * 10), (0.55, "green", "█████▌    "), (0.75, "yellow", "███████▌  "), (2.0, "red", "█" * 10)],
)
def test_a_bar_is_against_its_limit(share: float, style: str, text: str) -> None:
    """LIV-06."""
    found = bar(share, 10, is_ascii=False)

    assert (found.style, len(found.text)) == (style, 10)
    assert found.text.rstrip(" ▏▎▍▌▋▊▉") == text.rstrip(" ▏▎▍▌▋▊▉")
    assert bar(share, 10, is_ascii=True).text.isascii()
    assert bar(None, 10, is_ascii=False).text == " " * 10


def test_keys_order_hold_move_and_quit() -> None:
    """LIV-05."""
    size, view = Size(80, 20), TopView()
    assert [press(view, key, 50, size).order for key in "cmpron"] == list(ORDERS)
    assert press(view, " ", 50, size).is_held
    assert press(view, "down", 50, size).top == 1
    assert press(view, "up", 50, size).top == 0
    assert press(view, "page-down", 50, size).top == 17
    assert press(replace_top(view, 49), "page-down", 50, size).top == 33
    assert press(view, "q", 50, size).is_over
    assert press(view, "x", 50, size) == view
    assert set(ORDERS) == {"cpu", "memory", "psi", "restarts", "oom", "name"}


def replace_top(view: TopView, top: int) -> TopView:
    return TopView(order=view.order, top=top)


@pytest.mark.parametrize("name", ["web", "web-n1", "default/web", "pod/web"])
def test_a_pod_is_meant_by_either_of_its_names(name: str) -> None:
    report = UsageReport(
        node=NodeUsage(name="n1", processors=2, usage=SOME, pods=1),
        pods=(PodUsage(namespace="default", name="web-n1", restarts=0, ooms=0, usage=SOME),), window_s=2.0,
    )  # fmt: skip
    found = to_message(pb.ListStatsResponse, report, meta=None)

    assert [one.name for one in TopScreen("pods", (name,), "", "name", None).picked(found).pods] == ["web-n1"]

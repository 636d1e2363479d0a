# SPDX-License-Identifier: Apache-2.0
"""Pages that follow each other: what is used again of the one before never shows."""

import gzip
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.observe.pages.cadvisor_page import FileSystem, PageBefore, Wishes, cadvisor_families, fitting_families
from agent.observe.pages.columns import FigureColumn
from agent.observe.pages.exposition import COUNTER, RenderedFamily, family, page
from agent.observe.pages.families import POD_GROUPS
from agent.observe.pages.packing import LEAST_LINES, Packing
from agent.observe.sample.node_sample import NodeSample
from tests.observe.samples import container, figures, pod, sample

DISK = FileSystem("/dev/vda", 100, 10, 5)
SOME = st.one_of(st.none(), st.integers(0, 2))
CONTAINERS = st.lists(
    st.builds(
        lambda name, used, is_ended, layer: container(
            name, figures=figures(cpu_ns=used, periods=used), layer_bytes=layer, ended_s=1.0 if is_ended else None
        ),
        st.sampled_from(("a", "b", "é")), SOME, st.booleans(), SOME,
    ),
    max_size=3,
)  # fmt: skip
NODES = st.lists(CONTAINERS, min_size=9, max_size=13).map(
    lambda pods: sample(*(pod(f"p{number}", containers=tuple(one)) for number, one in enumerate(pods)))
)


def plain(families: Sequence[RenderedFamily], *, is_open: bool) -> bytes:
    return b"".join(page(families, is_open=is_open))


@given(nodes=st.lists(NODES, min_size=2, max_size=3), is_open=st.booleans())
def test_a_page_after_others_is_as_if_it_were_the_first(nodes: list[NodeSample], is_open: bool) -> None:
    """OBS-12, OBS-13: also packed, and its size is known beforehand."""
    before, packing = PageBefore(), Packing()
    for node in nodes:
        wishes = Wishes(is_open=is_open, devices={"8:0": "/dev/sda"}, layers=DISK)
        families = cadvisor_families(node, wishes, before)
        whole = plain(families, is_open=is_open)

        assert sorted(whole.splitlines()) == sorted(
            plain(cadvisor_families(node, wishes), is_open=is_open).splitlines()
        )
        assert gzip.decompress(packing.page(families, is_open=is_open)) == whole
        assert [one.size for one in families] == [
            len(one.text) - len(one.head) if one.series else 0 for one in families
        ]


def test_columns_without_a_change_are_those_of_the_page_before() -> None:
    """OBS-12: when it was last seen is always new."""
    pods = [pod(f"p{number}") for number in range(40)]
    before, wishes = PageBefore(), Wishes(layers=DISK)

    def large() -> dict[bytes, FigureColumn]:
        families = cadvisor_families(sample(*pods), wishes, before)
        return {column.head: column for one in families for column in one.columns if column.count >= LEAST_LINES}

    first = large()
    pods[3] = pod("p3", containers=(container(figures=figures(cpu_ns=7, usage=9001)),))
    second = large()

    assert {head for head in first if first[head] is not second[head]} == {
        b'container_cpu_usage_seconds_total{cpu="total",', b"container_memory_usage_bytes{", b"container_last_seen{",
    }  # fmt: skip


def test_a_page_that_is_too_large_has_columns_of_the_one_before_as_well() -> None:
    """OBS-11: its rows are not those of the page that was tried first."""
    node, before = sample(*(pod(f"p{number}") for number in range(40))), PageBefore()
    most = sum(one.series for one in cadvisor_families(node, Wishes())) // 2

    def large() -> list[FigureColumn]:
        kept, dropped = fitting_families(node, Wishes(), most, 1 << 40, before)
        assert POD_GROUPS in dropped
        return [column for one in kept for column in one.columns if column.count >= LEAST_LINES]

    assert [first is second for first, second in zip(large(), large(), strict=True)].count(False) == 1


def test_a_page_of_nothing_is_packed_as_well() -> None:
    empty = family("a_total", COUNTER, "None.", [], is_open=True)

    assert gzip.decompress(Packing().page([empty], is_open=True)) == b"# EOF\n"
    assert gzip.decompress(Packing().page([], is_open=False)) == b""

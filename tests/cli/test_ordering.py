# SPDX-License-Identifier: Apache-2.0
"""`get --sort-by`: lists in the order of a path."""

import pytest

from agent.cli.objects.ordering import ordered_by
from agent.cli.session import CommandFailed
from agent.kinds.table import Listing, Table, table_of
from agent.wire.kepd.v1 import pod_pb2

RANKS = {"one": 10, "two": 9, "three": None, "four": 9}
PODS = [pod_pb2.Pod(name=name) for name in RANKS]


def table() -> Table:
    listing = Listing("Pod", PODS, (), lambda one: one.name, objects=lambda items: [as_object(one) for one in items])
    return table_of(listing, with_objects=True)


def as_object(pod: pod_pb2.Pod) -> dict[str, object]:
    rank = RANKS[pod.name]
    return {"metadata": {"name": pod.name}, "spec": {} if rank is None else {"rank": rank}}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (".metadata.name", "four one three two"),
        ("{.metadata.name}", "four one three two"),
        (".spec.rank", "three two four one"),
    ],
)
def test_a_list_comes_in_the_order_of_a_path(path: str, names: str) -> None:
    assert [one.name for one in ordered_by(table(), path).rows] == names.split()


def test_what_kubernetes_does_not_have_is_ordered_by_its_own_fields() -> None:
    plain = Listing("Thing", PODS, (), lambda one: one.name)

    assert [one.name for one in ordered_by(table_of(plain, with_objects=True), ".name").rows] == sorted(RANKS)


def test_a_path_that_leads_nowhere_is_refused_unless_the_list_is_empty() -> None:
    empty = table_of(Listing("Thing", [], (), lambda one: str(one)))

    with pytest.raises(CommandFailed, match=r'"\.spec\.none" leads to nothing in any of the 4 objects'):
        ordered_by(table(), ".spec.none")
    assert ordered_by(empty, ".spec.none").rows == []

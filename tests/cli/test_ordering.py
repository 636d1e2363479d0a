# SPDX-License-Identifier: Apache-2.0
"""`get --sort-by`: lists in the order of a path."""

import json

import pytest

from agent.cli.objects.ordering import ordered_by
from agent.cli.session import CommandFailed
from agent.kinds.table import Listing, Row, Table, table_of
from agent.wire.kepd.v1.object_pb2 import AppliedObject

RANKS = {"one": 10, "two": 9, "three": None, "four": 9}


def table() -> Table:
    made = {
        name: {"metadata": {"name": name}, "spec": {} if rank is None else {"rank": rank}}
        for name, rank in RANKS.items()
    }
    rows = [Row([], name, "", name, object=json.dumps(one).encode()) for name, one in made.items()]
    return Table("Pod", (), rows, is_kubernetes=True)


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


def test_what_an_answer_lists_is_ordered_by_its_own_fields() -> None:
    messages = [AppliedObject(name=name) for name in RANKS]
    plain = table_of(Listing("Thing", messages, (), lambda one: one.name), with_objects=True)

    assert [one.name for one in ordered_by(plain, ".name").rows] == sorted(RANKS)


def test_a_path_that_leads_nowhere_is_refused_unless_the_list_is_empty() -> None:
    empty = table_of(Listing("Thing", [], (), lambda one: str(one)))

    with pytest.raises(CommandFailed, match=r'"\.spec\.none" leads to nothing in any of the 4 objects'):
        ordered_by(table(), ".spec.none")
    assert ordered_by(empty, ".spec.none").rows == []

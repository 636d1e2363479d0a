# SPDX-License-Identifier: Apache-2.0
"""How many templates are remembered, whatever a manifest asks for."""

from msgspec.structs import replace

from agent.model.pods.fields import Metadata
from agent.pods.workloads.history import MOST_BYTES, MOST_REVISIONS, History, noted
from agent.pods.workloads.workload import Template, Workload

NO_LIMIT = 2**31 - 1


def edited(times: int, letters: int = 0, used: tuple[str, ...] = ()) -> History:
    history = History(kind="Deployment", namespace="d", name="w")
    for number in range(times):
        template = replace(Template(), metadata=Metadata(labels={"n": f"{number}{'x' * letters}"}))
        workload = Workload(
            kind="Deployment", namespace="d", name="w", uid="u", template=template, revision=f"r{number}"
        )
        history = noted(history, workload, 0.0, NO_LIMIT, used)
        history = noted(history, workload, 0.0, NO_LIMIT, used)
    return history


def test_the_templates_that_are_remembered_are_bounded_in_number_and_size() -> None:
    """WL-23."""
    many, large, huge = edited(150), edited(20, MOST_BYTES // 8), edited(5, MOST_BYTES + 1, ("r1",))

    assert len(many.revisions) == MOST_REVISIONS + 1
    assert [one.hash for one in large.revisions] == [f"r{number}" for number in range(12, 20)]
    assert [one.hash for one in huge.revisions] == ["r1", "r4"], "one that has pods stays"

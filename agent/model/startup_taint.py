# SPDX-License-Identifier: Apache-2.0
"""The taint that keeps pods off a node until its Services answer, as a change to a Node (DS-10)."""

from collections.abc import Mapping, Sequence

from agent.model.kube_objects import NodeTaint

STARTUP_TAINT = "kepd.dev/not-ready"

Step = Mapping[str, str]


def lifting(taints: Sequence[NodeTaint]) -> list[Step]:
    """Operations for these taints; none if ours is not among them. A list of taints has no keys that a patch could
    name, so each removal first tests what stands at its place: the server refuses the whole change if it moved
    meanwhile. From the last on, so that places stay right."""
    steps: list[Step] = []
    for place, taint in reversed(list(enumerate(taints))):
        if taint.key == STARTUP_TAINT:
            path = f"/spec/taints/{place}"
            steps += [
                {"op": "test", "path": f"{path}/key", "value": STARTUP_TAINT},
                {"op": "test", "path": f"{path}/effect", "value": taint.effect},
                {"op": "remove", "path": path},
            ]
    return steps

# SPDX-License-Identifier: Apache-2.0
"""Values of `pods.` that are wrong only together."""

from collections.abc import Iterator

from agent.config.document import Pods
from agent.model.finding import Finding

KEY = "pods.shutdown.groups"


def pods_faults(pods: Pods, *, is_legacy: bool = False) -> Iterator[Finding]:
    """`is_legacy`: the control groups of this node are known to be of version 1."""
    if pods.memory_qos and is_legacy:
        text = "true has no effect with control groups of version 1, which this node has; expected false, or version 2"
        yield Finding("", "pods.memoryQos", text)
    known: dict[object, int] = {}
    for place, pairs in enumerate(pods.shutdown.groups):
        group = dict(pairs)
        priority = group["priority"]
        if priority in known:
            text = f"priority {priority} is already that of groups[{known[priority]}]; expected one group per priority"
            yield Finding("", f"{KEY}[{place}]", text)
        known.setdefault(priority, place)
        if not group["period"]:
            text = "period 0s would kill its pods at once; expected a second or more, or no group"
            yield Finding("", f"{KEY}[{place}]", text)

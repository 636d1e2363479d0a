# SPDX-License-Identifier: Apache-2.0
"""A node as scheduling and hints see it: labels, readiness, CPU, taints; and the requirements pods put on nodes.

Source of behaviour: core/v1 NodeSpec and NodeStatus, the fields that these two read.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from agent.model.quantity import Quantity
from agent.model.selector import Requirement

ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"
HOSTNAME_LABEL = "kubernetes.io/hostname"

ReadyStatus = Literal["True", "False", "Unknown"]


class Taint(msgspec.Struct, frozen=True, gc=False):
    key: str
    effect: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


UNSCHEDULABLE_TAINT = Taint("node.kubernetes.io/unschedulable", "NoSchedule")


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """What a pod puts up with. An empty key or effect stands for any."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class NodeTerm(msgspec.Struct, frozen=True, gc=False):
    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class Node(msgspec.Struct, frozen=True, gc=False):
    """`ready` is the status of the first condition of type Ready, None without one; `cpu` is what is allocatable."""

    name: str
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    ready: ReadyStatus | None = None
    cpu: Quantity | None = None
    taints: tuple[Taint, ...] = ()
    is_unschedulable: bool = False

    @property
    def zone(self) -> str:
        """The zone label; missing and empty are the same."""
        return self.labels.get(ZONE_LABEL, "")

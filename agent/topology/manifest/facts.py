# SPDX-License-Identifier: Apache-2.0
"""The parts of Pods and Services that topology reads, as values.

Owns: the types, field for field what users wrote; defaults of the API server or the scheduler are not in them.
Source of behaviour: core/v1 TopologySpreadConstraint, PodSpec, ServiceSpec.
"""

from collections.abc import Mapping

import msgspec

from agent.model.nodes.node import NodeTerm, Toleration
from agent.model.selector import LabelSelector

FINISHED_PHASES = ("Succeeded", "Failed")


class SpreadConstraint(msgspec.Struct, frozen=True, gc=False):
    """One entry of topologySpreadConstraints; what is not written is 0, empty or None as the API decodes it."""

    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """A pod that is to be placed or already is. `required_terms` None: no required node affinity at all.

    `owner` is kind and name of the controller it belongs to.
    """

    namespace: str
    name: str
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    node_name: str | None = None
    is_terminating: bool = False
    phase: str = ""
    constraints: tuple[SpreadConstraint, ...] = ()
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    required_terms: tuple[NodeTerm, ...] | None = None
    preferred_terms: tuple[tuple[int, NodeTerm], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    owner: tuple[str, str] | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class SelectingService(msgspec.Struct, frozen=True, gc=False):
    """What of a Service bears on hints and on default spreading."""

    namespace: str
    name: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    traffic_distribution: str | None = None
    selector: Mapping[str, str] | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

# SPDX-License-Identifier: Apache-2.0
"""Where a manifest says its pod belongs, as far as one node can judge that.

Fields of type `object` speak to a scheduler.
"""

import msgspec


class _AffinityPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Common to all."""


class NodeRequirement(_AffinityPart, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(_AffinityPart, frozen=True):
    """Requirements that hold together."""

    match_expressions: tuple[NodeRequirement, ...] = ()
    match_fields: tuple[NodeRequirement, ...] = ()


class NodeTerms(_AffinityPart, frozen=True):
    """One of them is enough."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(_AffinityPart, frozen=True):
    """Which nodes; what is only preferred is for schedulers."""

    required_during_scheduling_ignored_during_execution: NodeTerms | None = None
    preferred_during_scheduling_ignored_during_execution: object = None


class Affinity(_AffinityPart, frozen=True):
    """Where a pod belongs; beside which pods is for schedulers."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: object = None
    pod_anti_affinity: object = None

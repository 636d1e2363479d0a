# SPDX-License-Identifier: Apache-2.0
"""Whether a node would take a pod, as far as cordon, taints and required node affinity go.

Source of behaviour: k8s.io/component-helpers/scheduling/corev1 (nodeaffinity, helpers); plugins nodeunschedulable and
tainttoleration of the scheduler.
"""

from collections.abc import Sequence

import msgspec

from agent.model.nodes.node import UNSCHEDULABLE_TAINT, Node, NodeTerm, Taint, Toleration
from agent.model.selector import Requirement, node_requirement_holds
from agent.topology.manifest.facts import PodFacts

NOT_CHECKED = ("resources", "host ports", "volumes", "inter-pod affinity", "preemption", "nominated pods")

REPELLING_EFFECTS = ("NoSchedule", "NoExecute")


class NodeStanding(msgspec.Struct, frozen=True, gc=False):
    """How a node stands towards the pod: `taint` is the first one it does not tolerate."""

    node: Node
    matches_affinity: bool
    taint: Taint | None
    is_cordoned: bool


def stand(pod: PodFacts, node: Node) -> NodeStanding:
    cordoned = node.is_unschedulable and not _tolerated(UNSCHEDULABLE_TAINT, pod.tolerations)
    return NodeStanding(node, _matches_affinity(pod, node), _untolerated(node.taints, pod.tolerations), cordoned)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Gt and Lt never tolerate: their gate is off by default."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def _untolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    for taint in taints:
        if taint.effect in REPELLING_EFFECTS and not _tolerated(taint, tolerations):
            return taint
    return None


def _matches_affinity(pod: PodFacts, node: Node) -> bool:
    if any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    if pod.required_terms is None:
        return True
    return any(term_holds(term, node) for term in pod.required_terms)


def term_holds(term: NodeTerm, node: Node) -> bool:
    """A term without any requirement selects nothing, and so does one that is malformed anywhere."""
    verdicts = [node_requirement_holds(requirement, node.labels) for requirement in term.match_expressions]
    verdicts += [_field_holds(requirement, node) for requirement in term.match_fields]
    return bool(verdicts) and all(verdict is True for verdict in verdicts)


def _field_holds(requirement: Requirement, node: Node) -> bool | None:
    """metadata.name is the only field a node has here; any other reads as empty."""
    if len(requirement.values) != 1 or requirement.operator not in ("In", "NotIn"):
        return None
    value = node.name if requirement.key == "metadata.name" else ""
    return (value == requirement.values[0]) == (requirement.operator == "In")

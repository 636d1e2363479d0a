# SPDX-License-Identifier: Apache-2.0
"""Whether a pod is meant for this node: `nodeSelector` and required node affinity, so that nodes can share manifests.

Preferences, taints and room do not count: a manifest lies beside a node on purpose.
"""

import platform
from collections.abc import Iterator, Mapping

from agent.model.pod_affinity import NodeRequirement, NodeSelectorTerm
from agent.model.pod_fields import PodFields

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
REFUSAL = "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"


def labels_of_node(name: str, configured: Mapping[str, str]) -> dict[str, str]:
    machine = platform.machine()
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCHITECTURES.get(machine, machine),
        **configured,
    }


def why_not_here(spec: PodFields, labels: Mapping[str, str], node: str) -> str:
    """Empty for a pod that may run."""
    wrong = [_said(key, value, labels) for key, value in spec.node_selector.items() if labels.get(key) != value]
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is not None and not any(_fits(term, labels, node) for term in required.node_selector_terms):
        wrong.append(f"none of {len(required.node_selector_terms)} nodeSelectorTerms fits")
    return f"{REFUSAL}: {'; '.join(wrong)} (labels: node.labels of the configuration)" if wrong else ""


def _said(key: str, value: str, labels: Mapping[str, str]) -> str:
    mine = f"is {labels[key]!r}" if key in labels else "is not set"
    return f"nodeSelector wants {key}={value}, which here {mine}"


def _fits(term: NodeSelectorTerm, labels: Mapping[str, str], node: str) -> bool:
    """An empty term fits no node."""
    if not term.match_expressions and not term.match_fields:
        return False
    by_field = {"metadata.name": node}
    return all(_holds(one, labels) for one in term.match_expressions) and all(
        _holds(one, by_field) for one in term.match_fields
    )


def _holds(one: NodeRequirement, labels: Mapping[str, str]) -> bool:
    found = labels.get(one.key)
    match one.operator:
        case "In":
            return found in one.values
        case "NotIn":
            return found not in one.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
    numbers = list(_numbers(found or "", *one.values))
    if len(numbers) <= 1:
        return False
    return numbers[0] > numbers[1] if one.operator == "Gt" else numbers[0] < numbers[1]


def _numbers(*texts: str) -> Iterator[int]:
    for text in texts:
        try:
            yield int(text)
        except ValueError:
            return

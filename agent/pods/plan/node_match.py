# SPDX-License-Identifier: Apache-2.0
"""Whether a pod is meant for this node: `nodeSelector` and required node affinity, so that nodes can share manifests.

Preferences, taints and room do not count: a manifest lies beside a node on purpose.
"""

import platform
from collections.abc import Mapping

from agent.model.nodes.terms import term_fits
from agent.model.pods.fields import PodFields

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
    if required is not None and not any(term_fits(term, labels, node) for term in required.node_selector_terms):
        wrong.append(f"none of {len(required.node_selector_terms)} nodeSelectorTerms fits")
    return f"{REFUSAL}: {'; '.join(wrong)} (labels: node.labels of the configuration)" if wrong else ""


def _said(key: str, value: str, labels: Mapping[str, str]) -> str:
    mine = f"is {labels[key]!r}" if key in labels else "is not set"
    return f"nodeSelector wants {key}={value}, which here {mine}"

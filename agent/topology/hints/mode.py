# SPDX-License-Identifier: Apache-2.0
"""Which mechanism gives a Service its hints: CPU shares, traffic distribution or none.

Source of behaviour: `pkg/apis/core/helper`, k8s.io/endpointslice/reconciler.go; KEP-2433, KEP-4444, KEP-3015.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from agent.model.finding import Finding, shown, suggestion

MODE_ANNOTATION = "service.kubernetes.io/topology-mode"
LEGACY_ANNOTATION = "service.kubernetes.io/topology-aware-hints"
DISTRIBUTION_FIELD = "spec.trafficDistribution"
SWITCHED_ON = ("Auto", "auto")
DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode")

Mode = Literal["topology", "distribution", "none"]


class ModeChoice(msgspec.Struct, frozen=True, gc=False):
    """The mode, the field that decided with its value, and the sentence to show for it."""

    mode: Mode
    source: str | None
    value: str | None
    why: str


def choose_mode(annotations: Mapping[str, str], traffic_distribution: str | None) -> ModeChoice:
    """The legacy annotation hides the new one merely by being there; either beats the field when it says Auto."""
    source = next((name for name in (LEGACY_ANNOTATION, MODE_ANNOTATION) if name in annotations), None)
    if source is not None and annotations[source] in SWITCHED_ON:
        return ModeChoice("topology", source, annotations[source], f"{source}={annotations[source]}")
    ignored = "" if source is None else f"; {source}={shown(annotations[source])} is neither Auto nor auto"
    if traffic_distribution in DISTRIBUTIONS:
        why = f"{DISTRIBUTION_FIELD}={traffic_distribution}{ignored}"
        return ModeChoice("distribution", DISTRIBUTION_FIELD, traffic_distribution, why)
    if traffic_distribution is not None:
        ignored += f"; {DISTRIBUTION_FIELD}={shown(traffic_distribution)} is none of {', '.join(DISTRIBUTIONS)}"
    value = annotations[source] if source is not None else traffic_distribution
    why = ignored.removeprefix("; ") or f"neither {MODE_ANNOTATION} nor {DISTRIBUTION_FIELD} is set"
    return ModeChoice("none", source, value, why)


def mode_findings(where: str, annotations: Mapping[str, str], traffic_distribution: str | None) -> tuple[Finding, ...]:
    """What the API server would refuse or warn about. Manifests are used all the same."""
    findings = []
    old, new = annotations.get(LEGACY_ANNOTATION), annotations.get(MODE_ANNOTATION)
    if old is not None:
        text = f"deprecated; use {MODE_ANNOTATION}"
        if new is not None and new != old:
            text = f"{shown(old)} differs from {MODE_ANNOTATION}={shown(new)} and wins over it; keep one of the two"
        findings.append(Finding(where, f"metadata.annotations[{LEGACY_ANNOTATION}]", text))
    if traffic_distribution == "PreferClose":
        findings.append(Finding(where, DISTRIBUTION_FIELD, "PreferClose is deprecated; PreferSameZone means the same"))
    elif traffic_distribution is not None and traffic_distribution not in DISTRIBUTIONS:
        text = f"{shown(traffic_distribution)} is not supported; expected {', '.join(DISTRIBUTIONS)}"
        findings.append(Finding(where, DISTRIBUTION_FIELD, text + suggestion(traffic_distribution, DISTRIBUTIONS)))
    return tuple(findings)

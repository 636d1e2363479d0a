# SPDX-License-Identifier: Apache-2.0
"""What the API server would have said to a pod's spread constraints, for pods that never pass one.

All errors, not just the first. Source of behaviour: `pkg/apis/core/validation`, `pkg/registry/core/pod/strategy.go`,
`pkg/api/pod` (warnings); KEP-3243.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from agent.model.finding import shown
from agent.model.selector import LabelSelector, Requirement, label_key_faults, selector_faults
from agent.topology.manifest.facts import PodFacts, SpreadConstraint
from agent.topology.spread.constraints import HARD, HONOR, IGNORE, SOFT

ErrorType = Literal[
    "FieldValueInvalid", "FieldValueRequired", "FieldValueNotSupported", "FieldValueDuplicate", "FieldValueForbidden"
]
WarningCode = Literal["deprecated-key", "null-selector"]

DEPRECATED_KEYS: Mapping[str, str] = {
    "beta.kubernetes.io/arch": "use kubernetes.io/arch",
    "beta.kubernetes.io/os": "use kubernetes.io/os",
    "beta.kubernetes.io/instance-type": "use node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone": "use topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "use topology.kubernetes.io/region",
    "node-role.kubernetes.io/master": "use node-role.kubernetes.io/control-plane",
    "app.kubernetes.io/created-by": "use app.kubernetes.io/managed-by",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": "use taints",
}


class AdmissionError(msgspec.Struct, frozen=True, gc=False):
    """`field` is the path below spec; `text` says what is wrong and what was expected."""

    field: str
    type: ErrorType
    text: str


class AdmissionWarning(msgspec.Struct, frozen=True, gc=False):
    """`position` is that of the constraint."""

    position: int
    code: WarningCode
    text: str


class SpreadAdmission(msgspec.Struct, frozen=True, gc=False):
    """The verdict; `selectors` are what the constraints would be stored with."""

    errors: tuple[AdmissionError, ...]
    selectors: tuple[LabelSelector | None, ...]
    warnings: tuple[AdmissionWarning, ...]


def admit(pod: PodFacts) -> SpreadAdmission:
    selectors = tuple(merge_label_keys(constraint, pod.labels) for constraint in pod.constraints)
    errors: list[AdmissionError] = []
    for position, selector in enumerate(selectors):
        path = f"topologySpreadConstraints[{position}]"
        errors += _value_errors(path, pod.constraints, position)
        errors += _policy_errors(path, pod.constraints[position])
        errors += _label_key_errors(path, pod.constraints[position], selector)
        errors += _selector_errors(path, selector)
    return SpreadAdmission(tuple(errors), selectors, tuple(_warnings(pod.constraints)))


def merge_label_keys(constraint: SpreadConstraint, labels: Mapping[str, str]) -> LabelSelector | None:
    """The selector as the API server stores it: one In expression for each listed key that the pod has."""
    selector = constraint.label_selector
    if selector is None:
        return None
    added = tuple(Requirement(key, "In", (labels[key],)) for key in constraint.match_label_keys if key in labels)
    return LabelSelector(selector.match_labels, selector.match_expressions + added)


def _value_errors(path: str, constraints: Sequence[SpreadConstraint], position: int) -> Iterator[AdmissionError]:
    constraint = constraints[position]
    action, key = constraint.when_unsatisfiable, constraint.topology_key
    if constraint.max_skew <= 0:
        text = f"{constraint.max_skew} is not above zero; expected a whole number from 1"
        yield AdmissionError(f"{path}.maxSkew", "FieldValueInvalid", text)
    if not key:
        yield AdmissionError(f"{path}.topologyKey", "FieldValueRequired", "empty; expected the key of a node label")
    if action not in (HARD, SOFT):
        text = f"{shown(action)} is not supported; expected {HARD} or {SOFT}"
        yield AdmissionError(f"{path}.whenUnsatisfiable", "FieldValueNotSupported", text)
    if any((other.topology_key, other.when_unsatisfiable) == (key, action) for other in constraints[position + 1 :]):
        text = f"{{{key}, {action}}} occurs again further down; expected one constraint for each such pair"
        yield AdmissionError(f"{path}.{{topologyKey, whenUnsatisfiable}}", "FieldValueDuplicate", text)
    if constraint.min_domains is not None:
        if constraint.min_domains <= 0:
            text = f"{constraint.min_domains} is not above zero; expected a whole number from 1, or none"
            yield AdmissionError(f"{path}.minDomains", "FieldValueInvalid", text)
        if action != HARD:
            text = f"{constraint.min_domains} given with {shown(action)}; expected minDomains with {HARD} only"
            yield AdmissionError(f"{path}.minDomains", "FieldValueInvalid", text)


def _policy_errors(path: str, constraint: SpreadConstraint) -> Iterator[AdmissionError]:
    policies = {
        "nodeAffinityPolicy": constraint.node_affinity_policy,
        "nodeTaintsPolicy": constraint.node_taints_policy,
    }
    for name, policy in policies.items():
        if policy is not None and policy not in (HONOR, IGNORE):
            text = f"{shown(policy)} is not supported; expected {HONOR} or {IGNORE}"
            yield AdmissionError(f"{path}.{name}", "FieldValueNotSupported", text)


def _label_key_errors(
    path: str, constraint: SpreadConstraint, merged: LabelSelector | None
) -> Iterator[AdmissionError]:
    keys = constraint.match_label_keys
    if not keys:
        return
    if merged is None:
        text = f"{', '.join(keys)} given without labelSelector; expected both or none"
        yield AdmissionError(f"{path}.matchLabelKeys", "FieldValueForbidden", text)
        return
    for position, key in enumerate(keys):
        for right in label_key_faults(key):
            text = f"{shown(key)} is not a label key; expected {right}"
            yield AdmissionError(f"{path}.matchLabelKeys[{position}]", "FieldValueInvalid", text)
    positions = {key: position for position, key in enumerate(keys)}
    seen = set(merged.match_labels)
    for requirement in merged.match_expressions:
        key = requirement.key
        if key in positions and key in seen:
            # The API server leaves `matchLabelKeys` out of this path.
            text = f"{shown(key)} is in matchLabelKeys and in labelSelector; expected only one of the two"
            yield AdmissionError(f"{path}[{positions[key]}]", "FieldValueInvalid", text)
        seen.add(key)


def _selector_errors(path: str, selector: LabelSelector | None) -> Iterator[AdmissionError]:
    types: Mapping[str, ErrorType] = {
        "Required": "FieldValueRequired",
        "Forbidden": "FieldValueForbidden",
        "Invalid": "FieldValueInvalid",
    }
    for fault in selector_faults(selector):
        text = f"{shown(fault.value)} cannot be used; expected {fault.right}"
        yield AdmissionError(f"{path}.labelSelector.{fault.path}", types[fault.kind], text)


def _warnings(constraints: Iterable[SpreadConstraint]) -> Iterator[AdmissionWarning]:
    for position, constraint in enumerate(constraints):
        key = constraint.topology_key
        if key in DEPRECATED_KEYS:
            yield AdmissionWarning(
                position, "deprecated-key", f"topologyKey {key} is deprecated; {DEPRECATED_KEYS[key]}"
            )
        if constraint.label_selector is None:
            text = "no labelSelector: the constraint matches no pod and never holds one back"
            yield AdmissionWarning(position, "null-selector", text)

# SPDX-License-Identifier: Apache-2.0
"""Pods, and templates of pods in workloads, from decoded manifests.

Owns: what of a pod bears on where it may go. Structure is checked while reading; `check_pod` judges the content.
Source of behaviour: core/v1 PodSpec, apps/v1; `admission.py` for constraints.
"""

import msgspec

from agent.model.finding import shown
from agent.model.nodes.node import NodeTerm, Toleration
from agent.model.selector import (
    LabelSelector,
    Requirement,
    label_key_faults,
    label_value_faults,
    node_requirement_holds,
    selector_faults,
)
from agent.topology.manifest.facts import PodFacts, SpreadConstraint
from agent.topology.manifest.reader import ManifestComplaints, ReadPart
from agent.topology.spread.admission import admit

DEFAULT_NAMESPACE = "default"
REQUIRED_AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED_AFFINITY = "preferredDuringSchedulingIgnoredDuringExecution"
FIELD_NAME = "metadata.name"


class WorkloadFacts(msgspec.Struct, frozen=True, gc=False):
    """A controller of pods: its selector, and the pod it would make, which has the workload's own name here."""

    kind: str
    template: PodFacts
    selector: LabelSelector | None
    replicas: int | None


def read_name(metadata: ReadPart) -> tuple[str, str]:
    """Namespace and name; a missing name is told, a missing namespace is `default`."""
    name = metadata.text("name")
    if not name:
        metadata.complaints.error(metadata.at("name"), "missing; expected the name of the object")
    return metadata.text("namespace") or DEFAULT_NAMESPACE, name


def check_labels(path: str, labels: dict[str, str], complaints: ManifestComplaints) -> None:
    for key, value in labels.items():
        for right in label_key_faults(key):
            complaints.error(f"{path}[{key}]", f"{shown(key)} is not a label key; expected {right}")
        for right in label_value_faults(value):
            complaints.error(f"{path}[{key}]", f"{shown(value)} is not a label value; expected {right}")


def read_pod(top: ReadPart) -> PodFacts:
    metadata = top.part("metadata", "metadata")
    namespace, name = read_name(metadata)
    pod = _read_spec(top.part("spec", "pod.spec"), PodFacts(namespace, name, metadata.text_map("labels")))
    if metadata.has("resourceVersion"):
        pod = msgspec.structs.replace(pod, constraints=tuple(_as_stored(one, pod) for one in pod.constraints))
    return msgspec.structs.replace(
        pod,
        is_terminating=metadata.has("deletionTimestamp"),
        phase=top.part("status", None).text("phase"),
        owner=_read_owner(metadata),
    )


def _as_stored(constraint: SpreadConstraint, pod: PodFacts) -> SpreadConstraint:
    """Without the keys that an API server has put into the selector already when the pod was made."""
    written = constraint.label_selector.match_expressions if constraint.label_selector is not None else ()
    left = tuple(
        key for key in constraint.match_label_keys if Requirement(key, "In", (pod.labels.get(key, ""),)) not in written
    )
    return msgspec.structs.replace(constraint, match_label_keys=left)


def read_workload(top: ReadPart, kind: str) -> WorkloadFacts:
    """A manifest with a pod template: Deployment, ReplicaSet, StatefulSet, DaemonSet, ReplicationController or Job."""
    namespace, name = read_name(top.part("metadata", "metadata"))
    spec = top.part("spec", "workload.spec")
    template = spec.part("template", "template")
    labels = template.part("metadata", "metadata").text_map("labels")
    pod = _read_spec(template.part("spec", "pod.spec"), PodFacts(namespace, name, labels, owner=(kind, name)))
    if kind == "ReplicationController":
        selector: LabelSelector | None = LabelSelector(spec.text_map("selector") if spec.has("selector") else labels)
    else:
        selector = read_selector(spec, "selector")
    for fault in selector_faults(selector):
        text = f"{shown(fault.value)} cannot be used; expected {fault.right}"
        top.complaints.error(f"{spec.at('selector')}.{fault.path}", text)
    return WorkloadFacts(kind, pod, selector, spec.optional_whole("replicas"))


def _read_owner(metadata: ReadPart) -> tuple[str, str] | None:
    owners = metadata.parts("ownerReferences", "ownerReference")
    controllers = [owner for owner in owners if owner.optional_flag("controller")]
    for owner in controllers or owners:
        return owner.text("kind"), owner.text("name")
    return None


def _read_spec(spec: ReadPart, pod: PodFacts) -> PodFacts:
    affinity = spec.part("affinity", "affinity").part("nodeAffinity", "nodeAffinity")
    return msgspec.structs.replace(
        pod,
        node_name=spec.optional_text("nodeName") or None,
        constraints=tuple(map(read_constraint, spec.parts("topologySpreadConstraints", "constraint"))),
        node_selector=spec.text_map("nodeSelector"),
        required_terms=_read_required_terms(affinity),
        preferred_terms=_read_preferred_terms(affinity),
        tolerations=tuple(
            Toleration(*map(part.text, ("key", "operator", "value", "effect")))
            for part in spec.parts("tolerations", "toleration")
        ),
    )


def read_constraint(part: ReadPart) -> SpreadConstraint:
    return SpreadConstraint(
        max_skew=part.optional_whole("maxSkew") or 0,
        topology_key=part.text("topologyKey"),
        when_unsatisfiable=part.text("whenUnsatisfiable"),
        label_selector=read_selector(part, "labelSelector"),
        match_label_keys=part.texts("matchLabelKeys"),
        min_domains=part.optional_whole("minDomains"),
        node_affinity_policy=part.optional_text("nodeAffinityPolicy"),
        node_taints_policy=part.optional_text("nodeTaintsPolicy"),
    )


def read_selector(holder: ReadPart, name: str) -> LabelSelector | None:
    if not holder.has(name):
        return None
    part = holder.part(name, "labelSelector")
    return LabelSelector(part.text_map("matchLabels"), _read_requirements(part, "matchExpressions"))


def _read_requirements(holder: ReadPart, name: str) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(part.text("key"), part.text("operator"), part.texts("values"))
        for part in holder.parts(name, "requirement")
    )


def _read_required_terms(affinity: ReadPart) -> tuple[NodeTerm, ...] | None:
    if not affinity.has(REQUIRED_AFFINITY):
        return None
    required = affinity.part(REQUIRED_AFFINITY, "nodeSelector")
    return tuple(map(_read_term, required.parts("nodeSelectorTerms", "nodeSelectorTerm")))


def _read_preferred_terms(affinity: ReadPart) -> tuple[tuple[int, NodeTerm], ...]:
    return tuple(
        (one.optional_whole("weight") or 0, _read_term(one.part("preference", "nodeSelectorTerm")))
        for one in affinity.parts(PREFERRED_AFFINITY, "preferredTerm")
    )


def _read_term(term: ReadPart) -> NodeTerm:
    return NodeTerm(_read_requirements(term, "matchExpressions"), _read_requirements(term, "matchFields"))


def check_pod(
    pod: PodFacts, complaints: ManifestComplaints, spec_path: str = "spec", labels_path: str = "metadata.labels"
) -> None:
    """Everything the API server would have refused about the pod's placement, and what it would have warned about."""
    check_labels(labels_path, dict(pod.labels), complaints)
    verdict = admit(pod)
    for error in verdict.errors:
        complaints.error(f"{spec_path}.{error.field}", error.text)
    for warning in verdict.warnings:
        complaints.note(f"{spec_path}.topologySpreadConstraints[{warning.position}]", warning.text)
    _check_terms(pod, complaints, f"{spec_path}.affinity.nodeAffinity.{REQUIRED_AFFINITY}")
    for position, toleration in enumerate(pod.tolerations):
        _check_toleration(toleration, complaints, f"{spec_path}.tolerations[{position}]")


def _check_terms(pod: PodFacts, complaints: ManifestComplaints, path: str) -> None:
    if pod.required_terms == ():
        complaints.error(f"{path}.nodeSelectorTerms", "empty; expected at least one term")
    for position, term in enumerate(pod.required_terms or ()):
        for place, requirement in enumerate(term.match_expressions):
            if node_requirement_holds(requirement, {}) is None:
                text = f"{shown(str(requirement))} cannot be used; expected a label key with In or NotIn and values, "
                text += "Exists or DoesNotExist without, Gt or Lt with one whole number"
                complaints.error(f"{path}.nodeSelectorTerms[{position}].matchExpressions[{place}]", text)
        for place, requirement in enumerate(term.match_fields):
            right = requirement.key == FIELD_NAME and requirement.operator in ("In", "NotIn")
            if not right or len(requirement.values) != 1:
                text = f"{shown(str(requirement))} cannot be used; expected {FIELD_NAME} with In or NotIn and one value"
                complaints.error(f"{path}.nodeSelectorTerms[{position}].matchFields[{place}]", text)


def _check_toleration(toleration: Toleration, complaints: ManifestComplaints, path: str) -> None:
    operator = toleration.operator
    if operator in ("Gt", "Lt"):
        complaints.note(f"{path}.operator", f"{operator} tolerates nothing while its feature gate is off")
    elif operator not in ("", "Equal", "Exists"):
        complaints.error(f"{path}.operator", f"{shown(operator)} is not supported; expected Equal or Exists")
    if not toleration.key and operator != "Exists":
        complaints.error(f"{path}.operator", f"{shown(operator)} without a key; expected Exists, or a key")
    if operator == "Exists" and toleration.value:
        complaints.error(f"{path}.value", f"{shown(toleration.value)} with Exists; expected no value")
    if toleration.effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        right = "NoSchedule, PreferNoSchedule, NoExecute or none"
        complaints.error(f"{path}.effect", f"{shown(toleration.effect)} is not supported; expected {right}")

# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies from manifests, and the labels of namespaces, by which they select."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.config.document import Configuration
from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree
from agent.model.finding import Finding
from agent.model.manifests.snapshot import Key
from agent.model.pods.container_fields import Fields
from agent.model.pods.fields import Metadata
from agent.objects.admitting import InForce
from agent.objects.reading import Objects, Reading
from agent.policies.manifest.bounds import beyond_bounds
from agent.policies.manifest.faults import policy_faults
from agent.policies.manifest.objects import API_VERSION, KIND, PolicedPod, Policy


class PolicyObjects(msgspec.Struct, frozen=True):
    """What is in force: policies by NAMESPACE/NAME, and the file and line of each; the labels of namespaces."""

    policies: Mapping[str, Policy] = {}
    namespaces: Mapping[str, tuple[tuple[str, str], ...]] = {}
    places: Mapping[str, str] = {}
    findings: tuple[Finding, ...] = ()

    def labelled(self, pods: Sequence[PolicedPod]) -> Sequence[PolicedPod]:
        """With the labels of their namespaces."""
        if not self.namespaces:
            return pods
        return [replace(pod, namespace_labels=self.namespaces.get(pod.namespace, ())) for pod in pods]


NO_OBJECTS = PolicyObjects()
PLANE, NAMESPACE = "policies", "Namespace"


class _Namespace(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()
    spec: object = None
    status: object = None


def policies_in(in_force: InForce) -> PolicyObjects:
    own = in_force.of([KIND])
    return PolicyObjects(
        {"/".join(object_.key[1:]): object_.value for object_ in own},
        {object_.key[2]: object_.value for object_ in in_force.of([NAMESPACE]) if object_.value},
        {"/".join(object_.key[1:]): object_.where for object_ in own},
        in_force.findings_of(PLANE),
    )


def _beyond_bounds(chosen: Objects, before: Objects) -> Sequence[tuple[Key, Finding]]:
    keys = {"/".join(key[1:]): key for key in chosen if key[0] == KIND}
    placed = {name: (chosen[key].where, chosen[key].value) for name, key in keys.items()}
    last = {name: before[key].value for name, key in keys.items() if key in before}
    return [(keys[name], finding) for name, finding in beyond_bounds(placed, last)]


def _read(tree: Tree, kind: str, _path: str, findings: list[Finding]) -> object | None:
    return read_policy(tree, findings) if kind == KIND else read_namespace(tree, findings)


POLICY_READING = Reading(PLANE, frozenset({KIND, NAMESPACE}), _read, bound=_beyond_bounds, holds_what_was=True)


def reading_for(configuration: Configuration | None) -> Reading:
    """Also that one would do nothing here: who applies it relies on it."""
    off = why_off(configuration) if configuration is not None else ""
    faults = [("kind", f"NetworkPolicy is not enforced here: {off}")] if off else []
    return replace(POLICY_READING, strict=lambda _tree, kind: faults if kind == KIND else ())


def why_off(configuration: Configuration) -> str:
    """Empty where policies are enforced."""
    if configuration.pods.enabled:
        return "" if configuration.policies.enabled else "policies.enabled is false"
    return "no pods run from files in this kepd; beside a cluster its CNI plugin enforces policies"


def read_namespace(tree: Tree, findings: list[Finding]) -> tuple[tuple[str, str], ...] | None:
    """Its labels."""
    before = len(findings)
    value = Shape(findings).read(tree, _Namespace, "")
    if len(findings) > before:
        return None
    found = msgspec.convert(value, _Namespace)
    wrong = ("apiVersion", "must be v1") if found.api_version != "v1" else ("metadata.name", "is missing")
    if found.api_version != "v1" or not found.metadata.name:
        findings.append(Finding(place_of(tree, wrong[0]), *wrong))
        return None
    return tuple(found.metadata.labels.items())


def read_policy(tree: Tree, findings: list[Finding]) -> Policy | None:
    """None where something is wrong, which is added to `findings`."""
    before = len(findings)
    version = tree.entries.get("apiVersion")
    if version is None or version.scalar != API_VERSION:
        findings.append(Finding((version or tree).where, "apiVersion", f"must be {API_VERSION}"))
    missing = [name for name in ("metadata", "spec") if name not in tree.entries]
    findings += [Finding(tree.where, name, "must be a map") for name in missing]
    value = Shape(findings).read(tree, Policy, "")
    if len(findings) == before:
        found = msgspec.convert(value, Policy)
        findings += [Finding(place_of(tree, path), path, text) for path, text in policy_faults(found)]
        if len(findings) == before:
            return found
    return None

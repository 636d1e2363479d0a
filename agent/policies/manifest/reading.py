# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies from manifests."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.config.document import Configuration
from agent.config.shape import Shape, place_of
from agent.config.strict_yaml import Tree
from agent.model.finding import Finding
from agent.model.manifests.snapshot import Key
from agent.objects.admitting import InForce
from agent.objects.reading import Objects, Reading
from agent.policies.manifest.bounds import beyond_bounds
from agent.policies.manifest.faults import policy_faults
from agent.policies.manifest.objects import API_VERSION, KIND, Policy


class PolicyObjects(msgspec.Struct, frozen=True):
    """What is in force: policies by NAMESPACE/NAME, and the file and line of each."""

    policies: Mapping[str, Policy] = {}
    places: Mapping[str, str] = {}
    findings: tuple[Finding, ...] = ()


NO_OBJECTS = PolicyObjects()
PLANE = "policies"


def policies_in(in_force: InForce) -> PolicyObjects:
    own = in_force.of([KIND])
    return PolicyObjects(
        {"/".join(object_.key[1:]): object_.value for object_ in own},
        {"/".join(object_.key[1:]): object_.where for object_ in own},
        in_force.findings_of(PLANE),
    )


def _beyond_bounds(chosen: Objects, before: Objects) -> Sequence[tuple[Key, Finding]]:
    keys = {"/".join(key[1:]): key for key in chosen}
    placed = {name: (chosen[key].where, chosen[key].value) for name, key in keys.items()}
    last = {name: before[key].value for name, key in keys.items() if key in before}
    return [(keys[name], finding) for name, finding in beyond_bounds(placed, last)]


def _read(tree: Tree, _kind: str, _path: str, findings: list[Finding]) -> Policy | None:
    return read_policy(tree, findings)


POLICY_READING = Reading(PLANE, frozenset({KIND}), _read, bound=_beyond_bounds, holds_what_was=True)


def reading_for(configuration: Configuration | None) -> Reading:
    """Also that one would do nothing here: who applies it relies on it."""
    off = why_off(configuration) if configuration is not None else ""
    faults = [("kind", f"NetworkPolicy is not enforced here: {off}")] if off else []
    return replace(POLICY_READING, strict=lambda _tree, _kind: faults)


def why_off(configuration: Configuration) -> str:
    """Empty where policies are enforced."""
    if configuration.pods.enabled:
        return "" if configuration.policies.enabled else "policies.enabled is false"
    return "no pods run from files in this kepd; beside a cluster its CNI plugin enforces policies"


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

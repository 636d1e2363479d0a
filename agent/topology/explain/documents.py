# SPDX-License-Identifier: Apache-2.0
"""From manifests and a name to an explanation: what `--from-files` calls."""

from collections.abc import Iterable, Sequence

from agent.model.finding import Finding, suggestion
from agent.model.selector import LabelSelector
from agent.topology.explain.hints import HintsExplanation, explain_family
from agent.topology.explain.spread import SpreadExplanation, explain_question
from agent.topology.hints.mode import choose_mode
from agent.topology.hints.slices import Slice
from agent.topology.hints.standalone import DEFAULT_OPTIONS, HintOptions, fill_hints
from agent.topology.hints.zones import ZonePlan
from agent.topology.hints.zones_for_pod import plan_zones_for_pod
from agent.topology.manifest.facts import PodFacts
from agent.topology.manifest.objects import Manifests
from agent.topology.manifest.pods import DEFAULT_NAMESPACE, WorkloadFacts
from agent.topology.spread.constraints import SYSTEM_DEFAULTS, Defaulting
from agent.topology.spread.filter import AS_IT_IS, SpreadQuestion, WhatIf

OWNERS_WITH_A_SAY = ("ReplicaSet", "StatefulSet", "ReplicationController", "Deployment")
MOST_NAMES_LISTED = 5


class NotThereError(LookupError):
    """The manifests have no such object; the message names some that they do have."""


def explain_hints(manifests: Manifests, name: str, options: HintOptions = DEFAULT_OPTIONS) -> HintsExplanation:
    """Explains the hints of Service NS/NAME, each address family by itself."""
    key = _key(name)
    service = next((one for one in manifests.services if one.key == key), None)
    if service is None:
        raise _not_there("Service", key, [one.key for one in manifests.services])
    families: dict[str, list[Slice]] = {}
    for one in manifests.slices:
        if f"{one.namespace}/{one.service}" == key:
            families.setdefault(one.family, []).append(one.slice)
    choice = choose_mode(service.annotations, service.traffic_distribution)
    filled = (
        fill_hints(service, family, slices, manifests.nodes, options) for family, slices in sorted(families.items())
    )
    return HintsExplanation(key, choice, tuple(map(explain_family, filled)))


def explain_spread(
    manifests: Manifests, name: str, what_if: WhatIf = AS_IT_IS, defaulting: Defaulting = SYSTEM_DEFAULTS
) -> SpreadExplanation:
    """Explains where Pod NS/NAME, or a pod of the workload of that name, may go."""
    pod, notes = _find_pod(manifests, _key(name))
    question = SpreadQuestion(
        pod=pod,
        nodes=manifests.nodes,
        pods=tuple(one for one in manifests.pods if one is not pod),
        services=manifests.services,
        defaulting=defaulting,
        owner_selector=_owner_selector(pod, manifests.workloads),
    )
    unknown = sorted(what_if.dropped_nodes - {node.name for node in manifests.nodes})
    if unknown:
        raise _not_there("Node", unknown[0], [node.name for node in manifests.nodes])
    return explain_question(question, what_if, notes)


def plan_for_pod(manifests: Manifests, replicas: range) -> ZonePlan:
    pods = [workload.template for workload in manifests.workloads] + list(manifests.pods)
    if len(pods) != 1:
        raise NotThereError(f"{len(pods)} pods and workloads given; expected exactly one to plan for")
    return plan_zones_for_pod(pods[0], manifests.nodes, replicas)


def _key(name: str) -> str:
    return name if "/" in name else f"{DEFAULT_NAMESPACE}/{name}"


def _not_there(kind: str, key: str, known: Sequence[str]) -> NotThereError:
    listed = ", ".join(known[:MOST_NAMES_LISTED]) + (", …" if len(known) > MOST_NAMES_LISTED else "")
    return NotThereError(f"no {kind} {key}{suggestion(key, known)} (there are: {listed or 'none'})")


def _find_pod(manifests: Manifests, key: str) -> tuple[PodFacts, tuple[Finding, ...]]:
    pod = next((one for one in manifests.pods if one.key == key), None)
    if pod is not None:
        placed = f"runs on {pod.node_name}; explained as if it were placed now, without counting itself"
        return pod, (Finding(key, "spec.nodeName", placed),) if pod.node_name else ()
    workload = next((one for one in manifests.workloads if one.template.key == key), None)
    if workload is None:
        known = [one.key for one in manifests.pods] + [one.template.key for one in manifests.workloads]
        raise _not_there("Pod or workload", key, known)
    text = f"explained for a pod made from the template of this {workload.kind}"
    if workload.kind == "Deployment":
        text += "; pod-template-hash is not known, so pods of older revisions count if the selector matches them"
    return workload.template, (Finding(key, "spec.template", text),)


def _owner_selector(pod: PodFacts, workloads: Iterable[WorkloadFacts]) -> LabelSelector | None:
    """The selector that default constraints add to those of the Services."""
    for workload in workloads:
        same = pod.owner == (workload.kind, workload.template.name) and pod.namespace == workload.template.namespace
        if same and workload.kind in OWNERS_WITH_A_SAY:
            return workload.selector
    return None

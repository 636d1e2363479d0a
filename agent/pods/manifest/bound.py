# SPDX-License-Identifier: Apache-2.0
"""How many pods all workloads of a node may ask for together."""

from collections.abc import Mapping, Sequence

from agent.model.finding import Finding
from agent.model.manifests.snapshot import Key
from agent.objects.reading import Object, Objects
from agent.pods.workloads.workload import Workload

MOST_MADE = 1000
"""`pods.maxPods` run of them."""


def within_bound(chosen: Objects, before: Objects) -> Sequence[tuple[Key, Finding]]:
    """Those that ask for more pods than there may be. What is in force has its pods; one that is to grow beyond the
    bound stays as it is."""
    count = sum(_had(object_, before) for object_ in chosen.values())
    refused: list[tuple[Key, Finding]] = []
    for key, object_ in chosen.items():
        workload = object_.value
        more = workload.most_pods - _had(object_, before) if isinstance(workload, Workload) else 0
        if more and count + more > MOST_MADE:
            effect = "it stays as it was" if key in before else "it is ignored"
            text = f"{workload.text} and those in force ask for more than {MOST_MADE} pods together; {effect}"
            refused.append((key, Finding(object_.where, "spec", text)))
        else:
            count += more
    return refused


def _had(object_: Object, before: Mapping[Key, Object]) -> int:
    known = before.get(object_.key)
    if known is None or not isinstance(known.value, Workload) or not isinstance(object_.value, Workload):
        return 0
    return min(known.value.most_pods, object_.value.most_pods)

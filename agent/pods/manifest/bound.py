# SPDX-License-Identifier: Apache-2.0
"""How many pods all workloads of a node may ask for together, and how many objects of some kinds there may be."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from agent.model.finding import Finding
from agent.model.manifests.snapshot import Key
from agent.objects.reading import Object, Objects
from agent.pods.workloads.workload import Workload

MOST_MADE = 1000
"""`pods.maxPods` run of them."""
MOST_OF_KIND = {
    "PersistentVolumeClaim": 1000, "PersistentVolume": 1000, "StorageClass": 100, "PriorityClass": 100,
    "LimitRange": 100, "ResourceQuota": 100,
}  # fmt: skip


def within_bound(chosen: Objects, before: Objects) -> Sequence[tuple[Key, Finding]]:
    """Those that ask for more pods than there may be, and those that are too many of their kind. What is in force has
    its pods; one that is to grow beyond the bound stays as it is."""
    return [*_pods_within(chosen, before), *_objects_within(chosen, before)]


def _objects_within(chosen: Objects, before: Objects) -> Iterator[tuple[Key, Finding]]:
    counts = Counter(key[0] for key in chosen if key in before)
    for key, object_ in chosen.items():
        most = MOST_OF_KIND.get(key[0])
        if most is None or key in before:
            continue
        counts[key[0]] += 1
        if counts[key[0]] > most:
            text = f"there are {most} objects of kind {key[0]} already, which are all that a node takes; it is ignored"
            yield key, Finding(object_.where, "kind", text)


def _pods_within(chosen: Objects, before: Objects) -> Sequence[tuple[Key, Finding]]:
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

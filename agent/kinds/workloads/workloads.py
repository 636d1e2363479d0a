# SPDX-License-Identifier: Apache-2.0
"""What makes pods: what its kinds have in common."""

from collections.abc import Sequence

from agent.kinds.described import Described, events_of_object
from agent.kinds.kind import Kind
from agent.kinds.parts import items, part
from agent.kinds.pods.pod_parts import namespace_of
from agent.kinds.shown import Describing, Objects
from agent.kinds.table import Column, Columns, Object, names_of
from agent.kinds.workloads.described_workload import workload_lines
from agent.kinds.written import SOURCE, Made, found_object

PODS = "kepd.v1.PodService"


def count_of(one: Object, name: str) -> int:
    return int(part(one, "status").get(name, 0))


def replicas_of(one: Object) -> str:
    return str(part(one, "spec").get("replicas", 1))


def _images(one: Object) -> str:
    return ",".join(str(each.get("image", "")) for each in items(one, "spec", "template", "spec", "containers"))


WIDE: Columns[Object] = (Column("IMAGES", _images, wide=True), SOURCE)
READY: Column[Object] = Column("READY", lambda made: f"{count_of(made, 'readyReplicas')}/{replicas_of(made)}")


def describe(kind: Kind, namespace: str, name: str) -> Describing:
    found = yield from found_object(kind, namespace, name)
    listed = yield Objects(PODS, "pods", may_fail=True)
    pods = pods_of(kind, found, listed or ())
    events = [events_of_object(found, kind.api), *map(events_of_object, pods)]
    return Described(tuple(workload_lines(kind.api, found, pods)), events)


def pods_of(kind: Kind, made: Made, pods: Sequence[Object]) -> list[Object]:
    """Those that say it owns them."""
    namespace, name = names_of(made)
    return [pod for pod in pods if namespace_of(pod) == namespace and _is_owned(pod, kind.api, name)]


def _is_owned(pod: Object, kind: str, name: str) -> bool:
    owners = items(pod, "metadata", "ownerReferences")
    return any(one.get("kind") == kind and one.get("name") == name for one in owners)

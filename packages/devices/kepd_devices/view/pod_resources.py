# SPDX-License-Identifier: Apache-2.0
"""Which devices each container of a pod has, from the records."""

from collections.abc import Callable, Iterator, Sequence

from agent.model.devices.pod_resources import (
    ClaimDevice,
    ClaimOfContainer,
    ContainerResources,
    PodResources,
    ResourceUse,
)
from agent.model.pods.pod import ContainerSpec, PodSpec
from kepd_devices.plan.plugins.plugin_records import PodGrants
from kepd_devices.plan.records import ClaimRecord, DriverPart

Nodes = Callable[[str, str], tuple[int, ...]]
"""NUMA nodes of a device of a resource."""


def pod_use(pod: PodSpec, records: Sequence[ClaimRecord], grants: PodGrants | None, nodes: Nodes) -> PodResources:
    """`records` are those that the pod holds."""
    containers = [
        ContainerResources(one.name, tuple(_resources(one.name, grants, nodes)), tuple(_claims(pod, one, records)))
        for one in pod.containers
    ]
    return PodResources(pod.namespace, pod.name, tuple(containers))


def _resources(container: str, grants: PodGrants | None, nodes: Nodes) -> Iterator[ResourceUse]:
    for grant in grants.grants if grants is not None else ():
        if grant.container == container:
            told = dict.fromkeys(node for one in grant.ids for node in nodes(grant.resource, one))
            yield ResourceUse(grant.resource, grant.ids, tuple(told))


def _claims(pod: PodSpec, container: ContainerSpec, records: Sequence[ClaimRecord]) -> Iterator[ClaimOfContainer]:
    for use in container.fields.resources.claims:
        for record in records:
            holder = record.held_by(pod.uid)
            if holder is not None and use.name in holder.entries:
                devices = tuple(_devices(record, use.request))
                yield ClaimOfContainer(record.claim.metadata.namespace, record.claim.metadata.name, devices)


def _devices(record: ClaimRecord, request: str) -> Iterator[ClaimDevice]:
    for result in record.results:
        if not request or result.request.partition("/")[0] == request:
            prepared = record.drivers.get(result.driver, DriverPart()).devices
            ids = [
                cdi_id
                for one in prepared
                if (one.pool, one.device, one.share_id) == (result.pool, result.device, result.share_id or "")
                for cdi_id in one.cdi_ids
            ]
            yield ClaimDevice(
                driver=result.driver, pool=result.pool, device=result.device, share_id=result.share_id or "",
                cdi_ids=tuple(dict.fromkeys(ids)),
            )  # fmt: skip

# SPDX-License-Identifier: Apache-2.0
"""The devices in the status of a pod: claims made for it, and what each container has, with its health."""

from collections.abc import Callable, Collection, Iterator

from msgspec.structs import replace

from agent.model.pods.state import AllocatedDevice, ClaimOfPodState, ContainerState, PodState
from kepd_devices.plan.plugins.plugin_records import PodGrants
from kepd_devices.plan.reasons import DeviceId
from kepd_devices.plan.records import ClaimRecord, devices_of


def with_devices(
    pod: PodState,
    records: Collection[ClaimRecord],
    grants: PodGrants | None,
    health: Callable[[DeviceId], str],
    plugin_health: Callable[[str, str], str],
) -> PodState:
    """`records` are those of the pod; `plugin_health` takes resource and device."""
    claims = {
        entry: record
        for record in records
        for holder in record.holders
        if holder.uid == pod.uid
        for entry in holder.entries
    }
    uses = {
        one.name: one.resources.claims
        for one in (*pod.spec.init_containers, *pod.spec.containers)
        if one.resources.claims
    }

    def of_container(one: ContainerState) -> Iterator[AllocatedDevice]:
        for use in uses.get(one.name, ()):
            if use.name in claims:
                yield from _of_claim(use.name, use.request, claims[use.name], health)
        for grant in grants.grants if grants is not None else ():
            if grant.container == one.name:
                for device in grant.ids:
                    yield AllocatedDevice(grant.resource, device, plugin_health(grant.resource, device))

    made = [ClaimOfPodState(name, one.claim.metadata.name) for name, one in sorted(claims.items()) if one.is_made]
    return replace(
        pod,
        resource_claims=tuple(made),
        containers=tuple(replace(one, devices=tuple(of_container(one))) for one in pod.containers),
    )


def _of_claim(
    entry: str, request: str, record: ClaimRecord, health: Callable[[DeviceId], str]
) -> Iterator[AllocatedDevice]:
    resource = f"claim:{entry}/{request}" if request else f"claim:{entry}"
    prepared = {(one.pool, one.device): one for one in devices_of(record, request)}
    for result in record.results:
        if request in ("", result.request.partition("/")[0]):
            device = DeviceId(result.driver, result.pool, result.device)
            known = prepared.get((result.pool, result.device))
            yield AllocatedDevice(
                resource, known.cdi_ids[0] if known is not None and known.cdi_ids else str(device), health(device)
            )

# SPDX-License-Identifier: Apache-2.0
"""Devices in the status of a pod, from records to what kepctl prints."""

from types import SimpleNamespace
from typing import Any

import pytest

from agent.kinds.shown import How
from agent.model.devices.plugin import PreparedDevice
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import AllocatedDevice, ContainerState, PodState
from agent.pods.attach.pod_service import PodService
from kepd_devices.plan.plugins.plugin_records import Grant, PodGrants
from kepd_devices.plan.reasons import DeviceId
from kepd_devices.run.view import DeviceView
from kepd_devices.view.pod_status import with_devices
from packages.devices.tests.test_claims import NodeOfLives
from packages.devices.tests.test_pod_claims import pod

MADE = """
apiVersion: v1
kind: Pod
metadata: {name: one, uid: uid-one}
spec:
  resourceClaims: [{name: made, resourceClaimTemplateName: one-gpu}]
  containers:
  - {name: all, image: "i:1", resources: {claims: [{name: made}]}}
  - {name: part, image: "i:1", resources: {claims: [{name: made, request: gpu}]}}
  - {name: none, image: "i:1"}
"""


def state_of(one: PodSpec) -> PodState:
    containers = tuple(ContainerState(name=it.name, image="i:1") for it in one.containers)
    return PodState(
        namespace=one.namespace, name=one.name, uid=one.uid, phase="Running", containers=containers, spec=one.spec
    )


async def test_a_pod_shows_its_claims_and_what_each_container_has() -> None:
    """DVX-6."""
    node = NodeOfLives()
    manager = await node.manager()
    one = pod(MADE)
    await manager.hold(one)
    found = DeviceView(manager, {}, None).with_devices(state_of(one))
    (claim,) = found.resource_claims

    assert (claim.name, claim.claim.startswith("one-made-")) == ("made", True)
    assert [it.devices for it in found.containers] == [
        (AllocatedDevice("claim:made", "gpu.example.com/gpu=gpu-0", "Unknown"),),
        (AllocatedDevice("claim:made/gpu", "gpu.example.com/gpu=gpu-0", "Unknown"),),
        (),
    ]

    async def looked() -> None: ...

    plane: Any = SimpleNamespace(pods=SimpleNamespace(items={"default/one": state_of(one)}), looked=looked)
    service = PodService(plane, None, with_devices=DeviceView(manager, {}, None).with_devices)
    ((_, shown),) = [placed async for placed in service.offers["pods"].walk(How(), "")]
    status = shown["status"]
    assert status["resourceClaimStatuses"] == [{"name": "made", "resourceClaimName": claim.claim}]
    assert [it.get("allocatedResourcesStatus") for it in status["containerStatuses"]] == [
        [{"name": name, "resources": [{"resourceID": "gpu.example.com/gpu=gpu-0", "health": "Unknown"}]}]
        if name
        else None
        for name in ("claim:made", "claim:made/gpu", "")
    ]


async def test_a_device_of_ours_that_is_gone_is_unhealthy() -> None:
    """DVD-20, DVD-26: also where kepd never saw it, and where its command calls it so."""
    node = NodeOfLives()
    manager = await node.manager()
    one = pod(MADE)
    await manager.hold(one)
    sick: dict[str, str] = {}
    own: Any = {"gpu.example.com": SimpleNamespace(devices=SimpleNamespace(unhealthy=sick))}
    (record,) = manager.records.values()
    healths = []
    for then in (lambda: sick.update({it.device: "worn" for it in record.results}), sick.clear, None):
        found = DeviceView(manager, own, None).with_devices(state_of(one))
        healths.append(found.containers[0].devices[0].health)
        if then is not None:
            then()
    node.driver.published = []
    found = DeviceView(manager, own, None).with_devices(state_of(one))

    assert [*healths, found.containers[0].devices[0].health] == ["Healthy", "Unhealthy", "Healthy", "Unhealthy"]


async def test_a_claim_that_has_its_own_manifest_was_made_for_nobody() -> None:
    node = NodeOfLives()
    manager = await node.manager()
    one = pod(MADE.replace("resourceClaimTemplateName: one-gpu", "resourceClaimName: gpus"))
    await manager.hold(one)
    found = DeviceView(manager, {}, None).with_devices(state_of(one))

    assert found.resource_claims == ()
    assert [len(it.devices) for it in found.containers] == [1, 1, 0]


@pytest.mark.parametrize("health", ["Healthy", "Unhealthy"])
async def test_health_and_devices_of_plugins_are_told(health: str) -> None:
    node = NodeOfLives()
    manager = await node.manager()
    one = pod(MADE)
    await manager.hold(one)
    asked: list[DeviceId] = []

    def told(device: DeviceId) -> str:
        asked.append(device)
        return health

    (record,) = manager.records.values()
    # A driver need not name CDI ids.
    record = record.at("gpu.example.com", record.stage, (PreparedDevice(pool="here", device="gpu-0"),))
    grants = PodGrants(
        uid=one.uid, namespace="default", name="one", grants=(Grant(container="none", resource="a.b/c", ids=("x",)),)
    )
    found = with_devices(state_of(one), [record], grants, told, lambda _resource, _device: "Unhealthy")

    assert found.containers[0].devices == (AllocatedDevice("claim:made", "gpu.example.com/here/gpu-0", health),)
    assert found.containers[2].devices == (AllocatedDevice("a.b/c", "x", "Unhealthy"),)
    assert set(asked) == {DeviceId("gpu.example.com", "here", "gpu-0")}


def test_a_pod_without_devices_stays_as_it_is() -> None:
    state = PodState(namespace="default", name="one", uid="u", phase="Running")

    assert with_devices(state, [], None, lambda _device: "", lambda _resource, _device: "") == state

# SPDX-License-Identifier: Apache-2.0
"""The Pods API of a kubelet: what its clients see of pods that come, change and go."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from msgspec.structs import replace

from agent.api.errors import Absent
from agent.kinds.registry import BY_WORD
from agent.model.pods.state import ContainerState, PodState
from agent.objects.feed import Versions
from agent.pods.attach.pod_service import PodService
from agent.wire.kepd.v1 import object_pb2, pod_pb2
from agent.wire.kubelet import pods_v1alpha1_pb2 as pb
from kepd_door.run.calls import Calls
from kepd_door.run.pods_api import PodsApi
from kepd_door.run.store import Change, Entry, KindStore
from kepd_door.run.writing import shown_with
from kepd_door.shape.protobuf import MAGIC, decoded_protobuf, encoded_protobuf
from kepd_door.shape.resources import BY_PLACE
from packages.door.tests.test_shape import field
from tests.cli.node_in_process import Pods

POD = PodState(
    namespace="default", name="web-n1", uid="u-1", phase="Running", created_at_s=1.0, ip="10.88.0.2",
    containers=(ContainerState(name="main", image="busybox:1", started_at_s=1.0, is_ready=True),),
)  # fmt: skip


def store_of(calls: Calls, spawn: Callable[[Any], object]) -> KindStore:
    return KindStore(
        BY_PLACE["", "v1", "pods"], calls, lambda: calls.offer(BY_WORD["pods"]), Versions(1 << 40), spawn, "n1"
    )  # fmt: skip


def read(message: bytes) -> dict[str, object]:
    return decoded_protobuf(MAGIC + field(1, field(1, b"v1") + field(2, b"Pod")) + field(2, message))


async def test_pods_come_change_and_go(short_path: Path) -> None:
    pods = Pods()
    pods.pods.put(POD.key, POD)
    service = pod_pb2.DESCRIPTOR.services_by_name["PodService"]
    services = {service: PodService(pods, Absent("streams"))}
    path = short_path / "pods.sock"
    async with asyncio.TaskGroup() as group:
        tasks = []
        store = store_of(Calls(services), lambda work: tasks.append(group.create_task(work)))
        opened = asyncio.Event()
        tasks.append(group.create_task(PodsApi(path, store).run(opened)))
        async with asyncio.timeout(30), grpc.aio.insecure_channel(f"unix:{path}") as channel:
            await opened.wait()
            assert path.stat().st_mode & 0o777 == 0o600
            get, listed = (
                channel.unary_unary(f"/v1alpha1.Pods/{name}", request.SerializeToString, answer.FromString)
                for name, request, answer in (
                    ("GetPod", pb.GetPodRequest, pb.GetPodResponse),
                    ("ListPods", pb.ListPodsRequest, pb.ListPodsResponse),
                )
            )
            watch = channel.unary_stream(
                "/v1alpha1.Pods/WatchPods", pb.WatchPodsRequest.SerializeToString, pb.WatchPodsEvent.FromString
            )
            one = read((await get(pb.GetPodRequest(podUID="u-1"))).pod)
            assert one["metadata"]["name"] == "web-n1"
            assert one["spec"]["nodeName"] == "n1"
            assert one["status"]["podIP"] == "10.88.0.2"
            assert one["status"]["startTime"] == "1970-01-01T00:00:01Z"
            assert len((await listed(pb.ListPodsRequest())).pods) == 1
            with pytest.raises(grpc.aio.AioRpcError, match="no pod has the uid"):
                await get(pb.GetPodRequest(podUID="other"))
            events = watch(pb.WatchPodsRequest())
            seen = [await events.read(), await events.read()]
            pods.pods.put(POD.key, replace(POD, phase="Succeeded"))
            seen.append(await events.read())
            pods.pods.remove(POD.key)
            seen.append(await events.read())
        for task in tasks:
            task.cancel()

    assert [one.type for one in seen] == [pb.ADDED, pb.INITIAL_SYNC_COMPLETE, pb.MODIFIED, pb.DELETED]
    assert read(seen[2].pod)["status"]["phase"] == "Succeeded"
    assert not path.exists()


class Manifests:
    """Of a directory whose objects no plane has seen."""

    def __init__(self) -> None:
        content = json.dumps({"metadata": {"name": "web"}, "spec": {"containers": []}}).encode()
        self.objects = [object_pb2.Object(kind="Pod", namespace="default", name="web", content=content, version="1")]

    async def list_objects(self, _request: object_pb2.ListObjectsRequest) -> object_pb2.ListObjectsResponse:
        return object_pb2.ListObjectsResponse(objects=self.objects)


@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_pod_that_was_listed_before_its_plane_saw_it_is_gone_for_watchers_too(*, is_seen: bool) -> None:
    """It has another name by then, or was deleted meanwhile."""
    pods, manifests = Pods(), Manifests()
    by_name = {"PodService": PodService(pods, Absent("streams")), "ObjectService": manifests}
    services = {service_of(name): served for name, served in by_name.items()}
    calls = Calls(services)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        tasks = []
        store = store_of(calls, lambda work: tasks.append(group.create_task(work)))
        listed = [entry.key[1] for entry in await store.entries()]
        changes = store.changes(store.version)
        assert await anext(changes) is None
        if is_seen:
            pods.pods.put(POD.key, replace(POD, manifest_name="web"))
        else:
            manifests.objects = []
        seen = [change async for change in until(changes, "web")]
        for task in tasks:
            task.cancel()

    assert listed == ["web"]
    assert seen == ([("web-n1", True)] if is_seen else []) + [("web", False)]


@pytest.mark.parametrize(("uid", "phase"), [("new", "Pending"), ("old", "Running"), ("", "Running")])
def test_a_pod_of_a_new_manifest_is_not_the_one_that_still_ends_under_its_name(uid: str, phase: str) -> None:
    store = store_of(Calls({}), lambda _: None)
    ending = {"metadata": {"name": "web-n1", "uid": "old", "deletionTimestamp": "t"}, "status": {"phase": "Running"}}
    entry = Entry(("default", "web-n1"), ending, ending, "web", 1)
    shown = shown_with(store, {"kind": "Pod", "metadata": {"name": "web", "uid": uid}}, entry, 2)

    assert (shown["metadata"]["name"], shown["status"]["phase"]) == ("web-n1", phase)
    assert shown["metadata"]["uid"] == (uid or "old")
    assert ("deletionTimestamp" in shown["metadata"]) == (phase == "Running")


async def until(changes: AsyncIterator[Change | None], name: str) -> AsyncIterator[tuple[str, bool]]:
    async for change in changes:
        if change is not None and (entry := change.now or change.before) is not None:
            yield entry.key[1], change.now is not None
            if entry.key[1] == name:
                return


def service_of(name: str) -> ServiceDescriptor:
    files = (object_pb2, pod_pb2)
    return next(found for file in files if (found := file.DESCRIPTOR.services_by_name.get(name)) is not None)


def test_what_is_encoded_is_read_again() -> None:
    made = {
        "metadata": {"name": "a", "labels": {"x": "y"}, "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {
            "terminationGracePeriodSeconds": 0, "volumes": [{"name": "v", "configMap": {"name": "c"}}],
            "containers": [{
                "name": "m", "command": ["sh"], "resources": {"limits": {"cpu": "1"}},
                "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 3},
                "readinessProbe": {"tcpSocket": {"port": 80}},
                "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}],
            }],
        },
    }  # fmt: skip

    assert read(encoded_protobuf("Pod", made)) == {"apiVersion": "v1", "kind": "Pod", **made}

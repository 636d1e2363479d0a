# SPDX-License-Identifier: Apache-2.0
"""A driver that asks an API server as Kubernetes' helper library does, and kepd that answers. DVM-30 to DVM-33.

The client does what kubeletplugin and resourceslice of 1.36 do: read its Node, list and watch its slices, create with a
generated name, update what it saw last, delete with preconditions, and read the claims that it is asked to prepare.
"""

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.kubeconfig import load_kubeconfig
from agent.drivers.kube.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, Changed, Replaced
from agent.wire.kubernetes import resource_v1_pb2 as pb
from bench.daemon import free_port
from kepd_devices.drivers.driver_api.credentials import Credentials, make_credentials, write_kubeconfigs
from kepd_devices.drivers.driver_api.door import MOST_CONNECTIONS
from kepd_devices.drivers.driver_api.protobuf import CONTENT_TYPE, MAGIC, from_protobuf
from kepd_devices.drivers.driver_api.server import CALLS, METERED, MOST_BODY_BYTES, DriverApiServer
from kepd_devices.plan.driver_store import MOST_CHANGES, MOST_SLICES, ApiRefusal
from kepd_devices.run.drivers.driver_api import ApiRequest, DriverApi, refusal
from packages.devices.tests.test_claims import NodeOfLives, held, shared_pod

DRIVER, OTHER = "gpu.example.com", "nic.example.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/gpus"


def slice_of(*devices: str, generation: int = 1, **metadata: Any) -> dict[str, Any]:
    """As the helper writes it."""
    pool = {"name": "here", "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "here", "pool": pool, "devices": [{"name": one} for one in devices]}
    owner = {"apiVersion": "v1", "kind": "Node", "name": "here", "uid": "u", "controller": True}
    given = {"generateName": "here-gpu-", "creationTimestamp": None, "ownerReferences": [owner], **metadata}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": given, "spec": spec}


class Service:
    """kepd's side, over the lives of its process, and clients of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = NodeOfLives(2)
        self.address = f"127.0.0.1:{free_port()}"
        self.now_s = 0.0
        self.credentials: Credentials | None = None
        self._stack: Any = None

    async def begin(self) -> None:
        self.claims = await self.node.manager()
        self.node.driver.published = []
        self.api = DriverApi(self.node.disk, SystemClock(), "here", lambda: self.claims.records)
        await self.api.load()
        self.claims.publishers.append(self.api.slices)
        self.credentials = await asyncio.to_thread(make_credentials, self.folder / "api", (DRIVER, OTHER))
        server = DriverApiServer(self.api.answer, self.api.watch, ApiRequest, ApiRefusal, refusal, lambda: self.now_s)
        self._stack = server.serving(self.address, self.folder / "drivers.sock", self.credentials)
        await self._stack.__aenter__()
        write_kubeconfigs(self.folder / "drivers", self.address, self.credentials)

    async def end(self) -> None:
        await self._stack.__aexit__(None, None, None)

    def kubeconfig(self, driver: str = DRIVER) -> Path:
        return self.folder / "drivers" / f"{driver}.kubeconfig"

    def token(self, driver: str = DRIVER) -> str:
        return str(json.loads(self.kubeconfig(driver).read_text())["users"][0]["user"]["token"])

    async def ask(self, method: str, path: str, body: Any = None, driver: str = DRIVER, **headers: str) -> Any:
        """The code, and the document."""
        assert self.credentials is not None
        context = ssl.create_default_context(cadata=self.credentials.authority.decode())
        headers = {"Authorization": f"Bearer {self.token(driver)}", "Content-Type": "application/json", **headers}
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        content = io.BytesIO(encoded) if body is not None else None
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, f"https://{self.address}{path}", data=content, headers=headers, ssl=context
            ) as answer,
        ):  # fmt: skip
            return answer.status, json.loads(await answer.read())


@pytest.fixture
async def service(short_path: Path) -> AsyncIterator[Service]:
    made = Service(short_path)
    await made.begin()
    yield made
    await made.end()


async def test_a_driver_publishes_and_prepares_as_with_an_api_server(service: Service) -> None:
    """DVM-31: from the discovery to the claim, with the client of kepd's own for lists and watches."""
    assert [one["name"] for one in (await service.ask("GET", "/apis"))[1]["groups"]] == ["resource.k8s.io"]
    _, found = await service.ask("GET", "/apis/resource.k8s.io/v1")
    assert [one["name"] for one in found["resources"]] == ["resourceslices", "resourceclaims", "resourceclaims/status"]
    code, node = await service.ask("GET", "/api/v1/nodes/here")
    assert (code, node["metadata"]["name"], len(node["metadata"]["uid"])) == (200, "here", 36)
    client = KubeClient(load_kubeconfig(service.kubeconfig()), clock=SystemClock())
    seen: list[tuple[str, list[str]]] = []

    async def follow() -> None:
        own = RESOURCE_SLICES.narrowed(field_selector=f"spec.driver={DRIVER},spec.nodeName=here")
        async with aclosing(client.follow(own)) as news:
            async for one in news:
                if isinstance(one, Replaced):
                    seen.append(("list", [it.metadata.name for it in one.items]))
                elif isinstance(one, Changed):
                    seen.append((str(one.change), [it["name"] for it in one.object.spec["devices"]]))

    task = asyncio.create_task(follow())
    await until(lambda: seen == [("list", [])])
    code, made = await service.ask("POST", SLICES, slice_of("gpu-0"))
    name = made["metadata"]["name"]
    assert (code, name.startswith("here-gpu-"), len(name)) == (201, True, len("here-gpu-") + 5)
    await until(lambda: len(seen) == 2)
    newer = {**made, "spec": slice_of("gpu-0", "gpu-1", generation=2)["spec"]}
    code, updated = await service.ask("PUT", f"{SLICES}/{name}", newer)
    assert (code, updated["metadata"]["uid"]) == (200, made["metadata"]["uid"])
    late, conflict = await service.ask("PUT", f"{SLICES}/{name}", newer)
    assert (late, conflict["reason"]) == (409, "Conflict")
    await until(lambda: len(seen) == 3)

    assert await held(service.claims, shared_pod("one")) == ""
    claim = await client.get(RESOURCE_CLAIMS.narrowed(namespace="default"), "gpus")
    (record,) = service.claims.records.values()
    assert claim.metadata.uid == record.uid
    assert claim.status["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
    assert claim.status["reservedFor"] == [{"resource": "pods", "name": "one", "uid": "uid-one"}]
    said = {"driver": DRIVER, "pool": "here", "device": "gpu-0", "data": {"mac": "1"}}
    body = {"status": {"devices": [said, {**said, "driver": OTHER}]}}
    code, told = await service.ask("PUT", f"{CLAIM}/status", body)
    assert (code, told["status"]["devices"]) == (200, [said])
    assert (await service.ask("GET", CLAIM, driver=OTHER))[0] == 404

    wrong = {"preconditions": {"uid": "another"}}
    assert (await service.ask("DELETE", f"{SLICES}/{name}", wrong))[0] == 409
    right = {"preconditions": {"uid": made["metadata"]["uid"]}}
    assert (await service.ask("DELETE", f"{SLICES}/{name}", right))[0] == 200
    await until(lambda: len(seen) == 4)
    task.cancel()
    await asyncio.wait([task])
    await client.close()
    assert seen == [
        ("list", []), ("ADDED", ["gpu-0"]), ("MODIFIED", ["gpu-0", "gpu-1"]), ("DELETED", ["gpu-0", "gpu-1"]),
    ]  # fmt: skip


async def until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("not within 10 s")


async def test_slices_and_tokens_outlive_kepd(service: Service) -> None:
    """DVM-32: a pod is served before its driver comes back; what a watch of the last life saw is too old."""
    _, made = await service.ask("POST", SLICES, slice_of("gpu-0"))
    token = service.token()
    await service.end()
    await service.begin()

    assert service.token() == token
    assert await held(service.claims, shared_pod("one")) == ""
    _, listed = await service.ask("GET", SLICES)
    assert [one["metadata"]["uid"] for one in listed["items"]] == [made["metadata"]["uid"]]
    events = service.api.watch(ApiRequest(DRIVER, "GET", SLICES, {"resourceVersion": "1"}))
    with pytest.raises(ApiRefusal) as told:
        await anext(events)
    assert told.value.code == 410


async def test_a_watch_begins_with_what_is_there_and_has_bookmarks(service: Service) -> None:
    """DVM-32: as clients ask since 1.35."""
    await service.ask("POST", SLICES, slice_of("gpu-0"))
    query = {"sendInitialEvents": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "1"}
    found = [one async for one in service.api.watch(ApiRequest(DRIVER, "GET", SLICES, query))]

    assert [one["type"] for one in found][:2] == ["ADDED", "BOOKMARK"]
    assert found[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    version = int(found[1]["object"]["metadata"]["resourceVersion"])
    for number in range(MOST_CHANGES + 1):
        ask = ApiRequest(DRIVER, "DELETE" if number % 2 else "POST", f"{SLICES}{'/x' if number % 2 else ''}", {},
                         b"" if number % 2 else json.dumps(slice_of("gpu-9", name="x")).encode())  # fmt: skip
        await service.api.answer(ask)
    with pytest.raises(ApiRefusal, match="too old resource version"):
        await anext(service.api.watch(ApiRequest(DRIVER, "GET", SLICES, {"resourceVersion": str(version)})))


async def test_a_token_writes_what_is_its_drivers_and_nothing_else(service: Service) -> None:
    """DVM-33, DVF-2: nor does anybody without one."""
    _, made = await service.ask("POST", SLICES, slice_of("gpu-0"))
    path = f"{SLICES}/{made['metadata']['name']}"
    away = {**slice_of("gpu-0"), "spec": {**slice_of("gpu-0")["spec"], "nodeName": "elsewhere"}}
    cases = [
        ("POST", SLICES, slice_of("gpu-1"), OTHER, {}, 403),
        ("GET", path, None, OTHER, {}, 404),
        ("PUT", path, made, OTHER, {}, 404),
        ("DELETE", path, None, OTHER, {}, 404),
        ("POST", SLICES, away, DRIVER, {}, 403),
        ("POST", SLICES, made, DRIVER, {}, 409),
        ("GET", "/api/v1/nodes/elsewhere", None, DRIVER, {}, 404),
        ("GET", "/api/v1/pods", None, DRIVER, {}, 404),
        ("GET", "/api/v1/namespaces/default/secrets/a", None, DRIVER, {}, 404),
        ("GET", SLICES, None, DRIVER, {"Authorization": "Bearer x"}, 401),
        ("GET", SLICES, None, DRIVER, {"Authorization": ""}, 401),
        ("GET", SLICES, None, DRIVER, {"Accept": "application/vnd.kubernetes.protobuf"}, 406),
        ("POST", SLICES, {}, DRIVER, {"Content-Type": "application/vnd.kubernetes.protobuf"}, 400),
        ("POST", SLICES, {}, DRIVER, {"Content-Type": "application/yaml"}, 415),
        ("GET", f"{SLICES}?fieldSelector=spec.colour%3Dred", None, DRIVER, {}, 400),
        ("POST", SLICES, [1], DRIVER, {}, 400),
        ("POST", SLICES, {"kind": "Pod", "metadata": {}}, DRIVER, {}, 400),
        ("POST", SLICES, {"kind": "ResourceSlice"}, DRIVER, {}, 422),
        ("POST", SLICES, slice_of("GPU 0"), DRIVER, {}, 422),
        ("POST", SLICES, slice_of(*(f"gpu-{number}" for number in range(10_000))), DRIVER, {}, 422),
        ("POST", SLICES, {"metadata": {"name": "x" * MOST_BODY_BYTES}}, DRIVER, {}, 413),
    ]  # fmt: skip
    found = [
        (await service.ask(method, where, body, driver, **headers)) for method, where, body, driver, headers, _ in cases
    ]
    assert [code for code, _ in found] == [one[-1] for one in cases]
    assert all(document["kind"] == "Status" and document["status"] == "Failure" for _, document in found)
    for driver in (DRIVER, OTHER):
        assert service.kubeconfig(driver).stat().st_mode & 0o777 == 0o600


async def test_floods_are_told_to_come_later(service: Service) -> None:
    """DVF-5, DVV-11: slices, and calls in a moment."""
    for number in range(MOST_SLICES):
        body = json.dumps(slice_of("gpu-0", name=f"s{number}")).encode()
        await service.api.answer(ApiRequest(DRIVER, "POST", SLICES, {}, body))
    with pytest.raises(ApiRefusal, match="the most that it may"):
        await service.api.answer(ApiRequest(DRIVER, "POST", SLICES, {}, json.dumps(slice_of("a")).encode()))
    codes = [(await service.ask("GET", "/version"))[0] for _ in range(int(METERED[CALLS].at_once) + 1)]
    assert (codes[-2], codes[-1]) == (200, 429)
    assert (await service.ask("GET", "/version", driver=OTHER))[0] == 200
    service.now_s += 1.0
    assert (await service.ask("GET", "/version"))[0] == 200


def protobuf(kind: str, message: Any) -> bytes:
    """As the client library of Go writes it."""
    meta = pb.TypeMeta(apiVersion="resource.k8s.io/v1", kind=kind)
    return MAGIC + pb.Envelope(typeMeta=meta, raw=message.SerializeToString()).SerializeToString()


def test_protobuf_becomes_the_json_that_it_stands_for() -> None:
    """DVM-31: with every kind of value."""
    amount = pb.Quantity(string="40Gi")
    device = pb.Device(
        name="gpu-0", attributes={"a": pb.DeviceAttribute(int=0), "b": pb.DeviceAttribute(bool=False),
                                  "c": pb.DeviceAttribute(version="1.2.0")},
        capacity={"memory": pb.DeviceCapacity(value=amount, requestPolicy=pb.CapacityRequestPolicy(default=amount))},
        consumesCounters=[pb.DeviceCounterConsumption(counterSet="s", counters={"m": pb.Counter(value=amount)})],
        taints=[pb.DeviceTaint(key="k", effect="NoSchedule", timeAdded=pb.Time(seconds=0))],
    )  # fmt: skip
    pool = pb.ResourcePool(name="here", generation=1, resourceSliceCount=1)
    spec = pb.ResourceSliceSpec(driver=DRIVER, nodeName="here", pool=pool, devices=[device])
    found = from_protobuf(protobuf("ResourceSlice", pb.ResourceSlice(metadata=pb.ObjectMeta(name="a"), spec=spec)))
    options = pb.DeleteOptions(preconditions=pb.Preconditions(uid="u"))

    assert found == {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "a"},
        "spec": {
            "driver": DRIVER, "nodeName": "here", "pool": {"name": "here", "generation": 1, "resourceSliceCount": 1},
            "devices": [{
                "name": "gpu-0", "attributes": {"a": {"int": 0}, "b": {"bool": False}, "c": {"version": "1.2.0"}},
                "capacity": {"memory": {"value": "40Gi", "requestPolicy": {"default": "40Gi"}}},
                "consumesCounters": [{"counterSet": "s", "counters": {"m": {"value": "40Gi"}}}],
                "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "1970-01-01T00:00:00Z"}],
            }],
        },
    }  # fmt: skip
    assert from_protobuf(protobuf("DeleteOptions", options))["preconditions"] == {"uid": "u"}
    for body, complaint in (
        (b"{}", "does not begin"), (MAGIC + b"\xff", "is no protobuf"), (protobuf("Pod", spec), "is not read"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=complaint):
            from_protobuf(body)


async def test_slices_are_taken_as_protobuf(service: Service) -> None:
    """DVM-30: what the library of Go writes by default."""
    pool = pb.ResourcePool(name="here", generation=1, resourceSliceCount=1)
    spec = pb.ResourceSliceSpec(driver=DRIVER, nodeName="here", pool=pool, devices=[pb.Device(name="gpu-0")])
    body = protobuf("ResourceSlice", pb.ResourceSlice(metadata=pb.ObjectMeta(generateName="a-"), spec=spec))
    code, made = await service.ask("POST", SLICES, body, **{"Content-Type": CONTENT_TYPE})
    bad, _ = await service.ask("POST", SLICES, b"k8s", **{"Content-Type": CONTENT_TYPE})

    assert (code, made["spec"]["devices"], bad) == (201, [{"name": "gpu-0"}], 400)


async def test_who_connects_and_says_nothing_keeps_no_driver_out(service: Service) -> None:
    """DVM-30, DVV-11: before the handshake, and after it."""
    host, _, port = service.address.rpartition(":")
    assert service.credentials is not None
    context = ssl.create_default_context(cadata=service.credentials.authority.decode())
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(200)]
    code, _ = await service.ask("GET", "/version")
    greeted = [await asyncio.open_connection(host, int(port), ssl=context) for _ in range(MOST_CONNECTIONS + 20)]
    again, _ = await service.ask("GET", "/version")
    stranger, _ = await service.ask("GET", "/version", Authorization="Bearer x")
    for _, writer in (*silent, *greeted):
        writer.transport.abort()
    await asyncio.sleep(0.2)

    assert (code, again, stranger) == (200, 200, 401)

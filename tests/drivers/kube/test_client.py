# SPDX-License-Identifier: Apache-2.0
"""Single requests: get, create, patch, the rate limit, and which failures go to another server."""

import pytest
from msgspec.structs import replace

from agent.drivers.kube import errors
from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.resource import JSON_PATCH, NODES, Resource
from agent.model.kube_objects import NodeObject
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import Certificates
from tests.drivers.kube.following import FAST, QuickClock, access_to, client_of

EVENTS = Resource("events.k8s.io", "v1", "events", NodeObject, namespace="default")
NODE = {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "kepd.dev/not-ready", "effect": "NoSchedule"}]}}


async def test_node_is_read(server: ApiServer) -> None:
    """IN-18."""
    server.objects.put("nodes", NODE)
    async with client_of(server) as client:
        node = await client.get(NODES, "n")

    assert node.spec.taints[0].key == "kepd.dev/not-ready"


async def test_event_is_created_once(server: ApiServer) -> None:
    """EVT-01."""
    async with client_of(server) as client:
        await client.create(EVENTS, {"metadata": {"name": "e"}, "reason": "Starting"})
        with pytest.raises(errors.Conflict, match=r'events\.events\.k8s\.io "e" already exists'):
            await client.create(EVENTS, {"metadata": {"name": "e"}})

    assert server.objects.get("events", "default", "e")["reason"] == "Starting"


async def test_merge_patch_changes_a_field(server: ApiServer) -> None:
    server.objects.create("events", {"metadata": {"name": "e"}, "count": 1}, "default")
    async with client_of(server) as client:
        await client.patch(EVENTS, "e", {"count": 2})

    assert server.objects.get("events", "default", "e")["count"] == 2


async def test_taint_is_removed_only_if_it_is_still_where_it_was(server: ApiServer) -> None:
    """DS-10."""
    server.objects.put("nodes", NODE)
    remove = [
        {"op": "test", "path": "/spec/taints/0/key", "value": "kepd.dev/not-ready"},
        {"op": "remove", "path": "/spec/taints/0"},
    ]
    async with client_of(server) as client:
        await client.patch(NODES, "n", remove, content_type=JSON_PATCH)
        with pytest.raises(errors.Unprocessable):
            await client.patch(NODES, "n", remove, content_type=JSON_PATCH)

    assert "taints" not in server.objects.get("nodes", "", "n")["spec"]


async def test_unreadable_object_is_told(server: ApiServer) -> None:
    server.objects.put("nodes", {"metadata": {"name": "n"}, "spec": {"taints": 5}})
    async with client_of(server) as client:
        with pytest.raises(errors.AnswerUnreadable, match=r"get nodes/n: Expected.*spec.taints"):
            await client.get(NODES, "n")


async def test_requests_above_the_burst_wait_their_turn(server: ApiServer) -> None:
    """The defaults: qps 5, burst 10."""
    server.objects.put("nodes", NODE)
    clock = QuickClock()
    async with client_of(server, clock=clock, qps=5.0, burst=2) as client:
        for _ in range(4):
            await client.get(NODES, "n")
        client.set_rate(1000.0, 100)

    assert clock.slept == pytest.approx([0.2, 0.2])


async def test_reads_go_to_the_next_server_and_writes_do_not(certificates: Certificates) -> None:
    """A write that got no answer may have been done."""
    async with serving(certificates) as dead, serving(certificates) as alive, client_of(dead, alive) as client:
        alive.objects.put("nodes", NODE)
        await dead.refuse()
        await client.get(NODES, "n")
        assert client._connection.ring.current == alive.url
        await alive.refuse()
        with pytest.raises(errors.Unreachable):
            await client.create(EVENTS, {"metadata": {"name": "e"}})


async def test_base_path_of_a_server_is_kept(server: ApiServer) -> None:
    """Servers behind a management plane have one."""
    access = access_to(server)
    cluster = replace(access.cluster, servers=(f"{server.url}/k8s/c1",))
    async with client_of(server, access=replace(access, cluster=cluster)) as client:
        with pytest.raises(errors.Missing):
            await client.get(NODES, "n")

    assert server.seen[0].plural == "/k8s/c1/api/v1/nodes/n"


def test_client_says_where_it_is(certificates: Certificates) -> None:
    server = ApiServer(certificates)
    client = KubeClient(access_to(server), clock=QuickClock(), timing=FAST)

    assert repr(client) == f"KubeClient(ServerRing(at={server.url} of 1))"

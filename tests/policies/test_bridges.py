# SPDX-License-Identifier: Apache-2.0
"""The table of bridges beside that for IP: what is in it, who touches it, and a kernel that has none."""

import asyncio
import json
from pathlib import Path

import pytest

from agent.drivers.interfaces.pod_links import PodLinks
from agent.model.component import State
from agent.model.services.nft_error import RulesRefused
from agent.policies.manifest.objects import PolicedPod
from agent.policies.rules.bridge_text import bridge_text
from agent.policies.rules.building import Builder
from tests.policies.fake_table import FakeBridge
from tests.policies.making import policies_of
from tests.policies.running import GivenManifests, GivenPods, running
from tests.policies.test_plane import DB, pod, policy

A, B = pod("a", "10.0.0.16", links=("va",)), pod("b", "fd00::17", DB, links=("vb",))


async def until_filled(bridge: FakeBridge, *pods: PolicedPod) -> None:
    """Until there is what is there when all is made at once."""
    wanted = FakeBridge()
    await wanted.load(bridge_text(Builder().table(policies_of([policy()]), pods).links))
    async with asyncio.timeout(20):
        while {name: one for name, one in (bridge.sets or {}).items() if one} != wanted.sets:
            await asyncio.sleep(0)


async def test_pods_that_come_and_go_make_the_table_of_bridges_that_is_made_at_once() -> None:
    """POL-16: also after somebody else has touched it; without policies it is gone."""
    bridge, pods = FakeBridge(), GivenPods(A)
    async with running(GivenManifests(policy()), pods, bridge=bridge) as node:
        await node.plane.hold("uid-a")
        first = {name: set(one) for name, one in (bridge.sets or {}).items()}
        for there in ([A, B], [B], [A, B]):
            pods.put(*there)
            await until_filled(bridge, *there)
        loads = len(bridge.loads)
        bridge.sets = {}
        bridge.touched.put_nowait("process 1 (nft) deleted the table")
        await until_filled(bridge, A, B)
        node.manifests.give()
        await node.until(State.READY, "0 policies")
        while bridge.sets is not None:
            await asyncio.sleep(0)

    assert first == {"links": {b"va".ljust(16, b"\0")}, "closed": {b"va".ljust(16, b"\0")}, "owners4": {
        b"va".ljust(16, b"\0") + bytes([10, 0, 0, 16])
    }}  # fmt: skip
    assert bridge.sets is None
    assert loads == 1


async def test_a_kernel_without_tables_of_bridges_keeps_no_policy_from_being_in_force() -> None:
    """POL-16."""
    bridge = FakeBridge(RulesRefused("nft refused the table's text: Operation not supported"))
    async with running(GivenManifests(policy()), GivenPods(A), bridge=bridge) as node:
        await node.plane.hold("uid-a")
        message = await node.until(State.DEGRADED)
        (advice,) = await node.plane.advice()

        assert "sources of pods are not held to their links" in message
        assert "Operation not supported" in advice.text
        assert node.table.state is not None
        assert any("fib daddr type" in rule for rule in node.table.state.chains["first"])


@pytest.mark.parametrize(
    ("interfaces", "link"),
    [
        ([("cni0", ""), ("veth1", ""), ("eth0", "/run/netns/a")], "veth1"),
        ([("cni0", ""), ("veth1", ""), ("eth0", "/run/netns/a"), ("bwp1", "")], "veth1"),
        ([("veth1", ""), ("eth0", "/run/netns/a")], ""),
        ([("eth0", "/run/netns/a")], ""),
        ([("cni0", ""), ('veth1" }', ""), ("eth0", "/run/netns/a")], ""),
        ([], ""),
    ],
    ids=["a bridge", "with a limit of bandwidth", "a link of its own", "the pod's end alone", "no name", "nothing"],
)
def test_the_link_of_a_pod_is_read_from_what_cni_has_left(
    tmp_path: Path, interfaces: list[tuple[str, str]], link: str
) -> None:
    """POL-16."""
    listed = [{"name": name, "mac": "", **({"sandbox": sandbox} if sandbox else {})} for name, sandbox in interfaces]
    links = PodLinks(tmp_path)
    before = links.of(["a1"])
    (tmp_path / "kepd-net-a1-eth0").write_text(json.dumps({"result": {"interfaces": listed}}))
    (tmp_path / "kepd-net-a2-eth0").write_text("{")

    assert before == {}
    assert links.of(["a1", "a2", "a3"]) == ({"a1": link} if link else {})
    assert PodLinks(tmp_path / "none").of(["a1"]) == {}

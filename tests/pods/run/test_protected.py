# SPDX-License-Identifier: Apache-2.0
"""A container starts only once the kernel holds what policies say of its pod."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

from agent.drivers.interfaces.pod_links import PodLinks
from agent.host.joints.pods_policies import PodsUnderPolicies
from agent.host.planes import Planes
from agent.model.pods.unprotected import PodUnprotected
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Slow, manifest, running


class Policies:
    """Refuses so often, then lets the pod wait for the bell."""

    def __init__(self, refusals: int = 0) -> None:
        self.asked: list[str] = []
        self.asks, self.bell, self._refusals = asyncio.Event(), asyncio.Event(), refusals

    async def hold(self, uid: str) -> None:
        self.asked.append(uid)
        self.asks.set()
        if len(self.asked) <= self._refusals:
            raise PodUnprotected("the kernel has not taken the network policies: no memory")
        await self.bell.wait()


async def test_no_container_starts_before_the_policies_of_its_pod_are_in_force(tmp_path: Path) -> None:
    """POL-04."""
    cri, policies = Slow(), Policies()
    manifests = FakeManifestDirectory({"web.yaml": manifest("web", "i", more=", uid: web")})
    async with running(cri, manifests, tmp_path / "logs", policies=policies) as plane:
        await asyncio.wait_for(policies.asks.wait(), 30)
        before = cri.calls.count("StartContainer")
        policies.bell.set()
        await plane.until_phases(web="Running")

    assert before == 0
    assert policies.asked == ["web"]


async def test_a_pod_that_is_not_protected_says_so_and_tries_again(tmp_path: Path) -> None:
    """POL-04."""
    cri, policies = Slow(), Policies(refusals=1)
    policies.bell.set()
    manifests = FakeManifestDirectory({"web.yaml": manifest("web", "i", more=", uid: web")})
    async with running(cri, manifests, tmp_path / "logs", policies=policies) as plane:
        await plane.until_phases(web="Running")

    told = [one for one in plane.events if one.reason == "NetworkPolicyNotReady"]
    assert [one.message for one in told] == ["the kernel has not taken the network policies: no memory"]


async def test_policies_see_pods_with_their_addresses_labels_and_named_ports(tmp_path: Path) -> None:
    text = (
        b"apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: web, labels: {app: web}}\nspec:\n  containers:\n"
        b"  - {name: a, image: i, ports: [{name: http, containerPort: 8080}, {containerPort: 81}]}\n"
    )
    async with running(Slow(), FakeManifestDirectory({"web.yaml": text}), tmp_path / "logs") as plane:
        await plane.until_phases(web="Running")
        planes = Planes(frozenset({"pods"}))
        planes.pods = SimpleNamespace(runner=plane.runner, here=None)  # type: ignore[assignment]
        (keeper,) = plane.runner.keepers.values()
        (sandbox,) = keeper.run.seen.sandboxes
        listed = [{"name": "cni0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/run/netns/a"}]
        (tmp_path / f"kepd-{sandbox.id}-eth0").write_text(json.dumps({"result": {"interfaces": listed}}))
        (found,) = PodsUnderPolicies(planes, PodLinks(tmp_path)).pods()

    assert (found.uid, found.key, found.labels) == ("web", "default/web-n", (("app", "web"),))
    assert found.addresses
    assert found.links == ("veth1",)
    assert found.ports == (("http", "TCP", 8080),)

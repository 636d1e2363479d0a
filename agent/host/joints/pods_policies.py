# SPDX-License-Identifier: Apache-2.0
"""Which pods NetworkPolicies select from, with their addresses, and that they hear when these changed."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from ipaddress import ip_address

import msgspec

from agent.drivers.interfaces.pod_links import PodLinks
from agent.host.planes import Planes
from agent.pods.attach.unit import PodOffers
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.runtime.observed import SeenSandbox
from agent.policies.manifest.objects import PolicedPod


class PodsUnderPolicies(msgspec.Struct, frozen=True):
    """Pods that are kept, until their sandboxes have gone."""

    planes: Planes
    links: PodLinks

    @property
    def _pods(self) -> PodOffers:
        """The pods plane is attached after that of policies."""
        assert self.planes.pods is not None  # noqa: S101 - nothing runs before all planes are attached
        return self.planes.pods

    async def listed(self) -> None:
        await self._pods.runner.rounds.listed.wait()

    def changes(self) -> AsyncIterator[object]:
        return self._pods.here.changes()

    def pods(self) -> Sequence[PolicedPod]:
        runs = [keeper.run for keeper in self._pods.runner.keepers.values()]
        links = self.links.of(one.id for run in runs for one in _held(run))
        found = [one for run in runs for one in _policed(run, links)]
        return [pod for _, pod in sorted(found, key=lambda one: (one[0], one[1].uid))]


def _held(run: LivePod) -> list[SeenSandbox]:
    """Containers go on for a while in a sandbox whose own process has died."""
    busy = {one.sandbox_id for one in run.seen.running}
    return [one for one in run.seen.sandboxes if one.is_ready or one.id in busy]


def _policed(run: LivePod, links: Mapping[str, str]) -> Iterator[tuple[float, PolicedPod]]:
    """With the moment at which it got its addresses."""
    pod, held = run.pod, _held(run)
    if not held:
        return
    is_known = pod.spec.host_network or all(one.ip is not None for one in held if one.is_ready)
    texts = (text for one in held for text in (one.ip, *one.more_ips) if text)
    addresses = run.facts.host_ips if pod.spec.host_network else texts
    yield (
        max(one.created_wall_s for one in held),
        PolicedPod(
            pod.uid,
            pod.namespace,
            pod.name,
            # Of a pod without manifest and record only its sandbox is left.
            pod.labels if pod.manifest_name else None,
            tuple(dict.fromkeys(str(ip_address(one)) for one in addresses)) if is_known else None,
            pod.spec.host_network,
            tuple(
                (port.name, port.protocol, port.container_port)
                for one in pod.containers
                for port in one.fields.ports
                if port.name
            ),
            () if pod.spec.host_network else tuple(links[one.id] for one in held if one.id in links),
        ),
    )

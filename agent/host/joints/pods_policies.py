# SPDX-License-Identifier: Apache-2.0
"""Which pods NetworkPolicies select from, with their addresses, and that they hear when these changed."""

from collections.abc import AsyncIterator, Iterator, Sequence
from ipaddress import ip_address

import msgspec

from agent.host.planes import Planes
from agent.pods.attach.unit import PodOffers
from agent.pods.run.one_pod.run_state import LivePod
from agent.policies.manifest.objects import PolicedPod


class PodsUnderPolicies(msgspec.Struct, frozen=True):
    """Pods that are kept, until their sandboxes have gone."""

    planes: Planes

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
        found = [one for keeper in self._pods.runner.keepers.values() for one in _policed(keeper.run)]
        return [pod for _, pod in sorted(found, key=lambda one: (one[0], one[1].uid))]


def _policed(run: LivePod) -> Iterator[tuple[float, PolicedPod]]:
    """With the moment at which it got its addresses."""
    pod = run.pod
    busy = {one.sandbox_id for one in run.seen.running}
    # Containers go on for a while in a sandbox whose own process has died.
    held = [one for one in run.seen.sandboxes if one.is_ready or one.id in busy]
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
        ),
    )

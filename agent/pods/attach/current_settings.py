# SPDX-License-Identifier: Apache-2.0
"""The settings of pods as they are now: of the configuration in force, with the addresses that this node has.

Asked for at every step of every pod, so they are made anew only when a reload changed the configuration, or when the
default route leads from another address. Without a cluster nothing else tells that; it is looked at now and then.
"""

from collections.abc import Callable
from ipaddress import ip_address

from msgspec.structs import replace

from agent.config.document import Configuration
from agent.drivers.interfaces.default_route import default_addresses
from agent.pods.run.pod_context import PodNodeFacts, PodSettings

ADDRESSES_S = 10.0
Make = Callable[[Configuration, PodNodeFacts], PodSettings]


def own_addresses(configuration: Configuration) -> tuple[str, ...]:
    """ENV-03, ENV-04: what is configured counts; else what this machine sends from."""
    return tuple(configuration.node.addresses) or tuple(str(ip_address(one)) for one in default_addresses())


class CurrentSettings:
    def __init__(
        self,
        configuration: Callable[[], Configuration],
        facts: PodNodeFacts,
        make: Make,
        now_s: Callable[[], float],
        addresses: Callable[[Configuration], tuple[str, ...]] = own_addresses,
    ) -> None:
        self._configuration = configuration
        self._facts = facts
        self._make = make
        self._now_s = now_s
        self._addresses = addresses
        self._looked_s = now_s()
        self._made: tuple[Configuration, PodSettings] | None = None

    def kubelet_changed(self, sign: str) -> None:
        self._facts, self._made = replace(self._facts, has_kubelet=bool(sign)), None

    def __call__(self) -> PodSettings:
        now, now_s = self._configuration(), self._now_s()
        is_same = self._made is not None and self._made[0] is now
        if not is_same or now_s - self._looked_s >= ADDRESSES_S:
            self._looked_s = now_s
            # A node that is between two networks keeps what it last had.
            found = self._addresses(now) or self._facts.addresses
            is_same = is_same and found == self._facts.addresses
            self._facts = replace(self._facts, addresses=found)
        if self._made is None or not is_same:
            self._made = (now, self._make(now, self._facts))
        return self._made[1]

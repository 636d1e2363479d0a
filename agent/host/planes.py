# SPDX-License-Identifier: Apache-2.0
"""What planes that are attached offer to the others, and to the process."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.images.attach.unit import ImageOffers
    from agent.observe.attach.unit import ObservationOffers
    from agent.pods.attach.unit import PodOffers
    from agent.policies.attach.unit import PolicyOffers
    from agent.services.attach.assembly import ServiceUnit
    from kepd_devices.attach.unit import DeviceOffers
    from kepd_dns.attach.unit import DnsOffers


class Planes:
    """Each is there once it is attached, if it runs here; `enabled` names all that will be."""

    def __init__(self, enabled: frozenset[str]) -> None:
        self.enabled = enabled
        self.images: ImageOffers | None = None
        self.devices: DeviceOffers | None = None
        self.policies: PolicyOffers | None = None
        self.pods: PodOffers | None = None
        self.services: ServiceUnit | None = None
        self.dns: DnsOffers | None = None
        self.observe: ObservationOffers | None = None

# SPDX-License-Identifier: Apache-2.0
"""What is checked, and what a dead endpoint is for its Service.

A dead one counts as one on its way out that still serves: it gets traffic where no other endpoint of the same list is
ready, by the rule that is there for those anyway. So hints, policies and topology keys choose among the living as
always, and a network that lies about all endpoints of a Service changes nothing for it.
Never: makes an endpoint ready that the API said is not, or brings one back that the API said is gone.
"""

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from agent.model.services.check import Asked
from agent.model.services.nft_table import Family
from agent.model.services.service import Protocol, ServiceKey
from agent.services.objects.fold import ServiceIndex
from agent.services.objects.merged import Endpoints

CHECKED: frozenset[Protocol] = frozenset({"TCP", "UDP"})
Dead = Collection[Asked]


def targets_of(fold: ServiceIndex, key: ServiceKey, families: Collection[Family]) -> Iterator[tuple[Asked, str]]:
    """With the node of each. Only ports that the Service names, and only what may get traffic."""
    service = fold.services.get(key)
    if service is None:
        return
    for family in families:
        ports = [one for one in service.ports if one.protocol in CHECKED] if service.part(family) is not None else []
        for port in ports:
            ready = (one for one in fold.backends(key, family, port.key) if one.is_ready)
            yield from ((Asked(port.protocol, one.data), one.node) for one in ready)


def judged(found: Endpoints, protocol: Protocol, dead: Dead) -> Endpoints:
    """With the dead ones set back."""
    if not dead or not any(one.is_ready and (protocol, one.data) in dead for one in found.whole):
        return found
    return Endpoints(
        tuple(
            [
                replace(one, is_ready=False, is_serving=True, is_terminating=True)
                if one.is_ready and (protocol, one.data) in dead
                else one
                for one in found.whole
            ]
        ),
        unjudged=found.whole,
    )

# SPDX-License-Identifier: Apache-2.0
"""Says whether the nodes of a zone keep traffic in reach of the hints.

Never: chooses endpoints; `services/routes/selection.py` does, and a test holds the two together.
"""

from collections.abc import Sequence

from agent.topology.hints.slices import Endpoint


def zone_uses_hints(endpoints: Sequence[Endpoint], zone: str) -> bool:
    """Every ready endpoint has a zone hint, and one of them names this zone. A missing condition means ready."""
    zones = [one.hints.zones if one.hints else () for one in endpoints if one.ready is not False]
    return all(zones) and any(zone in names for names in zones)

# SPDX-License-Identifier: Apache-2.0
"""Asks the code of the Services plane which endpoints a node uses, in the words of the topology planners."""

from collections.abc import Sequence

import msgspec

from agent.model.kube_objects import EndpointSlice
from agent.model.services.service import Backend
from agent.services.objects.reading_slice import read_slice
from agent.services.routes.selection import Place, Selection, Use, merge, select
from agent.topology.hints.slices import Endpoint


def select_hinted(endpoints: Sequence[Endpoint], node: str, zone: str | None) -> Selection:
    """What traffic of a Cluster policy gets."""
    backends = merge([_backends(endpoints)])
    return select(backends, Use(cluster=True, local=False), Place(node, zone or ""))


def _backends(endpoints: Sequence[Endpoint]) -> Sequence[Backend]:
    found = [
        {
            "addresses": list(one.addresses),
            "conditions": {"ready": one.ready, "serving": one.serving, "terminating": one.terminating},
            "hints": one.hints
            and {
                "forZones": [{"name": name} for name in one.hints.zones],
                "forNodes": [{"name": name} for name in one.hints.nodes],
            },
        }
        for one in endpoints
    ]
    document = {
        "metadata": {"namespace": "default", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
        "endpoints": found,
    }
    facts = read_slice(msgspec.convert(document, EndpointSlice)).facts
    return facts.endpoints if facts is not None else ()

# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of endpoint-selection.json: API objects in, the two lists out.

Owns: decoding a case and writing the selection in the form of the vectors.
Never: knows a case by its id.
"""

from collections.abc import Iterator

import msgspec

from agent.model.kube_objects import EndpointSlice, Service
from agent.model.services.service import PortKey
from agent.services.objects.merged import SlicePorts
from agent.services.objects.reading_service import read_service
from agent.services.objects.reading_slice import read_slice
from agent.services.routes.selection import Place, merge, select, use_of


def cases(document: dict) -> Iterator[tuple[str, str, dict, dict]]:
    for case in document["cases"]:
        yield case["id"], "", case, case["expect"]


def check(_kind: str, given: dict, expect: dict) -> None:
    read = read_service(msgspec.convert(given["service"], Service))
    service = read.facts
    assert service is not None, read.findings
    family = given["ipFamily"]
    part = service.part(family)
    assert part is not None
    wanted = PortKey(given["port"]["name"], given["port"]["protocol"])
    (port,) = [one for one in service.ports if one.key == wanted]
    slices = [read_slice(msgspec.convert(one, EndpointSlice)).facts for one in given["endpointSlices"]]
    mine = sorted(
        (one for one in slices if one is not None and one.service == service.key and one.family == family),
        key=lambda one: one.name,
    )
    backends = merge(found for one in mine for found in SlicePorts(one).backends(wanted))
    use = use_of(service, bool(port.node_port or part.balancer_ips or part.external_ips))
    selection = select(backends, use, Place(given["node"]["name"], given["node"]["zone"] or ""))

    actual = {
        "usesCluster": use.cluster,
        "usesLocal": use.local,
        "cluster": [one.key for one in selection.cluster or ()] if use.cluster else None,
        "local": [one.key for one in selection.local or ()] if use.local else None,
        "all": [one.key for one in selection.everyone],
        "hasAny": selection.has_any,
        "mode": selection.mode,
    }
    assert {key: expect[key] for key in actual} == actual

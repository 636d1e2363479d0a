# SPDX-License-Identifier: Apache-2.0
"""The servers of the cluster zone: endpoints of its DNS Service as this node chooses them (DNS-41)."""

from collections.abc import Iterator, Mapping

from agent.dns.handover.state import Upstream
from agent.model.nft_table import Family
from agent.model.service import Backend, ServiceKey
from agent.services.routes.frontends import PortPlan, ServicePlan
from agent.services.routes.selection import Selection
from agent.services.run.family_sync import FamilySync

TCP_NAME = "dns-tcp"
MOST = 16


def read_key(text: str) -> ServiceKey:
    namespace, _, name = text.partition("/")
    return ServiceKey(namespace, name)


def upstreams_of(syncs: Mapping[Family, FamilySync], key: ServiceKey, *, is_intercepted: bool) -> tuple[Upstream, ...]:
    """Near ones first, then any; the address of the Service where there are none and it does not lead back here."""
    found: list[Upstream] = []
    for sync in syncs.values():
        plan = sync.desired.plan_of(key)
        port = _tcp_port(plan) if plan is not None else None
        if plan is None or port is None:
            continue
        found += _chosen(port.selection)
        if not found and not is_intercepted:
            found.append(Upstream(plan.cluster_ip.text, port.port.port, "by the Service's address"))
    return tuple(found[:MOST])


def _tcp_port(plan: ServicePlan) -> PortPlan | None:
    ports = [one for one in plan.ports if one.port.protocol == "TCP"]
    named = [one for one in ports if one.port.name == TCP_NAME]
    ordinary = [one for one in ports if one.port.port == 53]
    return next(iter((*named, *ordinary)), None)


def _chosen(selection: Selection) -> Iterator[Upstream]:
    why = "serving, on its way out" if selection.is_last_resort else selection.mode or "any ready one"
    listed: tuple[Backend, ...] = selection.cluster or selection.local or selection.everyone
    for one in listed:
        yield Upstream(one.address, one.port, why)

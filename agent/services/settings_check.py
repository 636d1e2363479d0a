# SPDX-License-Identifier: Apache-2.0
"""Checks values of `services.` that are wrong only in combination."""

from collections.abc import Collection, Iterator

from agent.config.sections.services import Services
from agent.model.finding import Finding, shown
from agent.services.nftables.flowtable import LOOPBACK_DEVICE, PATTERN
from agent.services.objects.addresses import address_of, read_range, unfit_endpoint
from agent.services.objects.node_state import PRIMARY
from agent.services.routes.relays import LOCALHOST


def services_faults(services: Services, given: Collection[str] = ()) -> Iterator[Finding]:
    """`given`: the keys that were set. Where the source is not, its default depends on where kepd runs."""
    yield from _node_ports(services)
    yield from _detection(services)
    yield from _flowtable(services)
    if services.outage != "off" and services.source == "manifests" and "services.source" in given:
        text = (
            f"{services.outage} needs services.source kubernetes: files are there without any API server; expected off"
        )
        yield Finding("", "services.outage", text)
    if services.min_sync_period > services.sync_period:
        text = f"{services.min_sync_period:g} s is longer than syncPeriod, {services.sync_period:g} s; expected less"
        yield Finding("", "services.minSyncPeriod", text)


def _node_ports(services: Services) -> Iterator[Finding]:
    words = tuple(one for one in services.node_port_addresses if one != LOCALHOST)
    if len(words) < len(services.node_port_addresses) and services.backend == "iptables":
        text = (
            f"{LOCALHOST} needs the backend nftables, where kepd relays to it; expected the list without it: with "
            "iptables an empty list serves node ports on 127.0.0.1 as well"
        )
        yield Finding("", "services.nodePortAddresses", text)
    if PRIMARY in words and len(words) > 1:
        right = f"expected either {PRIMARY}, or networks; {LOCALHOST} may stand beside both"
        text = f"{', '.join(words)} is not valid; {right}"
        yield Finding("", "services.nodePortAddresses", text)
        return
    for position, text in enumerate(words):
        one = read_range(text) if text != PRIMARY else None
        path = f"services.nodePortAddresses[{position}]"
        if one is None and text != PRIMARY:
            yield Finding(
                "",
                path,
                f"{shown(text)} is not a network; expected {PRIMARY}, {LOCALHOST}, or a network such as 192.0.2.0/24",
            )
        elif one is not None and unfit_endpoint(address_of(one.first)) == "loopback":
            yield Finding("", path, f"{text} is loopback, where nftables serves no node ports; expected {LOCALHOST}")


def _flowtable(services: Services) -> Iterator[Finding]:
    devices = services.flowtable.devices
    if devices and services.backend == "iptables":
        text = "needs the backend nftables, whose table it stands beside; expected an empty list"
        yield Finding("", "services.flowtable.devices", text)
    for position, name in enumerate(devices):
        path = f"services.flowtable.devices[{position}]"
        if name == LOOPBACK_DEVICE:
            yield Finding("", path, f"{name} forwards nothing; leave it out")
        elif not PATTERN.fullmatch(name):
            yield Finding("", path, f"{shown(name)} is not a device; expected a name such as eth0, or a prefix veth*")


def _detection(services: Services) -> Iterator[Finding]:
    detect = services.detect_local
    if detect.mode == "BridgeInterface" and not detect.interface:
        yield Finding("", "services.detectLocal.interface", "is empty; mode BridgeInterface needs the bridge's name")
    if detect.mode == "InterfaceNamePrefix" and not detect.interface_prefix:
        text = "is empty; mode InterfaceNamePrefix needs the prefix of the names"
        yield Finding("", "services.detectLocal.interfacePrefix", text)
    ranges = [one for one in map(read_range, detect.cluster_cidrs) if one is not None]
    for family in ("IPv4", "IPv6"):
        found = [one.text for one in ranges if one.family == family]
        if len(found) > 1:
            text = f"{', '.join(found)}: only one network of each family counts"
            yield Finding("", "services.detectLocal.clusterCIDRs", text)

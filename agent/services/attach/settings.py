# SPDX-License-Identifier: Apache-2.0
"""What the configuration means for Services on this host."""

import os
from collections.abc import Iterable

import structlog

from agent.config.document import Configuration
from agent.model.services.service import Protocol
from agent.services.objects.bounds import NO_HASHING
from agent.services.objects.node_state import PRIMARY, NodeSettings
from agent.services.objects.options import read_ending
from agent.services.routes.relays import LOCALHOST
from agent.services.run.connection_ender import EndingSettings
from agent.services.run.pace import LONGEST_IPTABLES_PAUSE_S, LONGEST_PAUSE_S, Periods

log = structlog.get_logger(plane="services")

KUBE_PROXY_PERIODS = Periods(1.0, 30.0, 3600.0)


def node_settings(configuration: Configuration, *, is_alone: bool) -> NodeSettings:
    services, node = configuration.services, configuration.node
    detect = services.detect_local
    is_iptables = services.backend == "iptables"
    return NodeSettings(
        node=node.name,
        is_alone=is_alone,
        addresses=tuple(node.addresses),
        labels=dict(node.labels),
        detect_mode=detect.mode,
        cluster_ranges=tuple(detect.cluster_cidrs),
        interface=detect.interface,
        interface_prefix=detect.interface_prefix,
        node_port_addresses=node_port_addresses(configuration),
        service_ranges=tuple(services.service_cidrs),
        masquerades_all=services.masquerade_all,
        mark=1 << services.masquerade_bit,
        rejects_with_reset=services.reject_with == "auto",
        drops_invalid=services.drop_invalid or (is_iptables and not services.conntrack.tcp_be_liberal),
        counts_endpoints=services.counters.endpoints,
        own_maps=services.own_affinity_maps,
        maglevs=NO_HASHING if is_iptables else services.maglev_max,
        elements=services.elements_max,
        external_ips=_networks(services.external_ips),
        balancer_ips=_networks(services.balancer_ips),
        only_warns_of_ips=services.profile == "kube-proxy",
    )


def _networks(given: str | Iterable[str]) -> tuple[str, ...] | None:
    return None if given == "allow" else () if given == "deny" else tuple(given)


def node_port_addresses(configuration: Configuration) -> tuple[str, ...]:
    """Nothing set means the node's own address with nftables, and every address with iptables."""
    services = configuration.services
    return tuple(services.node_port_addresses) or ((PRIMARY,) if services.backend == "nftables" else ())


def needs_interfaces(configuration: Configuration) -> bool:
    """Whether addresses count that the Node object does not name."""
    words = node_port_addresses(configuration)
    return words != (LOCALHOST,) and {*words} - {LOCALHOST} != {PRIMARY}


def periods(configuration: Configuration) -> Periods:
    services = configuration.services
    if services.profile == "kube-proxy":
        return KUBE_PROXY_PERIODS
    # Each restore of iptables reads and writes whole tables, so a burst becomes a few.
    rest, longest_s = (20.0, LONGEST_IPTABLES_PAUSE_S) if services.backend == "iptables" else (2.0, LONGEST_PAUSE_S)
    return Periods(services.min_sync_period, services.sync_period, services.full_sync_period, rest, longest_s)


def flow_protocols(configuration: Configuration) -> tuple[Protocol, ...]:
    return ("UDP", "SCTP") if configuration.services.conntrack.sctp_cleanup else ("UDP",)


def chooses_services_by(configuration: Configuration) -> object:
    """What decides, beside the files, which Services there are."""
    return configuration.services.hints, configuration.services.service_cidrs


def exports_counts(configuration: Configuration) -> bool:
    return configuration.telemetry.per_service and configuration.services.counters.export


def services_scope() -> str:
    return f"network namespace {os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116


def ending_settings(configuration: Configuration) -> EndingSettings:
    services = configuration.services
    return EndingSettings(read_ending(services.terminate_established), services.terminate_max)

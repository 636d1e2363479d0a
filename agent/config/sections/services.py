# SPDX-License-Identifier: Apache-2.0
"""The section for Services."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.config.keys import Words, key, restart
from agent.config.kinds import (
    ADDRESS,
    BOOL,
    CIDR,
    CPU,
    DURATION,
    ENDING,
    MAYBE_INTERFACE,
    MAYBE_LABEL,
    TEXT,
    choice,
    duration,
    either,
    integer,
    list_of,
    map_of,
    number,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectLocal:
    """How kepd recognises traffic from local pods."""

    mode: str = restart(
        choice("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"),
        "ClusterCIDR",
        "What identifies local traffic.",
    )
    cluster_cidrs: Words = restart(list_of(CIDR, "networks"), (), "Networks of all pods.")
    interface: str = restart(MAYBE_INTERFACE, "", "Name of the pods' bridge, for BridgeInterface.")
    interface_prefix: str = restart(MAYBE_INTERFACE, "", "Prefix of pod interfaces, for InterfaceNamePrefix.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HintsSection:
    mode: str = key(
        choice("compute", "manifest", "off"), "compute", "Compute hints, use those in manifests, or use none."
    )
    zones: Mapping[str, str] = key(map_of(CPU, "zone: cpu"), {}, "CPUs per zone, instead of Node manifests.")
    overload_threshold: float = key(number(0, 1), 0.2, "Overload per endpoint above which no hints are given.")
    node_selector: Mapping[str, str] = key(map_of(TEXT, "of labels"), {}, "Labels a node needs to count as capacity.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConntrackSection:
    max_per_core: int = restart(integer(0), 32768, "Maximum of tracked flows per core; 0 = unchanged.")
    min: int = restart(integer(0), 131072, "Minimum of tracked flows.")
    tcp_established_timeout: float = restart(DURATION, 86400.0, "Timeout of idle TCP connections; 0s = unchanged.")
    tcp_close_wait_timeout: float = restart(DURATION, 3600.0, "Timeout of half-closed TCP connections; 0s = unchanged.")
    tcp_be_liberal: bool = restart(BOOL, False, "Accept TCP packets outside the window.")
    udp_timeout: float = restart(DURATION, 0.0, "Timeout of unanswered UDP flows; 0s = unchanged.")
    udp_stream_timeout: float = restart(DURATION, 0.0, "Timeout of answered UDP flows; 0s = unchanged.")
    sctp_cleanup: bool = restart(BOOL, False, "Also delete stale SCTP flows.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    endpoints: bool = restart(BOOL, False, "Count packets per endpoint.")
    export: bool = key(BOOL, False, "Export connections by Service as metrics; needs telemetry.perService.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowtableSection:
    """Established flows skip the rules."""

    devices: Words = restart(
        list_of(TEXT, "device names"),
        (),
        "Devices between which flows of Services skip all rules; `*` at the end: all.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    enabled: bool = restart(BOOL, True, "Run the services plane; it refuses to run beside a kube-proxy.")
    backend: str = restart(choice("nftables", "iptables"), "nftables", "How rules reach the kernel.")
    source: str = restart(
        choice("kubernetes", "manifests"),
        "",
        "Where Services come from.",
        "kubernetes if a kubeconfig is set or the process runs in a cluster, else manifests",
    )
    profile: str = restart(
        choice("kepd", "kube-proxy"),
        "kepd",
        "`kube-proxy` copies kube-proxy's timing, and only warns of refused external IPs.",
    )
    min_sync_period: float = key(DURATION, 0.05, "Shortest time between syncs.")
    sync_period: float = key(duration(0.1), 30.0, "Longest time between syncs.")
    full_sync_period: float = key(duration(1), 3600.0, "Longest time between full comparisons with the kernel.")
    masquerade_all: bool = key(BOOL, False, "Masquerade all traffic to Services.")
    masquerade_bit: int = restart(integer(0, 31), 14, "Bit of the packet mark for traffic to masquerade.")
    detect_local: DetectLocal = DetectLocal()
    service_cidrs: Words = key(list_of(CIDR, "networks"), (), "Service networks, in addition to ServiceCIDR objects.")
    node_port_addresses: Words = key(
        list_of(TEXT, "networks or words"),
        (),
        "Networks that serve node ports, or `primary`; also `localhost`, by a relay. Empty: `primary`, iptables: all.",
    )
    healthz_address: str = restart(
        ADDRESS, "0.0.0.0:10256", "Health address, as in kube-proxy; 0.0.0.0 includes IPv6; empty = off."
    )
    metrics_address: str = restart(ADDRESS, "", "Metrics address, as in kube-proxy; empty = off.")
    hints: HintsSection = HintsSection()
    conntrack: ConntrackSection = ConntrackSection()
    counters: Counters = Counters()
    flowtable: FlowtableSection = FlowtableSection()
    reject_with: str = restart(choice("auto", "icmp"), "auto", "How to reject traffic to Services without endpoints.")
    proxy_name: str = restart(MAYBE_LABEL, "", "Handle only Services with this service-proxy-name label.")
    startup_taint: bool = restart(
        BOOL, False, "Remove the taint `kepd.dev/not-ready` once Services work; patches the Node."
    )
    taint_when_down: str = restart(
        choice("never", "boot", "stop"),
        "never",
        "When kepd puts that taint on: after a boot until there are rules; `stop`: also when rules are lost.",
    )
    write_events: bool = restart(
        BOOL, False, "Write faults of Services as events of the API server too; needs `deploy/components/events`."
    )
    strict_source_ranges: bool = restart(
        BOOL, False, "An invalid source range closes the Service instead of being ignored."
    )
    external_ips: str | Words = key(
        either("allow", either("deny", list_of(CIDR, "networks"))),
        "allow",
        "Addresses that Services may take by `externalIPs`.",
    )
    balancer_ips: str | Words = key(
        either("allow", either("deny", list_of(CIDR, "networks"))),
        "allow",
        "The same for addresses that load balancers give.",
    )
    own_affinity_maps: int = key(
        integer(0, 1024), 64, "Service ports that may have an affinity map of their own, in each family."
    )
    maglev_max: int = key(integer(0, 1024), 64, "Services that may choose endpoints by stable hashing, in each family.")
    elements_max: int = key(
        integer(1000, 10_000_000), 500_000, "Elements of all Services in each family; a namespace has 75 % at most."
    )
    snapshot: bool = restart(BOOL, False, "Keep Services in a file, for boots without an API server.")
    snapshot_age: float = restart(DURATION, 0.0, "Oldest snapshot that is used.", "1h, with `services.outage` 168h")
    outage: str = restart(
        choice("off", "keep", "judge"),
        "off",
        "While no API server answers: `keep` what a snapshot has, `judge` endpoints by checks too.",
    )
    outage_after: float = key(duration(1, 3600), 10.0, "Silence of all API servers after which kepd is alone.")
    outage_checks: int = key(integer(1, 200), 100, "Most checks of endpoints in a second, while alone.")
    list_shrink: float = key(number(0, 1), 0.5, "Share of what was known that a list may lack before it is doubted.")
    list_doubt: float = key(duration(1, 86400), 300.0, "How long a doubted list has to stay so before it counts.")
    boot_guard: bool = restart(
        BOOL, False, "After a boot drop new traffic to Services until there are rules; needs `kepd-guard.service`."
    )
    boot_guard_max: float = restart(duration(10, 3600), 300.0, "Longest time that a boot is guarded without a kepd.")
    terminate_established: str = key(
        ENDING, "never", "When TCP connections to a gone endpoint end, unless the Service's annotation says it."
    )
    terminate_max: int = key(integer(1, 1_000_000), 10_000, "Most connections that are ended in a minute.")
    drop_invalid: bool = key(BOOL, False, "Drop packets that connection tracking marks invalid.")
    tamper_repair: bool = key(BOOL, True, "Repair rules that other programs changed.")
    drain_seconds: int = restart(integer(0), 0, "Seconds between failing the health check and exit.")
    drain_taints: Words = key(
        list_of(TEXT, "taint keys"),
        ("ToBeDeletedByClusterAutoscaler",),
        "Taints that make the node fail its health check.",
    )

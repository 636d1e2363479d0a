# SPDX-License-Identifier: Apache-2.0
"""The section of the configuration about names, as document.py has the others."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.config.keys import Words, key, restart
from agent.config.kinds import (
    ADDRESS,
    BOOL,
    CIDR,
    DURATION,
    IP,
    MAYBE_SERVICE_NAME,
    PATH,
    SERVICE_NAME,
    SIZE,
    TEXT,
    either,
    integer,
    list_of,
    map_of,
)

SERVERS = list_of(TEXT, "addresses with or without a port")


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlSection:
    min: int = key(integer(0, 3600), 0, "Shortest life of an answer in seconds; 0 = 1.")
    max: int = key(integer(0, 86400), 0, "Longest life of an answer in seconds; 0 = 30 in the cluster zone, else 3600.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeTtlSection:
    max: int = key(
        integer(0, 3600), 0, "Longest life in seconds of the answer that there is no such name; 0 = 5 or 900."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dns:
    enabled: bool = restart(
        BOOL, False, "Answer names on this node by kepd-dns; needs `kepd-dns.service` and Services."
    )
    directory: str = restart(PATH, "/run/kepd-dns", "Directory that the daemon shares with kepd-dns.")
    addresses: Words = restart(
        list_of(IP, "IP addresses"), (), "Addresses that kepd-dns answers at.", "169.254.20.10, and fd00::a9fe:140a"
    )
    intercept_cluster_dns: bool = restart(BOOL, True, "Beside a cluster, answer at the address of its DNS Service too.")
    cluster_dns_service: str = restart(SERVICE_NAME, "kube-system/kube-dns", "The Service of the cluster's DNS.")
    upstream_service: str = restart(
        MAYBE_SERVICE_NAME, "", "The Service whose endpoints are asked for the cluster zone.", "dns.clusterDNSService"
    )
    stub_domains: Mapping[str, Words] = key(map_of(SERVERS, "zone: servers"), {}, "Zones with servers of their own.")
    resolv_conf: str = key(PATH, "/etc/resolv.conf", "File with the servers for all other names.")
    authoritative: bool | str = key(
        either("auto", BOOL),
        "auto",
        "Answer names of Services here; `auto`: of manifests, `true`: of a cluster too.",
    )
    cache_size: int = key(SIZE, 16 << 20, "Memory for answers.")
    stale: float = key(DURATION, 3600.0, "How long an ended answer may be given when no server answers; 0s = never.")
    ttl: TtlSection = TtlSection()
    negative_ttl: NegativeTtlSection = NegativeTtlSection()
    prefetch: bool = key(BOOL, True, "Ask again before a popular answer ends.")
    per_source_qps: int = key(integer(0), 5000, "Answers per second by UDP to one address; 0 = no limit.")
    rebind_protection: bool = key(BOOL, False, "Empty answers of other zones that name addresses of pods or Services.")
    chaos: bool = key(BOOL, False, "Answer version.bind and id.server.")
    negative_below: bool = key(BOOL, False, "Below a cluster name that does not exist, none does.")
    search_shortcut: bool = key(
        BOOL, False, "Beside a cluster, deny names below `svc` that have more labels than any Service's."
    )
    metrics_address: str = restart(ADDRESS, "", "Address of the metrics, as node-cache has at :9253; empty = off.")
    allow_from: Words = key(list_of(CIDR, "networks"), (), "Further networks that may ask.")

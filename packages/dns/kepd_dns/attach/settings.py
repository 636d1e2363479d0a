# SPDX-License-Identifier: Apache-2.0
"""What the configuration means for names: addresses, settings of kepd-dns, and faults that show only together."""

from collections.abc import Iterator, Sequence

from agent.config.document import Configuration
from agent.drivers.interfaces.families import host_families
from agent.model.finding import Finding, shown
from agent.model.services.nft_table import Family
from kepd_dns.handover.state import Settings
from kepd_dns.upstreams.addresses import read_server
from kepd_dns.wire.names import Malformed, to_wire

ADDRESSES: dict[Family, str] = {"IPv4": "169.254.20.10", "IPv6": "fd00::a9fe:140a"}


def family_of(address: str) -> Family:
    return "IPv6" if ":" in address else "IPv4"


def addresses(configuration: Configuration, families: Sequence[Family]) -> tuple[str, ...]:
    """Of the families that this host has."""
    given = configuration.dns.addresses or tuple(ADDRESSES.values())
    return tuple(one for one in given if family_of(one) in families)


def pod_servers(configuration: Configuration) -> tuple[str, ...]:
    """What pods with ClusterFirst get as name servers."""
    if configuration.pods.cluster_dns or not configuration.dns.enabled:
        return tuple(configuration.pods.cluster_dns)
    return addresses(configuration, host_families())


def has_cluster(configuration: Configuration) -> bool:
    return configuration.services.source == "kubernetes"


def outlives(configuration: Configuration) -> bool:
    """Whether names go on while the cluster's API server is away."""
    return has_cluster(configuration) and configuration.services.outage != "off"


def is_authoritative(configuration: Configuration, *, is_alone: bool = False) -> bool:
    asked = configuration.dns.authoritative
    return asked is True or (asked == "auto" and (is_alone or not has_cluster(configuration)))


def process_settings(
    configuration: Configuration,
    listed: Sequence[str],
    networks: Sequence[str],
    services: Sequence[str],
    *,
    is_alone: bool = False,
) -> Settings:
    """`networks` are of pods, `services` of Services. `is_alone`: no API server answers."""
    dns = configuration.dns
    is_cluster = has_cluster(configuration)
    everything = tuple(dict.fromkeys((*services, *networks)))
    return Settings(
        zone=configuration.pods.cluster_domain,
        is_authoritative=is_authoritative(configuration, is_alone=is_alone),
        has_cluster=is_cluster,
        addresses=tuple(listed),
        reverse_networks=everything if is_cluster else (),
        stub_domains={zone: tuple(servers) for zone, servers in dns.stub_domains.items()},
        resolv_conf=dns.resolv_conf,
        cache_bytes=dns.cache_size,
        stale_s=dns.stale,
        ttl_min_s=dns.ttl.min,
        ttl_max_s=dns.ttl.max,
        negative_max_s=dns.negative_ttl.max,
        does_prefetch=dns.prefetch,
        per_source_qps=dns.per_source_qps,
        protected_networks=everything if dns.rebind_protection else (),
        tells_about_itself=dns.chaos,
        cuts_searches=dns.search_shortcut,
        is_negative_below=dns.negative_below,
        outlives=outlives(configuration),
        is_alone=is_alone,
    )


def dns_faults(configuration: Configuration) -> Iterator[Finding]:
    dns = configuration.dns
    if not dns.enabled:
        return
    if not configuration.services.enabled:
        text = "true without services.enabled: names and servers come from the services plane of the same process"
        yield Finding("", "dns.enabled", text)
    for key, text in (("clusterDNSService", dns.cluster_dns_service), ("upstreamService", dns.upstream_service)):
        if text and text.count("/") != 1:
            yield Finding("", f"dns.{key}", f"{shown(text)} is no Service; expected NAMESPACE/NAME")
    for zone, servers in dns.stub_domains.items():
        try:
            to_wire(zone)
        except Malformed as error:
            yield Finding("", f"dns.stubDomains.{zone}", str(error))
        for one in servers:
            if read_server(one) is None:
                what = "asks for TLS, which kepd-dns does not speak" if one.startswith("tls://") else "is no server"
                text = f"{shown(one)} {what}; expected an address, perhaps with a port, such as 10.0.0.53:5353"
                yield Finding("", f"dns.stubDomains.{zone}", text)
        if not servers:
            yield Finding("", f"dns.stubDomains.{zone}", "no server is given; expected at least one")

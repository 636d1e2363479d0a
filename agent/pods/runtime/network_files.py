# SPDX-License-Identifier: Apache-2.0
"""What a pod's hosts file and resolver say.

The hosts file, DNS policies and their limits, the host name.
"""

from collections.abc import Sequence

import msgspec

from agent.model.pods.pod import PodSpec
from agent.pods.runtime.environment import ConfigProblem

HOST_NAME_LENGTH, LONGEST_KERNEL_NAME = 63, 64
MOST_SERVERS, MOST_SEARCHES, MOST_LETTERS, LONGEST_SEARCH = 3, 32, 2048, 253
HEADER = "# Kubernetes-managed hosts file."
HOST_HEADER = "# Kubernetes-managed hosts file (host network)."
FIXED_LINES = (
    ("127.0.0.1", "localhost"),
    ("::1", "localhost ip6-localhost ip6-loopback"),
    ("fe00::0", "ip6-localnet"),
    ("fe00::0", "ip6-mcastprefix"),
    ("fe00::1", "ip6-allnodes"),
    ("fe00::2", "ip6-allrouters"),
)


class Resolver(msgspec.Struct, frozen=True):
    """Servers, search domains and options, and what had to be said about them: (reason, text)."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()


def host_name(pod: PodSpec) -> str:
    """Empty on the node's network."""
    if pod.spec.hostname_override:
        return pod.spec.hostname_override[:HOST_NAME_LENGTH].rstrip("-.")
    if pod.spec.host_network:
        return ""
    return (pod.spec.hostname or pod.name)[:HOST_NAME_LENGTH].rstrip("-.")


def kernel_name(pod: PodSpec, domain: str) -> str:
    """The name inside, which is the full one for those who ask. Raises ConfigProblem if the kernel cannot have it."""
    name = host_name(pod)
    if not pod.spec.set_hostname_as_fqdn or not pod.spec.subdomain or not name or pod.spec.hostname_override:
        return name
    full = f"{name}.{_full_domain(pod, domain)}"
    if len(full) > LONGEST_KERNEL_NAME:
        text = f"setHostnameAsFQDN: {full} has {len(full)} characters, and the name of a host at most "
        text += f"{LONGEST_KERNEL_NAME}; a shorter hostname, subdomain or namespace is possible"
        raise ConfigProblem(text, "FailedCreatePodSandBox")
    return full


def _full_domain(pod: PodSpec, domain: str) -> str:
    return f"{pod.spec.subdomain}.{pod.namespace}.svc.{domain}"


def hosts_text(pod: PodSpec, pod_ips: Sequence[str], domain: str, host_file: str) -> str:
    aliases = [f"{one.ip}\t{chr(9).join(one.hostnames)}" for one in pod.spec.host_aliases if one.hostnames]
    tail = ["", "# Entries added by HostAliases.", *aliases] if aliases else []
    if pod.spec.host_network:
        return "\n".join((HOST_HEADER, host_file.rstrip("\n"), *tail)) + "\n"
    name = host_name(pod)
    has_domain = pod.spec.subdomain and not pod.spec.hostname_override
    full = f"{name}.{_full_domain(pod, domain)}\t{name}" if has_domain else name
    lines = [f"{ip}\t{names}" for ip, names in FIXED_LINES]
    return "\n".join((HEADER, *lines, *(f"{ip}\t{full}" for ip in pod_ips if ip), *tail)) + "\n"


def parse_resolver(text: str) -> Resolver:
    servers, searches, options = [], [], []
    for line in text.splitlines():
        words = line.split("#")[0].split(";")[0].split()
        match words[:1]:
            case ["nameserver"]:
                servers += words[1:2]
            case ["search"]:
                # The end of a full name says nothing here, and a search for nothing finds nothing.
                searches = [word.rstrip(".") for word in words[1:] if word != "."]
            case ["options"]:
                options += words[1:]
    return Resolver(tuple(servers), tuple(searches), tuple(options))


def resolver_of(pod: PodSpec, node: Resolver, cluster_dns: Sequence[str], cluster_domain: str) -> Resolver:
    spec = pod.spec
    policy = spec.dns_policy
    warnings: list[tuple[str, str]] = []
    if policy == "ClusterFirst" and spec.host_network:
        policy = "Default"
    if policy in ("ClusterFirst", "ClusterFirstWithHostNet"):
        if cluster_dns:
            searches = (f"{pod.namespace}.svc.{cluster_domain}", f"svc.{cluster_domain}", cluster_domain)
            found = Resolver(tuple(cluster_dns), _merged(searches, node.searches), ("ndots:5",))
        else:
            # ClusterFirst is what a pod has that asks for nothing, and fine on a node without a cluster.
            if spec.dns_policy != "ClusterFirst":
                text = f"dnsPolicy {spec.dns_policy} needs pods.clusterDNS, which is empty; the pod gets the node's DNS"
                warnings.append(("MissingClusterDNS", text))
            found = node
    else:
        found = node if policy == "Default" else Resolver()
    if spec.dns_config is not None:
        given = spec.dns_config
        options = [f"{one.name}:{one.value}" if one.value else one.name for one in given.options]
        found = Resolver(
            _merged(found.servers, given.nameservers),
            _merged(found.searches, given.searches),
            _options(found.options, options),
        )
    return _cut(found, warnings)


def _merged(first: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *more)))


def _options(first: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """By name; the pod's win."""
    merged = {one.partition(":")[0]: one for one in first}
    merged.update({one.partition(":")[0]: one for one in more})
    return tuple(merged.values())


def _cut(found: Resolver, warnings: list[tuple[str, str]]) -> Resolver:
    servers, searches = found.servers, [one for one in found.searches if len(one) <= LONGEST_SEARCH]
    is_cut = len(searches) < len(found.searches)
    if len(servers) > MOST_SERVERS:
        servers = servers[:MOST_SERVERS]
        text = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "
        text += " ".join(servers)
        warnings.append(("DNSConfigForming", text))
    while len(searches) > MOST_SEARCHES or len(" ".join(searches)) > MOST_LETTERS:
        searches.pop()
        is_cut = True
    if is_cut:
        text = "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "
        text += " ".join(searches)
        warnings.append(("DNSConfigForming", text))
    return Resolver(servers, tuple(searches), found.options, tuple(warnings))

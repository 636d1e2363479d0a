# SPDX-License-Identifier: Apache-2.0
"""What the planes say about configuration: values that fail only together, patterns, expressions.

Also what is fine on a node and cannot work inside a pod of its cluster.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent.config.document import Configuration
from agent.config.effective import enabled_planes
from agent.config.loopback import is_for_few
from agent.config.packages import is_installed, not_installed
from agent.config.sources import FurtherCheck
from agent.host.tracing import tracing_faults
from agent.model.finding import Finding


def _check_planes(configuration: Configuration, given: frozenset[str]) -> list[Finding]:
    found = [*faults_of_sections(configuration, given), *faults_of_packages(configuration, given)]
    if configuration.services.counters.export and not configuration.telemetry.per_service:
        text = "exports a series for each Service and needs telemetry.perService: true"
        found.append(Finding("", "services.counters.export", text))
    found += [*page_faults(configuration), *tls_faults(configuration), *tracing_faults(configuration)]
    return [*found, *in_pod_faults(configuration, os.environ)]


def _planes_meant(configuration: Configuration, given: frozenset[str]) -> set[str]:
    """Those that are on, or of which the file says more. Another has nothing to find and need not be loaded."""
    return {
        *enabled_planes(configuration),
        *(path.partition(".")[0] for path in given if not path.endswith(".enabled")),
    }


def faults_of_sections(configuration: Configuration, given: frozenset[str]) -> Iterator[Finding]:
    """What the planes of the core say."""
    meant = _planes_meant(configuration, given)
    if "images" in meant:
        from agent.images.settings import image_faults

        yield from image_faults(configuration.images, given)
    if "pods" in meant:
        from agent.pods.settings import pods_faults

        yield from pods_faults(configuration.pods, is_legacy=LEGACY.exists(), memory_bytes=_memory_bytes())
    if "policies.enabled" in given and configuration.policies.enabled and not configuration.pods.enabled:
        text = (
            "true without pods.enabled, which makes the pods that policies select; expected nothing here: beside a "
            "cluster its CNI plugin enforces NetworkPolicies"
        )
        yield Finding("", "policies.enabled", text)
    if "proxy" in meant:
        from agent.proxy.settings_check import proxy_faults

        yield from proxy_faults(configuration)
    if "services" in meant:
        from agent.services.settings_check import services_faults

        yield from services_faults(configuration.services, given)


def faults_of_packages(configuration: Configuration, given: frozenset[str]) -> Iterator[Finding]:
    """What the planes say that are packages of their own; one that is switched on must be installed."""
    meant = _planes_meant(configuration, given)
    if is_installed("devices") and "devices" in meant:
        from kepd_devices.settings import device_faults

        yield from device_faults(configuration)
    if is_installed("dns") and "dns" in meant:
        from kepd_dns.attach.settings import dns_faults

        yield from dns_faults(configuration)
    for plane in enabled_planes(configuration):
        if not is_installed(plane):
            text = f"is switched on, and {not_installed(plane)}; expected it installed, or the plane switched off"
            yield Finding("", plane, text)


def page_faults(configuration: Configuration) -> Iterator[Finding]:
    """Whoever reaches the port reads the page."""
    address = configuration.api.http_address
    if configuration.telemetry.containers.page is True and not is_for_few(configuration.api):
        text = (
            f"true, so names of pods would be readable at {address or 'no address'} without TLS; expected "
            "api.httpAddress on a loopback address, such as 127.0.0.1:10241, api.httpTLS with clientCAFile, or auto "
            "here"
        )
        yield Finding("", "telemetry.containers.page", text)


def tls_faults(configuration: Configuration) -> Iterator[Finding]:
    """Files that make sense only together."""
    tls = configuration.api.http_tls
    given = {"certFile": tls.cert_file, "keyFile": tls.key_file, "clientCAFile": tls.client_ca_file}
    if any(given.values()) and not (tls.cert_file and tls.key_file):
        missing = " and ".join(name for name in ("certFile", "keyFile") if not given[name])
        text = f"{missing} not set; expected certFile and keyFile, or nothing of this section for HTTP without TLS"
        yield Finding("", "api.httpTLS", text)
    if configuration.api.door.address and not is_installed("door"):
        yield Finding(
            "", "api.door.address", f"set, and the door is {not_installed('door')}; expected it installed, or empty"
        )
    if any(given.values()) and not configuration.api.http_address:
        yield Finding("", "api.httpTLS", "set, but api.httpAddress is empty; expected an address to serve HTTPS at")


def _memory_bytes() -> int:
    """0 where this machine does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


LEGACY = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
GIVEN_TO_PODS = "KUBERNETES_SERVICE_HOST"


def is_in_pod(environment: Mapping[str, str]) -> bool:
    """The kubelet sets this in every container, whatever its pod says of service links and tokens."""
    return bool(environment.get(GIVEN_TO_PODS))


def in_pod_faults(configuration: Configuration, environment: Mapping[str, str]) -> Iterator[Finding]:
    """One finding per plane that cannot run; none outside of pods."""
    if not is_in_pod(environment):
        return
    if configuration.proxy.enabled:
        text = (
            f"true in a pod ({GIVEN_TO_PODS} is set): a kubelet needs its runtime's socket before it can start any "
            "pod, this one too, and after a reboot neither would start; expected false here, and kepd-cri.service on "
            "the node"
        )
        yield Finding("", "proxy.enabled", text)
    services, kubernetes = configuration.services, configuration.kubernetes
    is_followed = services.enabled and services.source == "kubernetes"
    if is_followed and not kubernetes.kubeconfig and not kubernetes.servers:
        text = (
            f"empty in a pod ({GIVEN_TO_PODS} is set) with the services plane: the address that pods are given is a "
            "ClusterIP, which leads nowhere until this plane has programmed it; expected a list of addresses of API "
            "servers, such as [https://10.0.0.10:6443]"
        )
        yield Finding("", "kubernetes.servers", text)


PLANE_CHECKS: tuple[FurtherCheck, ...] = (_check_planes,)

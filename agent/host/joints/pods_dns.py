# SPDX-License-Identifier: Apache-2.0
"""Pods and names: which servers their resolvers get, and where those look for a name."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from agent.config.document import Configuration
from agent.pods.attach.unit import LocalPods
from agent.pods.runtime.network_files import parse_resolver, resolver_of
from kepd_dns.attach.settings import pod_servers
from kepd_dns.attach.unit import PodsHere
from kepd_dns.view.searching import Search, search_of


def pods_for_names(configuration: Callable[[], Configuration], here: LocalPods) -> PodsHere:
    return PodsHere(here.names, partial(search_of_pod, configuration, here))


def search_of_pod(
    configuration: Callable[[], Configuration], here: LocalPods, namespace: str, name: str
) -> Search | None:
    """None: no such pod is here."""
    pod = next((one for one, _ in here.pods() if (one.namespace, one.name) == (namespace, name)), None)
    if pod is None:
        return None
    now, text = configuration(), ""
    with suppress(OSError):
        text = Path(now.pods.resolv_conf).read_text(encoding="utf-8", errors="replace")
    found = resolver_of(pod, parse_resolver(text), pod_servers(now), now.pods.cluster_domain)
    return search_of(found.searches, found.options)

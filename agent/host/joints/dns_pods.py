# SPDX-License-Identifier: Apache-2.0
"""Where the resolver of a pod of this node looks for a name (DNS-101)."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from agent.config.document import Configuration
from agent.dns.attach.settings import pod_servers
from agent.dns.view.searching import Search, search_of
from agent.model.pod import PodSpec
from agent.model.pod_state import PodState
from agent.pods.runtime.network_files import parse_resolver, resolver_of


class PodsHere(Protocol):
    def pods(self) -> Iterable[tuple[PodSpec, PodState]]: ...


def search_of_pod(
    configuration: Callable[[], Configuration], here: PodsHere, namespace: str, name: str
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

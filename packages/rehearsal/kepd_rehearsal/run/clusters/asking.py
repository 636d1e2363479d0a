# SPDX-License-Identifier: Apache-2.0
"""A cluster as its API server has it, by a kubeconfig: lists and nothing else, as a user with few rights may ask.

What comes are the documents that `kubectl get -o json` would have written, so a rehearsal does not know the difference.
Never: writes, watches, or shows anything of the user but what the server says of it.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from agent.cli.session import CommandFailed
from agent.drivers.clock.driver import SystemClock
from agent.drivers.kube import errors
from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.connection import KubeTiming
from agent.drivers.kube.kubeconfig import load_kubeconfig
from agent.drivers.kube.resource import Resource
from agent.model.clock import Clock
from agent.model.exit_codes import DEADLINE, NOT_PERMITTED, UNREACHABLE, USAGE
from agent.topology.manifest.objects import SERVICE_LABEL, Document
from kepd_rehearsal.run.clusters.shedding import Shedding, is_of_the_past

Plain = dict[str, Any]
Tell = Callable[[str], None]
Answer = tuple[list[Document], tuple[str, ...]]

BUDGETS = "poddisruptionbudgets"
ROLE = "kepd-what-if"
ASKED: tuple[tuple[str, Resource[Plain]], ...] = (
    ("Node", Resource("", "v1", "nodes", dict)),
    ("Pod", Resource("", "v1", "pods", dict)),
    ("Service", Resource("", "v1", "services", dict)),
    ("ReplicationController", Resource("", "v1", "replicationcontrollers", dict)),
    # A slice without the label is of no Service.
    ("EndpointSlice", Resource("discovery.k8s.io", "v1", "endpointslices", dict, label_selector=SERVICE_LABEL)),
    ("Deployment", Resource("apps", "v1", "deployments", dict)),
    ("ReplicaSet", Resource("apps", "v1", "replicasets", dict)),
    ("StatefulSet", Resource("apps", "v1", "statefulsets", dict)),
    ("DaemonSet", Resource("apps", "v1", "daemonsets", dict)),
    ("PodDisruptionBudget", Resource("policy", "v1", BUDGETS, dict)),
)
NEEDED = ("nodes", "pods", "services")
"""A server without one of the others, such as kepd's own door, has none of them; without these there is no cluster."""
QPS, BURST = 50.0, 20
MOST_CONNECT_S = 10.0
EXIT_CODES: tuple[tuple[type[errors.KubeError], int], ...] = (
    (errors.AccessInvalid, USAGE),
    (errors.CredentialsFailed, NOT_PERMITTED),
    (errors.Unauthenticated, NOT_PERMITTED),
    (errors.Denied, NOT_PERMITTED),
    (errors.Unanswered, DEADLINE),
    (errors.StreamSilent, DEADLINE),
)


def asked_cluster(kubeconfig: Path, context: str, timeout_s: float, tell: Tell, clock: Clock | None = None) -> Answer:
    """Documents, and what is worth saying about them. Raises CommandFailed."""
    if sys.platform != "linux":
        text = "--kubeconfig works on Linux; elsewhere let kubectl write the files and give them with --from-files"
        raise CommandFailed(text, USAGE)
    try:
        return asyncio.run(_asked(kubeconfig, context, timeout_s, tell, clock or SystemClock()))
    except errors.KubeError as error:
        code = next((code for kind, code in EXIT_CODES if isinstance(error, kind)), UNREACHABLE)
        more = "; --timeout allows more" if code == DEADLINE else ""
        raise CommandFailed(f"{error}{more}", code) from error


async def _asked(kubeconfig: Path, context: str, timeout_s: float, tell: Tell, clock: Clock) -> Answer:
    access = load_kubeconfig(kubeconfig, context)
    timing = KubeTiming(
        connect_s=min(timeout_s, MOST_CONNECT_S), answer_s=timeout_s, body_silence_s=timeout_s, page_s=6 * timeout_s
    )
    client = KubeClient(access, clock=clock, qps=QPS, burst=BURST, timing=timing)
    server, shedding = access.cluster.servers[0], Shedding()
    documents: list[Document] = []
    notes: list[str] = []
    denied: dict[str, errors.Denied] = {}
    try:
        for kind, resource in ASKED:
            tell(f"reading {resource.plural} of {server}")
            try:
                items = await client.all_of(resource, _taker(kind, resource, shedding))
            except errors.Denied as error:
                denied[resource.plural] = error
            except errors.Missing:
                if resource.plural in NEEDED:
                    raise
                notes.append(f"{server} has no {resource.plural}; a rehearsal goes on without them")
            else:
                present = [one for one in items if not is_of_the_past(one)]
                documents.append(Document(resource.plural, {"apiVersion": "v1", "kind": "List", "items": present}))
    finally:
        await client.close()
    if denied.keys() - {BUDGETS}:
        raise CommandFailed(_refused(denied.values()), NOT_PERMITTED)
    notes += [f"{error}; budgets are not looked at" for error in denied.values()]
    return documents, tuple(notes)


def _taker(kind: str, resource: Resource[Plain], shedding: Shedding) -> Callable[[Plain], Plain]:
    """Items of a list do not repeat what they are."""
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    return lambda item: shedding.object({**item, "apiVersion": version, "kind": kind})


def _refused(denied: Iterable[errors.Denied]) -> str:
    named = ",".join(f"{one.plural}.{one.group}" if one.group else one.plural for _, one in ASKED)
    lines = ["this user may not read what a rehearsal needs:", *(f"  {error}" for error in denied)]
    by_hand = f"kubectl create clusterrole {ROLE} --verb=list --resource={named}"
    return "\n".join([*lines, f"the role for it is in deploy/what-if.yaml, or: {by_hand}"])

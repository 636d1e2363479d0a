# SPDX-License-Identifier: Apache-2.0
"""Which pod, and which of its ports, `kepctl port-forward` leads to: a pod's own, or those behind a Service."""

from collections.abc import Sequence

from agent.cli.client import Client
from agent.cli.commands.pods.pods import SERVICE as PODS
from agent.cli.objects.pod_names import find_pod, given_pod
from agent.cli.session import CommandFailed
from agent.kinds.registry import BY_WORD
from agent.kinds.services.services import SERVICE as SERVICES
from agent.model.exit_codes import CONFLICT, NOT_FOUND, USAGE
from agent.wire.kepd.v1 import list_pb2, pod_pb2
from agent.wire.kepd.v1 import service_proxy_pb2 as pb

MOST_PORT = 65535
Pair = tuple[int, int]


def found_target(daemon: Client, target: str, ports: Sequence[str]) -> tuple[str, str, list[Pair]]:
    """Namespace and name of the pod, and of each port the local one (0: any) with that of the pod."""
    word, slash, rest = target.partition("/")
    kind = BY_WORD.get(word.lower()) if slash else None
    if kind is BY_WORD["services"]:
        return _behind_service(daemon, *given_pod(daemon, rest), [_split(one) for one in ports])
    namespace, name = find_pod(daemon, target)
    request = pod_pb2.GetPodRequest(namespace=namespace, name=name)
    pod = daemon.call(f"{PODS}/GetPod", request, pod_pb2.GetPodResponse).pod
    known = {one.name: one.port for one in pod.ports}
    return namespace, name, [(local, _number(remote, known, f"pod {name}")) for local, remote in map(_split, ports)]


def _split(text: str) -> tuple[int, str]:
    """`PORT`, `LOCAL:PORT` or `:PORT`; a port of the other side may be a name, and then the local one is any."""
    local, colon, remote = text.rpartition(":")
    if not colon:
        local = remote if remote.isdecimal() else "0"
    local = local or "0"
    if not remote or not local.isdecimal() or int(local) > MOST_PORT:
        right = f"expected PORT, LOCAL:PORT or :PORT, up to {MOST_PORT}, or a port's name after the colon"
        raise CommandFailed(f'"{text}" is not a port; {right}', USAGE)
    return int(local), remote


def _number(text: str, known: dict[str, int], where: str) -> int:
    if text.isdecimal():
        if not 0 < int(text) <= MOST_PORT:
            raise CommandFailed(f'"{text}" is not a port; expected a number from 1 to {MOST_PORT}', USAGE)
        return int(text)
    if text not in known:
        names = f"it has {', '.join(sorted(known))}" if known else "none of its ports has a name"
        raise CommandFailed(f'{where} has no port "{text}"; {names}', NOT_FOUND)
    return known[text]


def _behind_service(
    daemon: Client, namespace: str, name: str, wanted: Sequence[tuple[int, str]]
) -> tuple[str, str, list[Pair]]:
    """One pod of this node that all the ports have ready; the ports are those of its endpoint."""
    options = list_pb2.ListOptions(filter=f"namespace={namespace},name={name}")
    try:
        answer = daemon.call(
            f"{SERVICES}/ListServices", pb.ListServicesRequest(options=options), pb.ListServicesResponse
        )
    except CommandFailed as error:
        if error.exit_code == CONFLICT:
            raise CommandFailed(f"Service {namespace}/{name}: {error}", CONFLICT) from error
        raise
    if not answer.services:
        raise CommandFailed(f'no Service "{namespace}/{name}"', NOT_FOUND)
    names = [_port_name(answer.services[0], port) for _, port in wanted]
    request = pb.ListEndpointsRequest(service=f"{namespace}/{name}")
    endpoints = daemon.call(f"{SERVICES}/ListEndpoints", request, pb.ListEndpointsResponse).endpoints
    pods = daemon.call(f"{PODS}/ListPods", pod_pb2.ListPodsRequest(), pod_pb2.ListPodsResponse).pods
    for pod in pods:
        if not pod.ip:
            continue
        ports = {
            one.port: int(one.endpoint.rpartition(":")[2])
            for one in endpoints
            if one.endpoint.rpartition(":")[0].strip("[]") == pod.ip and one.state == "ready"
        }
        if all(one in ports for one in names):
            pairs = [(local, ports[one]) for (local, _), one in zip(wanted, names, strict=True)]
            return pod.namespace, pod.name, pairs
    text = f"Service {namespace}/{name} has no ready endpoint in a pod of this node; kepctl describe service shows all"
    raise CommandFailed(text, CONFLICT)


def _port_name(service: pb.Service, text: str) -> str:
    """The name of a Service's port, by name or number."""
    for one in service.ports:
        if text in (one.name, str(one.port)) and text:
            return one.name
    known = ", ".join(sorted({f"{one.name or '-'} ({one.port})" for one in service.ports}))
    raise CommandFailed(f'Service {service.namespace}/{service.name} has no port "{text}"; it has {known}', NOT_FOUND)

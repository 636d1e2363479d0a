# SPDX-License-Identifier: Apache-2.0
"""Which pod, and which of its ports, `kepctl port-forward` leads to: a pod's own, or those behind a Service."""

from collections.abc import Sequence

from agent.cli.client import Client
from agent.cli.objects.listed import got, objects
from agent.cli.objects.pod_names import find_pod, given_pod
from agent.cli.session import CommandFailed
from agent.kinds.parts import items, part
from agent.kinds.pods.pod_parts import name_of, namespace_of, ports_of, told
from agent.kinds.registry import BY_WORD
from agent.kinds.selection import Scope
from agent.kinds.services.services import ports_of as programmed_ports
from agent.kinds.table import Object, names_of
from agent.model.exit_codes import CONFLICT, NOT_FOUND, USAGE

MOST_PORT = 65535
Pair = tuple[int, int]


def found_target(daemon: Client, target: str, ports: Sequence[str]) -> tuple[str, str, list[Pair]]:
    """Namespace and name of the pod, and of each port the local one (0: any) with that of the pod."""
    word, slash, rest = target.partition("/")
    kind = BY_WORD.get(word.lower()) if slash else None
    if kind is BY_WORD["services"]:
        return _behind_service(daemon, *given_pod(daemon, rest), [_split(one) for one in ports])
    namespace, name = find_pod(daemon, target)
    known = ports_of(got(daemon, "pods", namespace, name))
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
    try:
        services = [made for made in objects(daemon, "services", Scope(namespace)) if names_of(made)[1] == name]
    except CommandFailed as error:
        if error.exit_code == CONFLICT:
            raise CommandFailed(f"Service {namespace}/{name}: {error}", CONFLICT) from error
        raise
    if not services:
        raise CommandFailed(f'no Service "{namespace}/{name}"', NOT_FOUND)
    names = [_port_name(services[0], port) for _, port in wanted]
    ports = _ready_ports(objects(daemon, "endpoints", Scope(namespace, f"kubernetes.io/service-name={name}")))
    for pod in objects(daemon, "pods"):
        numbers = ports.get(told(pod, "podIP"), {})
        if all(port in numbers for port in names):
            pairs = [(local, numbers[port]) for (local, _), port in zip(wanted, names, strict=True)]
            return namespace_of(pod), name_of(pod), pairs
    text = f"Service {namespace}/{name} has no ready endpoint in a pod of this node; kepctl describe service shows all"
    raise CommandFailed(text, CONFLICT)


def _ready_ports(slices: Sequence[Object]) -> dict[str, dict[str, int]]:
    """Of each address its ports by name."""
    ports: dict[str, dict[str, int]] = {}
    for made in slices:
        for endpoint in items(made, "endpoints"):
            if part(endpoint, "conditions").get("ready"):
                numbers = {port["name"]: port["port"] for port in items(made, "ports")}
                ports.setdefault(endpoint["addresses"][0], {}).update(numbers)
    return ports


def _port_name(service: Object, text: str) -> str:
    """The name of a Service's port, by name or number."""
    for port in programmed_ports(service):
        if text in (port["name"], str(port["port"])) and text:
            return str(port["name"])
    known = ", ".join(sorted({f"{port['name'] or '-'} ({port['port']})" for port in programmed_ports(service)}))
    raise CommandFailed(f'Service {"/".join(names_of(service))} has no port "{text}"; it has {known}', NOT_FOUND)

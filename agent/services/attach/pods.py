# SPDX-License-Identifier: Apache-2.0
"""Services that choose pods of this node by labels, on a node without an endpoint controller.

The slices such a controller would write for local standalone pods: one per Service and family, for Services with a
selector and without any EndpointSlice among the manifests. Finished pods are no endpoints, terminating ones serve.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.model.kube_objects import Conditions, EndpointObject, EndpointPort, EndpointSlice, SliceLabels, SliceMeta
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.services.objects.addresses import read_address
from agent.services.view.reasons import SelectedPod, SelectedPods

FINISHED = ("Succeeded", "Failed")


class LocalPod(msgspec.Struct, frozen=True, kw_only=True):
    """What a Service needs to know of a pod. `ports` are the named ones, by name and protocol."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    ip: str
    is_ready: bool
    is_terminating: bool
    ports: Mapping[tuple[str, str], int]
    hostname: str = ""
    subdomain: str = ""


class PodChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A Service's wish. `targets` are port name, protocol and target: a number, or the name of a container's port."""

    namespace: str
    name: str
    selector: Mapping[str, str]
    targets: tuple[tuple[str, str, int | str], ...]
    takes_unready: bool = False


def pod_choice(namespace: str, name: str, content: Mapping[str, object]) -> PodChoice | None:
    """Of a Service manifest that was found faultless; None: it has no selector."""
    spec = content.get("spec")
    selector = spec.get("selector") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(selector, Mapping) or not selector:
        return None
    ports = spec.get("ports")
    targets = [
        (
            str(port.get("name") or ""),
            str(port.get("protocol") or "TCP"),
            port.get("targetPort") or port.get("port") or 0,
        )
        for port in (ports if isinstance(ports, list) else ())
        if isinstance(port, Mapping)
    ]
    return PodChoice(
        namespace=namespace,
        name=name,
        selector={str(key): str(value) for key, value in selector.items()},
        targets=tuple(targets),
        takes_unready=spec.get("publishNotReadyAddresses") is True,
    )


def local_pods(pods: Iterable[tuple[PodSpec, PodState]]) -> Iterator[LocalPod]:
    for pod, state in pods:
        if not state.ip or state.phase in FINISHED:
            continue
        yield LocalPod(
            namespace=pod.namespace,
            name=pod.name,
            labels=dict(pod.labels),
            ip=state.ip,
            is_ready=_is_ready(state),
            is_terminating=state.is_terminating,
            ports=_named_ports(pod),
            hostname=pod.spec.hostname,
            subdomain=pod.spec.subdomain,
        )


def selected_pods(choice: PodChoice, pods: Iterable[tuple[PodSpec, PodState]]) -> SelectedPods:
    """Also those without an address, which no slice has."""
    mine = [(pod, state) for pod, state in pods if pod.namespace == choice.namespace and state.phase not in FINISHED]
    chosen = {pod.key: _chooses(choice, dict(pod.labels)) for pod, _ in mine}
    return SelectedPods(
        selector=choice.selector,
        targets=choice.targets,
        chosen=[_selected(pod, state) for pod, state in mine if chosen[pod.key]],
        others=[_selected(pod, state) for pod, state in mine if not chosen[pod.key]],
    )


def _selected(pod: PodSpec, state: PodState) -> SelectedPod:
    return SelectedPod(
        name=pod.name,
        labels=dict(pod.labels),
        is_ready=_is_ready(state),
        cause=state.cause or state.status,
        ports=_named_ports(pod),
    )


def _is_ready(state: PodState) -> bool:
    return any(one.type == "Ready" and one.is_true for one in state.conditions)


def _named_ports(pod: PodSpec) -> dict[tuple[str, str], int]:
    return {
        (port.name, port.protocol or "TCP"): port.container_port
        for container in pod.containers
        for port in container.fields.ports
        if port.name
    }


def slices_of_pods(choices: Iterable[PodChoice], pods: Iterable[LocalPod], node: str) -> dict[str, EndpointSlice]:
    """By name within all namespaces. A pod that lacks a named port is no endpoint of that port."""
    known = list(pods)
    found: dict[str, EndpointSlice] = {}
    for choice in choices:
        chosen = [pod for pod in known if _is_chosen(choice, pod)]
        for family in ("IPv4", "IPv6"):
            mine = [pod for pod in chosen if _family(pod) == family]
            for number, (target, members) in enumerate(sorted(_by_numbers(choice, mine).items())):
                piece = _slice(choice, family, number, target, members, node)
                found[f"{choice.namespace}/{piece.metadata.name}"] = piece
    return found


def _is_chosen(choice: PodChoice, pod: LocalPod) -> bool:
    return pod.namespace == choice.namespace and _chooses(choice, pod.labels)


def _chooses(choice: PodChoice, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in choice.selector.items())


def _family(pod: LocalPod) -> str:
    address = read_address(pod.ip)
    return address.family if address is not None else ""


Numbers = tuple[tuple[str, str, int], ...]


def _by_numbers(choice: PodChoice, pods: Iterable[LocalPod]) -> dict[Numbers, list[LocalPod]]:
    """Pods whose named ports have other numbers need a slice of their own."""
    found: dict[Numbers, list[LocalPod]] = {}
    for pod in pods:
        numbers = tuple(_numbers(choice, pod))
        if numbers or not choice.targets:
            found.setdefault(numbers, []).append(pod)
    return found


def _numbers(choice: PodChoice, pod: LocalPod) -> Iterator[tuple[str, str, int]]:
    for name, protocol, target in choice.targets:
        number = target if isinstance(target, int) else pod.ports.get((target, protocol), 0)
        if number:
            yield name, protocol, number


def _slice(
    choice: PodChoice, family: str, number: int, ports: Numbers, pods: list[LocalPod], node: str
) -> EndpointSlice:
    endpoints = []
    for pod in sorted(pods, key=lambda one: one.ip):
        is_serving = pod.is_ready or choice.takes_unready
        is_ready = choice.takes_unready or (pod.is_ready and not pod.is_terminating)
        conditions = Conditions(is_ready, is_serving, pod.is_terminating)
        # A pod has a name of its own where it names the Service as its subdomain.
        hostname = pod.hostname if pod.subdomain == choice.name else ""
        endpoints.append(EndpointObject((pod.ip,), conditions, node, hostname=hostname or None))
    return EndpointSlice(
        metadata=SliceMeta(
            name=f"{choice.name}-local-{family.lower()}-{number}",
            namespace=choice.namespace,
            labels=SliceLabels(choice.name),
        ),
        address_type=family,
        endpoints=tuple(endpoints),
        ports=tuple(EndpointPort(name, protocol, port) for name, protocol, port in ports),
    )

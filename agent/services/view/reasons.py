# SPDX-License-Identifier: Apache-2.0
"""Why traffic of a Service does not arrive, or not everywhere: the cause, what the objects say, and what helps.

The list of Services, their descriptions and explanations show these. The most important comes first. Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from agent.model.finding import printable, suggestion
from agent.model.reason import Reason
from agent.model.services.nft_table import Family
from agent.model.services.service import Backend, ServiceKey, SliceFacts
from agent.services.routes.frontends import PortPlan
from agent.services.routes.selection import Place

MOST_NAMED = 3
UNTIL_READY = "an endpoint is used as soon as it is ready"


class SelectedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of this node that a Service chooses, or may have meant. `cause`: why it is not ready; `ports` are its named
    ones with their protocols."""

    name: str
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    is_ready: bool = False
    cause: str = ""
    ports: Mapping[tuple[str, str], int] = msgspec.field(default_factory=dict)


class SelectedPods(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the selector of a Service chooses here, and the other pods of its namespace. `targets` are port name,
    protocol and the number or name of a container's port."""

    selector: Mapping[str, str]
    targets: Sequence[tuple[str, str, int | str]] = ()
    chosen: Sequence[SelectedPod] = ()
    others: Sequence[SelectedPod] = ()


class PortSituation(msgspec.Struct, frozen=True, kw_only=True):
    """One port in one family. `offered`: the ports, as NAME/PROTOCOL, of slices with endpoints."""

    family: Family
    plan: PortPlan
    backends: Sequence[Backend]
    offered: Sequence[str] = ()


class ServiceSituation(msgspec.Struct, frozen=True, kw_only=True):
    """`findings` are complaints about the Service; `pods` is None where no pod of this node is chosen by labels."""

    key: ServiceKey
    place: Place
    findings: Sequence[str] = ()
    ports: Sequence[PortSituation] = ()
    pods: SelectedPods | None = None
    whose: str = ""
    """Why it is not for this kepd."""


def offered_ports(slices: Iterable[SliceFacts]) -> list[str]:
    """As NAME/PROTOCOL, of slices that have endpoints."""
    return sorted({f"{name or '(no name)'}/{kind}" for one in slices if one.endpoints for (name, kind), _ in one.ports})


def meant(key: ServiceKey, known: Collection[ServiceKey]) -> str:
    """Where none is called so: that of the same name elsewhere, else one whose name is nearly the same."""
    there = next((str(one) for one in sorted(known) if one.name == key.name), "")
    return f"; there is {there}" if there else suggestion(str(key), map(str, known))


def service_reasons(at: ServiceSituation) -> Iterator[Reason]:
    """None for a Service whose endpoints all get traffic."""
    told: set[str] = set()
    for reason in _all(at):
        if reason.cause not in told:
            told.add(reason.cause)
            yield reason


def _all(at: ServiceSituation) -> Iterator[Reason]:
    if at.whose:
        yield Reason(cause=at.whose, command=f"kepctl explain dns {at.key.name}.{at.key.namespace}")
        return
    if not at.ports:
        words = "; ".join(at.findings)
        yield Reason(
            cause="it is not programmed on this node, so nothing answers at its address",
            words=words,
            next="kepd looks at it again when it changes",
            command=f"kepctl edit service {_target(at.key)}" if words else f"kepctl describe service {_target(at.key)}",
        )
        return
    without = [one for one in at.ports if not one.plan.selection.has_any]
    for one in without:
        yield _without_endpoints(at, one)
    for text in at.findings:
        yield Reason(
            cause="a part of it is left out",
            words=text,
            next="the rest of it works; kepd looks again when an object changes",
            command=f"kepctl edit service {_target(at.key)}",
        )
    for one in at.ports:
        if one not in without:
            yield from _partly(at, one)
    yield from _closed(at)


def _port(one: PortSituation) -> str:
    port = one.plan.port
    return f'port "{port.name}"' if port.name else f"port {port.port}/{port.protocol}"


def _without_endpoints(at: ServiceSituation, one: PortSituation) -> Reason:
    if at.pods is not None:
        return _of_pods(at, at.pods, one)
    slices = f"kubectl get endpointslices -n {at.key.namespace} -l kubernetes.io/service-name={at.key.name}"
    if one.backends:
        words = ", ".join(_named_backend(backend) for backend in one.backends[:MOST_NAMED])
        cause = f"none of the {len(one.backends)} endpoints of {_port(one)} is ready"
        return Reason(cause=cause, words=words, next=UNTIL_READY, command=slices)
    if one.offered:
        return Reason(
            cause=f"no EndpointSlice of it has {_port(one)} with protocol {one.plan.port.protocol}",
            words=f"they have {', '.join(one.offered)}",
            next=UNTIL_READY,
            command=slices,
        )
    return Reason(
        cause=f"no EndpointSlice has an endpoint for it in {one.family}",
        words="it has no selector that chooses pods of this node",
        next=UNTIL_READY,
        command=slices,
    )


def _of_pods(at: ServiceSituation, pods: SelectedPods, one: PortSituation) -> Reason:
    labels = ",".join(f"{key}={value}" for key, value in sorted(pods.selector.items()))
    namespace = "" if at.key.namespace == "default" else f" -n {at.key.namespace}"
    if not pods.chosen:
        have = "; ".join(
            f"{pod.name} has {','.join(f'{key}={value}' for key, value in sorted(pod.labels.items())) or 'no labels'}"
            for pod in pods.others[:MOST_NAMED]
        )
        return Reason(
            cause=f"its selector {printable(labels)} matches no pod of namespace {at.key.namespace}",
            words=printable(have) or "there is no pod in it",
            next="a pod with these labels is used as soon as it is ready",
            command=f"kepctl get pods{namespace} --show-labels",
        )
    ready = [pod for pod in pods.chosen if pod.is_ready]
    if not ready:
        first = pods.chosen[0]
        return Reason(
            cause=f"none of the {len(pods.chosen)} pods that its selector {printable(labels)} chooses is ready",
            words=f"{first.name}: {first.cause or 'it is not ready'}",
            next=UNTIL_READY,
            command=f"kepctl explain pod {first.name}{namespace}",
        )
    name, protocol = one.plan.port.name, one.plan.port.protocol
    target = next((target for known, kind, target in pods.targets if (known, kind) == (name, protocol)), 0)
    if isinstance(target, str):
        known = [f"{port} {number}/{kind}" for pod in ready[:1] for (port, kind), number in pod.ports.items()]
        has = f"{ready[0].name} has {', '.join(known)}" if known else f"{ready[0].name} has no named port"
        return Reason(
            cause=f'no container of its pods has a port named "{printable(target)}" with protocol {protocol}',
            words=printable(has),
            next="the port answers as soon as a ready pod has it",
            command=f"kepctl edit service {_target(at.key)}",
        )
    return Reason(
        cause=f"its pods have no address of {one.family}",
        words=f"{ready[0].name} is ready",
        next="the other family answers",
        command=f"kepctl describe pod {ready[0].name}{namespace}",
    )


def _partly(at: ServiceSituation, one: PortSituation) -> Iterator[Reason]:
    selection = one.plan.selection
    closed = sorted({front.kind for front in one.plan.frontends if front.is_local_policy and front.verdict})
    if closed:
        elsewhere = sorted({backend.node or "(no node)" for backend in one.backends})
        yield Reason(
            cause=f"no endpoint of {_port(one)} is on this node, and its policy Local forbids others "
            f"({', '.join(closed)})",
            words=f"its {len(one.backends)} endpoints are on {', '.join(elsewhere[:MOST_NAMED])}",
            next="it answers as soon as an endpoint on this node is ready",
            command=f"kepctl get endpoints {_target(at.key)}",
        )
    for hints in selection.ignored:
        here = at.place.zone if hints.kind == "zone" else at.place.node
        if hints.missing:
            cause, words = f"its {hints.kind} hints do not count", f"{hints.missing} ready endpoints have none"
        elif not here:
            cause, words = f"its {hints.kind} hints do not count", f"this node has no {hints.kind}"
        else:
            cause, words = f"none of its {hints.kind} hints names this {hints.kind} ({here})", _hinted(one, hints.kind)
        yield Reason(
            cause=cause,
            words=words,
            next="all its endpoints are used",
            command=f"kepctl explain hints {at.key}",
        )
    if selection.last_resort and any(backend.is_ready for backend in one.backends):
        yield Reason(
            cause=f"all endpoints of {_port(one)} are dead by checks while no API server answers",
            words="a check that fails everywhere is not believed, so all get traffic",
            next="one that answers gets all of it",
            command="kepctl explain outage",
        )
    elif selection.last_resort:
        is_unready = selection.last_resort == "unready"
        yield Reason(
            cause=f"no endpoint of {_port(one)} is ready",
            words="its Service uses all of them then" if is_unready else "those that end still serve, and are used",
            next=UNTIL_READY,
            command=f"kepctl get endpoints {_target(at.key)}",
        )


def _hinted(one: PortSituation, kind: str) -> str:
    named = {name for backend in one.backends for name in (backend.zones if kind == "zone" else backend.nodes)}
    return f"they name {', '.join(sorted(named)[:MOST_NAMED])}" if named else ""


def _closed(at: ServiceSituation) -> Iterator[Reason]:
    for one in at.ports:
        for front in one.plan.frontends:
            if front.is_restricted or front.ranges:
                ranges = ", ".join(item.text for item in front.ranges)
                yield Reason(
                    cause="only callers from its source ranges are let in",
                    words=ranges or "none of them can be used, so nobody is",
                    next="others get no answer",
                    command=f"kepctl trace --from CALLER --to {front.ip.text if front.ip else 'NODE'}:{front.port}",
                )


def _named_backend(one: Backend) -> str:
    return f"{one.key} is {'ending' if one.is_terminating else 'not ready'}"


def _target(key: ServiceKey) -> str:
    return key.name if key.namespace == "default" else f"{key.name} -n {key.namespace}"

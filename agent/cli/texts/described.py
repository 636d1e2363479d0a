# SPDX-License-Identifier: Apache-2.0
"""The sections of `kepctl describe`, in kubectl's order and words; each error is there once."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC

from google.protobuf.timestamp_pb2 import Timestamp

from agent.cli.texts.described_container import containers_of, manifest_lines
from agent.kinds.ages import age
from agent.wire.kepd.v1 import node_pb2, pod_pb2, service_proxy_pb2

WIDTH = 18
KINDS = (("init", "Init Containers"), ("sidecar", "Sidecars"), ("main", "Containers"), ("ephemeral", "Ephemeral"))


def pod_lines(pod: pod_pb2.Pod, waits_for: str, events: Sequence[node_pb2.Event]) -> Iterator[str]:
    yield from entries_of("", _of_pod(pod, _said_once(pod, waits_for)))
    manifests = containers_of(pod.spec)
    for kind, title in KINDS:
        chosen = [one for one in pod.containers if one.kind == kind]
        if chosen:
            yield f"{title}:"
        for one in chosen:
            yield f"  {one.name}:"
            yield from entries_of("    ", _of_container(one))
            yield from manifest_lines(manifests[one.name]) if one.name in manifests else ()
    yield "Conditions:"
    rows = [(one.type, str(one.status), one.reason, one.message) for one in pod.conditions]
    yield from grid(("Type", "Status", "Reason", "Message"), rows)
    yield "Volumes:" if pod.volumes else "Volumes:  <none>"
    for volume in pod.volumes:
        yield f"  {volume.name}:  {volume.source}"
        yield from (f"    {mount}" for mount in volume.mounts)
    yield f"{'QoS Class:':{WIDTH}} {pod.qos_class}"
    yield from event_lines(events)


def _said_once(pod: pod_pb2.Pod, waits_for: str) -> str:
    """What a container says itself is not repeated."""
    for one in pod.containers:
        if one.message and one.message in waits_for:
            waits_for = waits_for.replace(one.message, one.reason)
    return waits_for


def _of_pod(pod: pod_pb2.Pod, waits_for: str) -> Iterator[tuple[str, str]]:
    yield "Name", pod.name
    yield "Namespace", pod.namespace
    yield "UID", pod.uid
    yield "Created", moment(pod.created_at)
    yield "Labels", joined(pod.labels)
    yield "Status", pod.status if pod.status in ("", pod.phase) else f"{pod.status} (phase {pod.phase})"
    yield "Reason", pod.reason
    # The list has it there for who sees no more than that.
    yield "Message", pod.message.removesuffix(f"waits for: {pod.waits_for}").removesuffix("; ")
    yield "Waits For", waits_for
    yield "IP", pod.ip
    yield "Controlled By", f"{pod.owner.kind}/{pod.owner.name}" if pod.HasField("owner") else ""
    yield "Manifest", pod.manifest
    if pod.resources.requests or pod.resources.limits:
        yield "Requests", joined(pod.resources.requests)
        yield "Limits", joined(pod.resources.limits)


def _of_container(one: pod_pb2.Container) -> Iterator[tuple[str, str]]:
    yield "Container ID", one.id
    yield "Image", one.image
    yield "Image ID", one.image_id
    yield "State", one.state
    yield "  Reason", one.reason
    yield "  Message", one.message
    yield "  Started", moment(one.started_at)
    if one.state == "Terminated":
        yield "  Exit Code", str(one.exit_code)
        yield "  Finished", moment(one.finished_at)
    if one.HasField("last"):
        yield "Last State", "Terminated"
        yield "  Reason", one.last.reason
        yield "  Message", one.last.message
        yield "  Exit Code", str(one.last.exit_code)
        yield "  Started", moment(one.last.started_at)
        yield "  Finished", moment(one.last.finished_at)
    yield "Ready", str(one.ready)
    yield "Restart Count", str(one.restart_count)
    yield "Requests", joined(one.resources.requests) or "none"
    yield "Limits", joined(one.resources.limits) or "none"


def service_lines(
    service: service_proxy_pb2.Service,
    endpoints: Sequence[service_proxy_pb2.Endpoint],
    events: Sequence[node_pb2.Event],
) -> Iterator[str]:
    affinity = f"ClientIP, {service.affinity_s} s" if service.affinity_s else "None"
    head = (
        ("Name", service.name),
        ("Namespace", service.namespace),
        ("Type", service.type),
        ("IPs", ", ".join(service.cluster_ips) or "none"),
        ("External IPs", ", ".join(service.external_ips)),
        ("Session Affinity", affinity),
        ("Policies", service.policies),
        ("Programmed", "yes" if service.is_programmed else "no"),
        ("Findings", "; ".join(service.findings)),
    )
    yield from entries_of("", iter(head))
    yield "Ports:"
    ports = [
        (one.name or "-", f"{one.port}/{one.protocol}", str(one.node_port or "-"), one.family,
         f"{one.used} of {one.total}", one.verdict or "ok")
        for one in service.ports
    ]  # fmt: skip
    yield from grid(("Name", "Port", "NodePort", "Family", "Endpoints Used", "State"), ports)
    yield "Endpoints:" if endpoints else "Endpoints:  <none>"
    rows = [
        (one.endpoint, one.port or "-", one.node or "-", one.state, "yes" if one.is_used else "no", one.reason)
        for one in endpoints
    ]
    yield from grid(("Address", "Port", "Node", "State", "Used", "Why"), rows)
    yield from event_lines(events)


def node_lines(
    node: node_pb2.Node,
    planes: Sequence[node_pb2.Plane],
    pods: Sequence[pod_pb2.Pod],
    events: Sequence[node_pb2.Event],
) -> Iterator[str]:
    runtime = f"{node.runtime.name} {node.runtime.version}".strip() if node.runtime.is_connected else "away"
    head = (
        ("Name", node.name),
        ("Labels", joined(node.labels)),
        ("Addresses", ", ".join(node.addresses)),
        ("Unschedulable", f"drained by {node.drain.by}" if node.HasField("drain") else "false"),
        ("Conditions", ", ".join(node.conditions) or "none"),
        ("Kernel", node.kernel_version),
        ("Cgroups", f"v{node.cgroup_version}"),
        ("Runtime", f"{runtime} at {node.runtime.endpoint}"),
        ("kepd", f"{node.kepd_version}, pid {node.pid}, since {moment(node.started_at)}"),
    )
    yield from entries_of("", iter(head))
    yield "Planes:"
    states = [
        (one.name, node_pb2.PlaneState.Name(one.state).removeprefix("PLANE_STATE_").lower(), one.message)
        for one in planes
    ]
    yield from grid(("Name", "State", "Message"), states)
    yield "Pods:" if pods else "Pods:  <none>"
    rows = [(one.namespace, one.name, one.status or one.phase, one.qos_class, age(one.created_at)) for one in pods]
    yield from grid(("Namespace", "Name", "Status", "QoS", "Age"), rows)
    yield from event_lines(events)


def event_lines(events: Sequence[node_pb2.Event]) -> Iterator[str]:
    yield "Events:" if events else "Events:  <none>"
    rows = [
        (one.type, one.reason, f"{age(one.last_seen)}{f' (x{one.count})' if one.count > 1 else ''}", one.message)
        for one in events
    ]
    yield from grid(("Type", "Reason", "Age", "Message"), rows)


def entries_of(indent: str, entries: Iterator[tuple[str, str]]) -> Iterator[str]:
    """What is empty is left out; lines of a message stand below each other."""
    for title, value in entries:
        if value:
            head = f"{indent}{title + ':':{WIDTH}} "
            yield head + value.strip("\n").replace("\n", "\n" + " " * len(head))


def grid(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    whole = [titles, *([" ".join(cell.split()) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in whole) for place in range(len(titles))]
    for row in whole:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def joined(given: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={given[name]}" for name in sorted(given))


def moment(stamp: Timestamp) -> str:
    if not stamp.seconds:
        return ""
    return f"{stamp.ToDatetime(UTC):%Y-%m-%dT%H:%M:%SZ} ({age(stamp)} ago)"

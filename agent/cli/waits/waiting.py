# SPDX-License-Identifier: Apache-2.0
"""What `--wait` of `apply` and `delete` waits for."""

from collections.abc import Collection, Mapping, Sequence

import click

from agent.cli.client import Client, connected
from agent.cli.commands.pods.pods import patient
from agent.cli.objects.workload_pods import find_workload, pods_of
from agent.cli.session import CommandFailed, Session
from agent.cli.waits.patience import Patience
from agent.cli.waits.workloads import Made, progress
from agent.kinds.registry import BY_API, WORKLOADS, Kind, Named
from agent.model.exit_codes import FAILURE
from agent.wire.kepd.v1 import object_pb2, pod_pb2, service_proxy_pb2

UNKNOWN = "kepd has not read its manifest yet; while services.source is kubernetes it reads no Service from a file"


def wait_applied(session: Session, applied: Sequence[object_pb2.AppliedObject], before: Mapping[str, str]) -> None:
    """`before`: uids of pods by `namespace/name` before the change; a changed pod is another one."""
    pods = {f"{one.namespace}/{one.name}": one.result for one in applied if one.kind == "Pod"}
    services = {f"{one.namespace}/{one.name}" for one in applied if one.kind == "Service"}
    workloads = [(BY_API[one.kind], f"{one.namespace}/{one.name}") for one in applied if one.kind in WORKLOADS]
    session = patient(session)
    patience = Patience(session.timeout_s)
    with connected(session) as daemon:
        for kind, name in workloads:
            _wait_workload(daemon, kind, name, patience)
        if pods:
            _wait_pods(daemon, pods, before, patience)
        while services and (missing := _unprogrammed(daemon, services)):
            patience.rest(missing)


def _wait_workload(daemon: Client, kind: Kind, name: str, patience: Patience) -> None:
    while True:
        found, made = find_workload(daemon, kind, name)
        is_done, text = progress(kind, made)
        if is_done:
            click.echo(f"{kind.singular}/{found.key} {text}")
            return
        patience.rest(told_workload(daemon, kind, found, made, text))


def told_workload(daemon: Client, kind: Kind, found: Named, made: Made, text: str) -> dict[str, str]:
    """How far it is, and what the first of its pods lacks."""
    causes = [f"pod {one.name}: {one.cause}" for one in pods_of(daemon, kind, found, made) if one.cause]
    return {f"{kind.singular}/{found.key}": "; ".join((text, *causes[:1]))}


def _wait_pods(daemon: Client, pods: Mapping[str, str], before: Mapping[str, str], patience: Patience) -> None:
    left = dict.fromkeys(pods, "kepd has not read its manifest yet")
    while left:
        for pod in _listed(daemon):
            key = f"{pod.namespace}/{pod.manifest_name}"
            is_former = pods.get(key) == "configured" and pod.uid == before.get(key)
            if key not in left or is_former:
                continue
            if pod.phase == "Failed":
                raise CommandFailed(f"pod {key} failed: {told_pod(pod)}", FAILURE)
            if pod.phase == "Succeeded" or any(one.type == "Ready" and one.status for one in pod.conditions):
                click.echo(f"pod/{key} {'succeeded' if pod.phase == 'Succeeded' else 'is ready'}")
                del left[key]
            else:
                left[key] = told_pod(pod)
        if left:
            patience.rest({f"pod/{key}": why for key, why in left.items()})


def told_pod(pod: pod_pb2.Pod) -> str:
    """Why it is as it is, in a line."""
    status = pod.status or pod.phase
    return f"{status}: {pod.cause}" if pod.cause else pod.message or pod.reason or status


def wait_running(session: Session, key: str) -> None:
    """Until a container of the pod runs, or has run."""
    session = patient(session)
    patience = Patience(session.timeout_s)
    with connected(session) as daemon:
        while True:
            found = next((pod for pod in _listed(daemon) if f"{pod.namespace}/{pod.manifest_name}" == key), None)
            if found is not None and _has_begun(found):
                return
            patience.rest({f"pod/{key}": told_pod(found) if found is not None else ""})


def _has_begun(pod: pod_pb2.Pod) -> bool:
    if pod.phase == "Failed":
        raise CommandFailed(f"pod {pod.namespace}/{pod.name} failed: {told_pod(pod)}", FAILURE)
    return any(one.state in ("Running", "Terminated") for one in pod.containers)


def wait_gone(session: Session, keys: Sequence[str]) -> None:
    patience = Patience(session.timeout_s)
    with connected(session) as daemon:
        while left := [pod for pod in _listed(daemon) if f"{pod.namespace}/{pod.name}" in keys]:
            patience.rest({f"pod/{pod.namespace}/{pod.name}": told_pod(pod) for pod in left})


def _listed(daemon: Client) -> Sequence[pod_pb2.Pod]:
    answer = daemon.call("kepd.v1.PodService/ListPods", pod_pb2.ListPodsRequest(), pod_pb2.ListPodsResponse)
    return answer.pods


def _unprogrammed(daemon: Client, wanted: Collection[str]) -> dict[str, str]:
    """Without the services plane nothing will ever be programmed, which is said."""
    path = "kepd.v1.ServiceProxyService/ListServices"
    answer = daemon.call(path, service_proxy_pb2.ListServicesRequest(), service_proxy_pb2.ListServicesResponse)
    known = {f"{one.namespace}/{one.name}": one for one in answer.services}
    left = [key for key in wanted if key not in known or not known[key].is_programmed]
    return {f"service/{key}": known[key].cause if key in known else UNKNOWN for key in left}

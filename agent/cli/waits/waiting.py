# SPDX-License-Identifier: Apache-2.0
"""What `--wait` of `apply` and `delete` waits for."""

import time
from collections.abc import Collection, Mapping, Sequence

import click

from agent.cli.client import Client, connected
from agent.cli.commands.pods.pods import patient
from agent.cli.objects.workload_pods import find_workload
from agent.cli.session import CommandFailed, Session
from agent.cli.waits.workloads import progress
from agent.kinds.registry import BY_API, Kind
from agent.model.exit_codes import DEADLINE, FAILURE
from agent.wire.kepd.v1 import object_pb2, pod_pb2, service_proxy_pb2

LOOK_S = 0.2
KINDS = ("Deployment", "DaemonSet", "Job")


def wait_applied(session: Session, applied: Sequence[object_pb2.AppliedObject], before: Mapping[str, str]) -> None:
    """`before`: uids of pods by `namespace/name` before the change; a changed pod is another one."""
    pods = {f"{one.namespace}/{one.name}": one.result for one in applied if one.kind == "Pod"}
    services = {f"{one.namespace}/{one.name}" for one in applied if one.kind == "Service"}
    workloads = [(BY_API[one.kind], f"{one.namespace}/{one.name}") for one in applied if one.kind in KINDS]
    session = patient(session)
    until_s = time.monotonic() + session.timeout_s
    with connected(session) as daemon:
        for kind, name in workloads:
            _wait_workload(daemon, kind, name, until_s)
        if pods:
            _wait_pods(daemon, pods, before, until_s)
        while services and (missing := services - _programmed(daemon)):
            _in_time(until_s, missing)
            time.sleep(LOOK_S)


def _wait_workload(daemon: Client, kind: Kind, name: str, until_s: float) -> None:
    while True:
        found, made = find_workload(daemon, kind, name)
        is_done, text = progress(kind, made)
        if is_done:
            click.echo(f"{kind.singular}/{found.key} {text}")
            return
        _in_time(until_s, [f"{kind.singular}/{found.key}: {text}"])
        time.sleep(LOOK_S)


def _wait_pods(daemon: Client, pods: Mapping[str, str], before: Mapping[str, str], until_s: float) -> None:
    left = dict(pods)
    while left:
        for pod in _listed(daemon):
            key = f"{pod.namespace}/{pod.manifest_name}"
            is_former = left.get(key) == "configured" and pod.uid == before.get(key)
            if key not in left or is_former:
                continue
            if pod.phase == "Failed":
                raise CommandFailed(f"pod {key} failed: {pod.message or pod.reason or pod.status}", FAILURE)
            if pod.phase == "Succeeded" or any(one.type == "Ready" and one.status for one in pod.conditions):
                click.echo(f"pod/{key} {'succeeded' if pod.phase == 'Succeeded' else 'is ready'}")
                del left[key]
        if left:
            _in_time(until_s, left)
            time.sleep(LOOK_S)


def wait_running(session: Session, key: str) -> None:
    """Until a container of the pod runs, or has run."""
    session = patient(session)
    until_s = time.monotonic() + session.timeout_s
    with connected(session) as daemon:
        while not any(_has_begun(pod) for pod in _listed(daemon) if f"{pod.namespace}/{pod.manifest_name}" == key):
            _in_time(until_s, [key])
            time.sleep(LOOK_S)


def _has_begun(pod: pod_pb2.Pod) -> bool:
    if pod.phase == "Failed":
        raise CommandFailed(f"pod {pod.namespace}/{pod.name} failed: {pod.message or pod.status}", FAILURE)
    return any(one.state in ("Running", "Terminated") for one in pod.containers)


def wait_gone(session: Session, keys: Sequence[str]) -> None:
    until_s = time.monotonic() + session.timeout_s
    with connected(session) as daemon:
        while left := {*keys} & {f"{pod.namespace}/{pod.name}" for pod in _listed(daemon)}:
            _in_time(until_s, left)
            time.sleep(LOOK_S)


def _listed(daemon: Client) -> Sequence[pod_pb2.Pod]:
    answer = daemon.call("kepd.v1.PodService/ListPods", pod_pb2.ListPodsRequest(), pod_pb2.ListPodsResponse)
    return answer.pods


def _programmed(daemon: Client) -> set[str]:
    """Without the services plane nothing will ever be programmed, which is said."""
    path = "kepd.v1.ServiceProxyService/ListServices"
    answer = daemon.call(path, service_proxy_pb2.ListServicesRequest(), service_proxy_pb2.ListServicesResponse)
    return {f"{one.namespace}/{one.name}" for one in answer.services if one.is_programmed}


def _in_time(until_s: float, left: Collection[str]) -> None:
    if time.monotonic() > until_s:
        names = ", ".join(sorted(left))
        raise CommandFailed(f"not in time: {names}; --timeout allows more", DEADLINE)

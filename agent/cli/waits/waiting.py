# SPDX-License-Identifier: Apache-2.0
"""What `--wait` of `apply` and `delete` waits for."""

from collections.abc import Collection, Mapping, Sequence

import click

from agent.cli.client import Client, connected
from agent.cli.commands.pods.pods import patient
from agent.cli.objects.listed import objects
from agent.cli.objects.workload_pods import find_workload, pods_of
from agent.cli.session import CommandFailed, Session
from agent.cli.waits.patience import Patience
from agent.cli.waits.workloads import Made, progress
from agent.kinds.kind import Kind, Named
from agent.kinds.pods.pod_parts import (
    RUNNING,
    TERMINATED,
    containers,
    is_ready,
    manifest_key,
    name_of,
    own,
    state_of,
    status_word,
    told,
    uid_of,
)
from agent.kinds.registry import BY_API, WORKLOADS
from agent.kinds.services.services import is_programmed
from agent.kinds.table import FACTS, Object, names_of
from agent.model.exit_codes import FAILURE
from agent.wire.kepd.v1 import object_pb2

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
    causes = [f"pod {name_of(pod)}: {own(pod, 'cause')}" for pod in pods_of(daemon, kind, made) if own(pod, "cause")]
    return {f"{kind.singular}/{found.key}": "; ".join((text, *causes[:1]))}


def _wait_pods(daemon: Client, pods: Mapping[str, str], before: Mapping[str, str], patience: Patience) -> None:
    left = dict.fromkeys(pods, "kepd has not read its manifest yet")
    while left:
        for pod in objects(daemon, "pods"):
            key, phase = manifest_key(pod), told(pod, "phase")
            is_former = pods.get(key) == "configured" and uid_of(pod) == before.get(key)
            if key not in left or is_former:
                continue
            if phase == "Failed":
                raise CommandFailed(f"pod {key} failed: {told_pod(pod)}", FAILURE)
            if phase == "Succeeded" or is_ready(pod):
                click.echo(f"pod/{key} {'succeeded' if phase == 'Succeeded' else 'is ready'}")
                del left[key]
            else:
                left[key] = told_pod(pod)
        if left:
            patience.rest({f"pod/{key}": why for key, why in left.items()})


def told_pod(pod: Object) -> str:
    """Why it is as it is, in a line."""
    status, cause = status_word(pod), own(pod, "cause")
    return f"{status}: {cause}" if cause else told(pod, "message") or told(pod, "reason") or status


def wait_running(session: Session, key: str) -> None:
    """Until a container of the pod runs, or has run."""
    session = patient(session)
    patience = Patience(session.timeout_s)
    with connected(session) as daemon:
        while True:
            found = next((pod for pod in objects(daemon, "pods") if manifest_key(pod) == key), None)
            if found is not None and _has_begun(found):
                return
            patience.rest({f"pod/{key}": told_pod(found) if found is not None else ""})


def _has_begun(pod: Object) -> bool:
    if told(pod, "phase") == "Failed":
        raise CommandFailed(f"pod {'/'.join(names_of(pod))} failed: {told_pod(pod)}", FAILURE)
    return any(state_of(status)[0] in (RUNNING, TERMINATED) for _, status in containers(pod))


def wait_gone(session: Session, keys: Sequence[str]) -> None:
    patience = Patience(session.timeout_s)
    with connected(session) as daemon:
        while left := [pod for pod in objects(daemon, "pods") if "/".join(names_of(pod)) in keys]:
            patience.rest({f"pod/{'/'.join(names_of(pod))}": told_pod(pod) for pod in left})


def _unprogrammed(daemon: Client, wanted: Collection[str]) -> dict[str, str]:
    """Without the services plane nothing will ever be programmed, which is said."""
    known = {"/".join(names_of(made)): made for made in objects(daemon, "services")}
    left = [key for key in wanted if key not in known or not is_programmed(known[key])]
    return {f"service/{key}": known[key][FACTS].get("cause", "") if key in known else UNKNOWN for key in left}

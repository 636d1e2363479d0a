# SPDX-License-Identifier: Apache-2.0
"""Workloads until they are as they should be: for `wait`, `apply --wait`, `rollout status`."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from agent.cli.client import Client
from agent.cli.objects.workload_pods import find_workload, workload_kind
from agent.cli.session import CommandFailed
from agent.cli.waits.patience import Patience
from agent.kinds.kind import Kind
from agent.kinds.parts import items, part
from agent.model.exit_codes import FAILURE, NOT_FOUND, USAGE
from agent.model.text.jsonpath import read_path, shown

CONDITIONS = {
    "Deployment": ("Available", "Progressing"),
    "ReplicaSet": ("Available",),
    "ReplicationController": ("Available",),
    "DaemonSet": ("Available",),
    "StatefulSet": ("Available",),
    "Job": ("Complete", "Failed"),
}

Made = dict[str, Any]
Holds = Callable[[Made], bool]


def workload_targets(targets: Sequence[str]) -> list[tuple[Kind, str]]:
    """`deploy/web job/x`, or `deploy web api`; empty if the words mean no workload."""
    first = workload_kind(targets[0]) if targets else None
    if first is not None:
        return [(first, name) for name in targets[1:]]
    split = [(workload_kind(word), name) for word, _, name in (target.partition("/") for target in targets)]
    known = [(kind, name) for kind, name in split if kind is not None and name]
    if known and len(known) != len(targets):
        raise CommandFailed("pods and workloads cannot be waited for at a time; expected one of both", USAGE)
    return known


def wait_workloads(daemon: Client, wanted: Sequence[tuple[Kind, str]], aim: str, limit_s: float) -> None:
    holds, patience = workload_aim(aim, wanted), Patience(limit_s)
    for kind, name in wanted:
        while True:
            try:
                found, made = find_workload(daemon, kind, name)
            except CommandFailed as error:
                if aim != "delete" or error.exit_code != NOT_FOUND:
                    raise
                click.echo(f"{kind.singular}/{name} deleted")
                break
            if holds(made):
                click.echo(f"{kind.singular}/{found.key} condition met")
                break
            what = f"{kind.singular}/{found.key}"
            patience.rest({what: f"does not meet {aim}; {_progress_text(kind, made)}; see kepctl explain {what}"})


def _progress_text(kind: Kind, made: Made) -> str:
    try:
        return progress(kind, made)[1]
    except CommandFailed as error:
        return str(error)


def workload_aim(text: str, wanted: Sequence[tuple[Kind, str]]) -> Holds:
    word, _, rest = text.partition("=")
    if text == "delete":
        return lambda _: False
    if word == "condition" and rest:
        name, _, state = rest.partition("=")
        return _condition_aim(name, state.lower() or "true", wanted)
    if word == "jsonpath" and rest:
        path, brace, value = rest.rpartition("}")
        path = path.removeprefix("{") if brace else rest
        return lambda made: (
            (found := [shown(one) for one in read_path(path, made)]) != []
            and (not value or found == [value.removeprefix("=")])
        )
    raise CommandFailed(f'--for: "{text}" is no aim; expected condition=Available, delete or jsonpath', USAGE)


def _condition_aim(name: str, state: str, wanted: Sequence[tuple[Kind, str]]) -> Holds:
    if state not in ("true", "false"):
        raise CommandFailed(f'--for: condition={name}: "{state}" is not true or false', USAGE)
    for kind, _ in wanted:
        if name.lower() not in (one.lower() for one in CONDITIONS[kind.api]):
            known = ", ".join(CONDITIONS[kind.api])
            raise CommandFailed(f"--for: {kind.plural} have no condition {name}; they have {known}", USAGE)
    return lambda made: condition_of(made, name) == (state == "true")


def condition_of(made: Made, name: str) -> bool | None:
    """None: there is none yet. Of a manifest that kepd has not read since it changed, nothing is known."""
    status = part(made, "status")
    if made.get("kind") != "Job" and status.get("observedGeneration") != part(made, "metadata").get("generation"):
        return None
    if made.get("kind") == "DaemonSet":
        return bool(status.get("numberAvailable") == status.get("desiredNumberScheduled"))
    if made.get("kind") in ("StatefulSet", "ReplicaSet", "ReplicationController"):
        return bool(status.get("availableReplicas") == part(made, "spec").get("replicas", 1))
    for one in items(made, "status", "conditions"):
        if str(one.get("type")).lower() == name.lower():
            return bool(one.get("status") == "True")
    return None


def progress(kind: Kind, made: Made) -> tuple[bool, str]:
    """Whether it has come where its manifest wants it, and how far it is. Raises for a Job that has failed."""
    now = part(made, "status")
    if not now:
        return False, "kepd does not carry it out: its manifest has a fault or is not read yet, or pods do not run here"
    if kind.api == "Job":
        failed = next((one for one in items(made, "status", "conditions") if one.get("type") == "Failed"), None)
        if failed is not None:
            raise CommandFailed(f"{kind.singular} failed: {failed.get('message', '')}", FAILURE)
        return condition_of(made, "Complete") is True, f"{now.get('succeeded', 0)} succeeded"
    if now.get("observedGeneration") != part(made, "metadata").get("generation"):
        return False, "the manifest has changed, and kepd has not read it yet"
    if kind.api == "DaemonSet":
        wanted = now.get("desiredNumberScheduled", 0)
        new, available, here = now.get("updatedNumberScheduled", 0), now.get("numberAvailable", 0), wanted
    else:
        wanted = part(made, "spec").get("replicas", 1)
        available, here = now.get("availableReplicas", 0), now.get("replicas", 0)
        # What has only one template has no count of it.
        new = now.get("updatedReplicas", 0 if kind.api == "Deployment" else available)
    if kind.api == "StatefulSet":
        return _set_progress(made, now, wanted)
    if new == available == here == wanted:
        return True, f"successfully rolled out, {wanted} available"
    return False, f"{new} of {wanted} have the present template, {available} of {here} are available"


def _set_progress(made: Made, now: Made, wanted: int) -> tuple[bool, str]:
    """Those below the partition keep the template that they have; of OnDelete nothing more is waited for."""
    available, new = now.get("availableReplicas", 0), now.get("updatedReplicas", 0)
    strategy = part(made, "spec", "updateStrategy")
    partition = int(part(strategy, "rollingUpdate").get("partition") or 0)
    least = 0 if strategy.get("type") == "OnDelete" else max(wanted - partition, 0)
    if available == now.get("replicas", 0) == wanted and new >= least:
        rest = f", {wanted - new} keep the former template" if new < wanted else ""
        return True, f"successfully rolled out, {wanted} available{rest}"
    return False, f"{new} of {least} have the present template, {available} of {wanted} are available"

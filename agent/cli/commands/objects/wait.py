# SPDX-License-Identifier: Apache-2.0
"""`kepctl wait`: until pods are as they should be, or gone. Exit code 7 if they are not in time."""

import threading
from collections.abc import Callable, Sequence

import click

from agent.cli.client import Client, connected
from agent.cli.objects.listed import changes, objects
from agent.cli.objects.pod_names import find_pod
from agent.cli.objects.words import parse_wanted
from agent.cli.session import CommandFailed, Session
from agent.cli.waits.patience import LOOK_S, Patience
from agent.cli.waits.waiting import told_pod
from agent.cli.waits.workloads import wait_workloads, workload_targets
from agent.kinds.parts import items
from agent.kinds.registry import BY_WORD
from agent.kinds.selection import Scope
from agent.kinds.table import Object, names_of
from agent.model.exit_codes import NOT_FOUND, USAGE
from agent.model.text.jsonpath import read_path, shown
from agent.wire.kepd.v1 import list_pb2

DEFAULT_S = 30.0
UNSET_S = Session().timeout_s
PODS = BY_WORD["pods"]

Holds = Callable[[Object], bool]


@click.command()
@click.argument("targets", metavar="[KIND] NAME…|KIND/NAME…", nargs=-1)
@click.option(
    "--for", "aim", required=True, metavar="AIM",
    help="condition=TYPE[=false], delete, or jsonpath='{PATH}'=VALUE over metadata and status.",
)  # fmt: skip
@click.option("-l", "--selector", default="", metavar="LABELS", help="Pods with these labels, such as app=web.")
@click.pass_obj
def wait(session: Session, targets: tuple[str, ...], aim: str, selector: str) -> None:
    """Wait until each pod is ready, gone, or as a path of it says; as long as --timeout, else 30 seconds.

    Of a deployment or daemonset the condition is Available, of a job Complete or Failed.
    """
    workloads = workload_targets(targets)
    limit_s = session.timeout_s if session.timeout_s != UNSET_S else DEFAULT_S
    patience = Patience(limit_s)
    with connected(session) as daemon:
        if workloads and not selector:
            wait_workloads(daemon, workloads, aim, limit_s)
            return
        is_met = _aim(aim)
        names = _chosen(daemon, targets, selector, is_end=is_met is None)
        for namespace, name in names:
            _await(daemon, (namespace, name), aim, is_met, patience)
            click.echo(f"pod/{namespace}/{name} {'deleted' if is_met is None else 'condition met'}")


def _aim(text: str) -> Holds | None:
    """None: that it is gone."""
    word, _, rest = text.partition("=")
    if text == "delete":
        return None
    if word == "condition" and rest:
        kind, _, wanted = rest.partition("=")
        state = wanted.lower() or "true"
        if state not in ("true", "false"):
            raise CommandFailed(f'--for: condition={kind}: "{wanted}" is not true or false', USAGE)
        return lambda pod: any(
            str(one.get("type")).lower() == kind.lower() and str(one.get("status")).lower() == state
            for one in items(pod, "status", "conditions")
        )
    if word == "jsonpath" and rest:
        return _path_aim(rest)
    raise CommandFailed(
        f'--for: "{text}" is no aim; expected condition=Ready, delete or jsonpath={{PATH}}=VALUE', USAGE
    )


def _path_aim(text: str) -> Holds:
    template, brace, rest = text.rpartition("}")
    path = template.removeprefix("{") if brace else text
    value = rest.removeprefix("=") if rest.startswith("=") else None
    if not brace or (rest and value is None):
        raise CommandFailed(
            f'--for: jsonpath={text} is not valid; expected "jsonpath={{.status.phase}}=Running"', USAGE
        )

    def holds(pod: Object) -> bool:
        found = [shown(one) for one in read_path(path, pod)]
        return bool(found) and (value is None or found == [value])

    return holds


def _chosen(daemon: Client, targets: Sequence[str], selector: str, *, is_end: bool) -> list[tuple[str, str]]:
    wanted = parse_wanted(targets, default="pods") if targets else ()
    if other := next((one.kind for one in wanted if one.kind is not PODS), None):
        raise CommandFailed(f"{other.plural} cannot be waited for; only pods and workloads can", USAGE)
    names = [name for one in wanted for name in one.names]
    if bool(names) == bool(selector):
        raise CommandFailed("expected either PODs or -l LABELS", USAGE)
    if selector:
        found = [names_of(pod) for pod in objects(daemon, PODS.plural, Scope(selector=selector))]
        if not found and not is_end:
            raise CommandFailed(f"no pod has the labels {selector}; see kepctl get pods", NOT_FOUND)
        return found
    chosen = []
    for name in names:
        try:
            chosen.append(find_pod(daemon, name))
        except CommandFailed as error:
            # What is gone already need not be waited for.
            if not is_end or error.exit_code != NOT_FOUND:
                raise
    return chosen


def _await(daemon: Client, pod: tuple[str, str], aim: str, is_met: Holds | None, patience: Patience) -> None:
    """A stream waits for ever, so a thread reads it; why the pod is not there yet is said meanwhile."""
    came, failed = threading.Event(), []
    seen: dict[str, str] = {}

    def read() -> None:
        try:
            _read(daemon, *pod, is_met, seen)
        except CommandFailed as error:
            failed.append(error)
        came.set()

    threading.Thread(target=read, daemon=True).start()
    key = "/".join(pod)
    while not came.wait(min(patience.left_s, LOOK_S)):
        why = f"; {seen['why']}" if seen else ""
        patience.check({f"pod/{key}": f"does not meet {aim}{why}; see kepctl explain pod {key}"})
    if failed:
        raise failed[0]


def _read(daemon: Client, namespace: str, name: str, is_met: Holds | None, seen: dict[str, str]) -> None:
    """Returns when it is met. Raises for a pod that goes before it is. `seen` has why it is not yet met."""
    is_there = False
    for change, pod in changes(daemon, PODS.plural, namespace):
        if pod is not None and names_of(pod) != (namespace, name):
            continue
        is_gone = change == list_pb2.CHANGE_TYPE_DELETED or (pod is None and not is_there)
        if pod is not None:
            seen["why"], is_there = told_pod(pod), True
        if is_gone and is_met is not None:
            raise CommandFailed(f"pod/{namespace}/{name} is gone before it met the condition", NOT_FOUND)
        if is_gone or (is_met is not None and pod is not None and is_met(pod)):
            return

# SPDX-License-Identifier: Apache-2.0
"""`kepctl get`: lists of everything the daemon knows."""

from collections.abc import Callable
from difflib import get_close_matches

import click

from agent.cli.client import Client, connected
from agent.cli.options import output_option
from agent.cli.render import age, print_listing
from agent.cli.session import CommandFailed, Session
from agent.cli.table import Column, Columns, Listing
from agent.model.exit_codes import NOT_FOUND
from agent.wire.kepd.v1 import list_pb2, node_pb2, pod_pb2

__all__ = ["get", "list_planes"]


def list_nodes(daemon: Client) -> Listing[node_pb2.Node]:
    """This node."""
    answer = daemon.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)
    columns: Columns[node_pb2.Node] = (
        Column("NAME", lambda node: node.name),
        Column("RUNTIME", lambda node: f"{node.runtime.name or 'none'} {node.runtime.version}".rstrip()),
        Column("CONNECTED", lambda node: "yes" if node.runtime.is_connected else "no"),
        Column("KEPD", lambda node: node.kepd_version),
        Column("AGE", lambda node: age(node.started_at)),
        Column("KERNEL", lambda node: node.kernel_version, wide=True),
        Column("CGROUP", lambda node: f"v{node.cgroup_version}", wide=True),
        Column("EVENTS", lambda node: node.runtime.event_source or "none", wide=True),
        Column("ENDPOINT", lambda node: node.runtime.endpoint, wide=True),
    )
    return Listing("Node", [answer.node], columns, lambda node: f"node/{node.name}")


def list_planes(daemon: Client) -> Listing[node_pb2.Plane]:
    """The planes."""
    answer = daemon.call("kepd.v1.NodeService/ListPlanes", node_pb2.ListPlanesRequest(), node_pb2.ListPlanesResponse)
    columns: Columns[node_pb2.Plane] = (
        Column("PLANE", lambda plane: plane.name),
        Column("STATE", lambda plane: node_pb2.PlaneState.Name(plane.state).removeprefix("PLANE_STATE_").lower()),
        Column("SINCE", lambda plane: age(plane.since)),
        Column("RESTARTS", lambda plane: str(plane.restarts)),
        Column("MESSAGE", lambda plane: plane.message),
    )
    return Listing("Plane", answer.planes, columns, lambda plane: f"plane/{plane.name}")


POD_COLUMNS: Columns[pod_pb2.Pod] = (
    Column("NAMESPACE", lambda pod: pod.namespace),
    Column("NAME", lambda pod: pod.name),
    Column("READY", lambda pod: f"{sum(one.state == 'Running' for one in pod.containers)}/{len(pod.containers)}"),
    Column("STATUS", lambda pod: pod.phase),
    Column("AGE", lambda pod: age(pod.created_at)),
    Column("IP", lambda pod: pod.ip),
    Column("UID", lambda pod: pod.uid, wide=True),
    Column("MESSAGE", lambda pod: pod.message, wide=True),
)


def list_pods(daemon: Client) -> Listing[pod_pb2.Pod]:
    """The pods."""
    answer = daemon.call("kepd.v1.PodService/ListPods", pod_pb2.ListPodsRequest(), pod_pb2.ListPodsResponse)
    return Listing(
        "Pod",
        answer.pods,
        POD_COLUMNS,
        lambda pod: f"pod/{pod.namespace}/{pod.name}",
        "no pods; put a Pod manifest into the manifest directory",
    )


def list_containers(daemon: Client) -> Listing[pod_pb2.Container]:
    """The containers of all pods."""
    answer = daemon.call("kepd.v1.PodService/ListPods", pod_pb2.ListPodsRequest(), pod_pb2.ListPodsResponse)
    pod_of = {id(one): pod for pod in answer.pods for one in pod.containers}
    containers = [one for pod in answer.pods for one in pod.containers]
    columns: Columns[pod_pb2.Container] = (
        Column("CONTAINER", lambda one: one.id[:13]),
        Column("NAME", lambda one: one.name),
        Column("STATE", lambda one: one.state),
        Column("REASON", lambda one: one.reason),
        Column("IMAGE", lambda one: one.image),
        Column("AGE", lambda one: age(one.started_at)),
        Column("POD", lambda one: pod_of[id(one)].name if id(one) in pod_of else ""),
        Column("EXIT", lambda one: str(one.exit_code) if one.state == "Terminated" else "", wide=True),
    )
    return Listing("Container", containers, columns, lambda one: f"container/{one.id}", "no containers")


NOUNS: dict[str, Callable[[Client], Listing]] = {  # type: ignore[type-arg]  # each noun has its own message
    "nodes": list_nodes,
    "planes": list_planes,
    "pods": list_pods,
    "containers": list_containers,
}


COMPLETION_LIMIT_S = 0.5


def noun(word: str) -> str:
    """A noun in singular or plural."""
    for candidate in (word, f"{word}s"):
        if candidate in NOUNS:
            return candidate
    close = get_close_matches(word, NOUNS, n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"nouns are {', '.join(NOUNS)}"
    raise click.UsageError(f'no list of "{word}"; {hint}')


def complete_noun(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
    """Nouns for the shell."""
    return [word for word in NOUNS if word.startswith(typed)]


def complete_name(ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
    """Live names for the shell, if the daemon answers quickly."""
    session = Session(endpoint=ctx.parent.params.get("endpoint") if ctx.parent else None, timeout_s=COMPLETION_LIMIT_S)
    try:
        with connected(session) as daemon:
            listing = NOUNS[noun(ctx.params["kind"])](daemon)
    except (CommandFailed, click.UsageError):
        return []
    names = [listing.name(item).rpartition("/")[2] for item in listing.items]
    return [name for name in names if name.startswith(typed)]


@click.command()
@click.argument("kind", metavar="NOUN", shell_complete=complete_noun)
@click.argument("name", required=False, shell_complete=complete_name)
@output_option()
@click.option("-w", "--watch", is_flag=True, help="Go on with changes (pods).")
@click.pass_obj
def get(session: Session, kind: str, name: str | None, output: str, *, watch: bool) -> None:
    """List nodes, planes, pods or containers; with NAME, that one."""
    kind = noun(kind)
    with connected(session) as daemon:
        if watch:
            follow_pods(daemon, kind, output, session)
            return
        listing = NOUNS[kind](daemon)
    if name is not None:
        items = [item for item in listing.items if listing.name(item).rpartition("/")[2] == name]
        if not items:
            raise CommandFailed(f'no {kind.removesuffix("s")} "{name}"', NOT_FOUND)
        listing = Listing(listing.kind, items, listing.columns, listing.name)
    print_listing(listing, output, session)


def follow_pods(daemon: Client, kind: str, output: str, session: Session) -> None:
    """Print pods as they change."""
    if kind != "pods":
        raise click.UsageError("only pods can be watched")
    for change in daemon.follow("kepd.v1.PodService/WatchPods", pod_pb2.WatchPodsRequest(), pod_pb2.WatchPodsResponse):
        if change.type == list_pb2.CHANGE_TYPE_BOOKMARK:
            continue
        listing = Listing("Pod", [change.pod], POD_COLUMNS, lambda pod: f"pod/{pod.namespace}/{pod.name}")
        print_listing(listing, output, session)

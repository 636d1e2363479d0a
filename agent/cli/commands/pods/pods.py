# SPDX-License-Identifier: Apache-2.0
"""`kepctl timeline`, `restart`, `drain`, `checkpoint`: pods."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from agent.cli.client import Client, ask, connected
from agent.cli.objects.listed import objects
from agent.cli.objects.pod_names import find_container, find_pod, given_pod
from agent.cli.session import CommandFailed, Session
from agent.kinds.pods.pod_parts import RUNNING, containers, state_of
from agent.kinds.table import names_of
from agent.model.exit_codes import FAILURE, NOT_FOUND, USAGE
from agent.model.finding import printable
from agent.wire.kepd.v1 import node_pb2, pod_pb2

if TYPE_CHECKING:
    from agent.pods.view.timeline import Picture

SERVICE = "kepd.v1.PodService"
NODE = "kepd.v1.NodeService/GetNode"
# How often a drain is looked at.
LOOK_S = 0.5
# How long a planned pod is at work before it ends: long enough to be seen in the picture.
UP_S = 2.0
# The sum of all graces may be long, and so may a checkpoint or a pull: the daemon answers before an hour is over.
DEFAULT_TIMEOUT_S, LONGEST_S = 10.0, 3600.0


def patient(session: Session) -> Session:
    """For what takes long, unless --timeout says otherwise."""
    return replace(session, timeout_s=LONGEST_S) if session.timeout_s == DEFAULT_TIMEOUT_S else session


@click.command()
@click.argument("pod", metavar="[POD]", default="")
@click.option(
    "-o", "--output", type=click.Choice(["text", "svg", "html", "json"]), default="text", help="Output format."
)
@click.option(
    "-f", "--from-files", "path", type=click.Path(exists=True, path_type=Path),
    help="Draw how the pods of this manifest or directory would start and stop; needs no daemon.",
)  # fmt: skip
@click.pass_obj
def timeline(session: Session, pod: str, output: str, path: Path | None) -> None:
    """Draw what happened to a pod as bars; also for a pod that has ended."""
    from agent.cli.texts.planned import show

    if path is not None:
        _planned_timeline(path, pod, output)
        return
    if not pod:
        raise CommandFailed("no pod is named; expected a POD, or --from-files with a manifest", USAGE)
    with connected(session) as daemon:
        namespace, name = _past_or_present(daemon, pod)
        picture = picture_of(daemon, namespace, name)
    show([(f"{namespace}/{name}", picture)], output)


def picture_of(daemon: Client, namespace: str, name: str) -> "Picture":
    """What happened to a pod, ready to be drawn."""
    from agent.pods.plan.remembered import Moment
    from agent.pods.view.timeline import draw_picture

    request = pod_pb2.GetTimelineRequest(namespace=namespace, name=name)
    answer = daemon.call(f"{SERVICE}/GetTimeline", request, pod_pb2.GetTimelineResponse)
    moments = [
        Moment(
            at_s=one.at.ToNanoseconds() / 1e9,
            kind=one.kind,
            container=one.container,
            text=one.text,
            seconds=one.seconds,
        )
        for one in answer.moments
    ]
    return draw_picture(moments, list(answer.containers), answer.now.ToNanoseconds() / 1e9)


def _past_or_present(daemon: Client, pod: str) -> tuple[str, str]:
    """A pod that is gone is in no list; the daemon knows the last ones all the same."""
    try:
        return find_pod(daemon, pod)
    except CommandFailed:
        return given_pod(daemon, pod)


def _planned_timeline(path: Path, name: str, output: str) -> None:
    from agent.cli.texts.planned import Guess, life_moments, pods_of, show
    from agent.pods.view.timeline import draw_picture

    files = sorted(path.glob("*.y*ml")) + sorted(path.glob("*.json")) if path.is_dir() else [path]
    pods = [pod for file in files for pod in pods_of(file) if name in ("", pod.name, pod.key)]
    if not pods:
        raise CommandFailed(f'{path} has no pod "{name}"' if name else f"{path} has no pods", NOT_FOUND)
    pictures = []
    for pod in pods:
        moments = life_moments(pod, float(pod.grace_s), Guess(), UP_S)
        picture = draw_picture(moments, [one.name for one in pod.containers], moments[-1].at_s)
        pictures.append((f"{pod.key}, as planned", picture))
    show(pictures, output)


@click.command()
@click.argument("target", metavar="POD[/CONTAINER]")
@click.pass_obj
def restart(session: Session, target: str) -> None:
    """Stop one container, or all containers of a pod, with hooks and grace, and start them again."""
    with connected(session) as daemon:
        namespace, name, container = find_container(daemon, target, elsewhere=False)
        request = pod_pb2.RestartContainerRequest(namespace=namespace, name=name, container=container)
        answer = daemon.call(f"{SERVICE}/RestartContainer", request, pod_pb2.RestartContainerResponse)
    for one in answer.containers:
        click.echo(f"container/{name}/{one} restarts")


@click.command()
@click.argument("node", metavar="[NODE]", default="")
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(0),
    default=0,
    help="Longest time for each group, in seconds; 0 = the pods' own grace.",
)
@click.option("--reason", default="", metavar="TEXT", help="Why; status, events and metrics show it.")
@click.option("-l", "--selector", default="", help="Stop only pods with these labels, such as app=web.")
@click.option("--surge", "surges", is_flag=True, help="First start a replacement where the node has room for one.")
@click.option("--force", "is_forced", is_flag=True, help="Stop pods although a PodDisruptionBudget keeps them.")
@click.option("--checkpoint", "keeps", is_flag=True, help="First write a checkpoint of each running container.")
@click.pass_obj
def drain(
    session: Session, node: str, grace_s: int, *, reason: str, selector: str, surges: bool, is_forced: bool, keeps: bool
) -> None:
    """Stop the pods of this node, lowest priority first, and wait; with --timeout only that long. A pod that a
    PodDisruptionBudget keeps stays; the drain waits for it, and kepctl exits with 1.

    NODE may be said, and is this one.

    It goes on if you stop waiting: see `kepctl status`. No pod starts until `kepctl uncordon` or a reboot. With
    --checkpoint nothing is stopped unless all checkpoints could be written.
    """
    if node:
        _is_this(session, node)
    session = patient(session)
    if keeps:
        _keep_all(session)
    request = pod_pb2.DrainNodeRequest(
        grace_seconds=grace_s, reason=reason, selector=selector, surges=surges, is_forced=is_forced
    )
    told: set[str] = set()
    asking = ThreadPoolExecutor(1)
    try:
        drained = asking.submit(ask, session, f"{SERVICE}/DrainNode", request, pod_pb2.DrainNodeResponse)
        _tell_ends(session, drained, told)
        answer = drained.result()
    except CommandFailed as error:
        of_node = (node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)
        text = str(error)
        with suppress(CommandFailed):
            left = ask(Session(endpoint=session.endpoint), NODE, *of_node).node.drain.waits_for
            text += f"; the drain goes on and waits for {', '.join(left)}" if left else ""
        raise CommandFailed(text, error.exit_code) from error
    finally:
        # Who stops waiting does not wait for the drain.
        asking.shutdown(wait=False)
    for pod in answer.pods:
        if pod not in told:
            click.echo(f"pod/{pod} ended")
    if answer.kept:
        kept = "\n".join(printable(f"pod/{one.pod} stays: {one.why}") for one in answer.kept)
        raise CommandFailed(f"{kept}\nthe drain waits for it; kepctl drain --force ends it all the same", FAILURE)


def _is_this(session: Session, name: str) -> None:
    name = name.removeprefix("node/").removeprefix("nodes/")
    own = ask(session, NODE, node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse).node.name
    if name != own:
        raise CommandFailed(f'no node "{name}"; this daemon has {own} alone, which need not be said', NOT_FOUND)


def _tell_ends(session: Session, drained: "Future[pod_pb2.DrainNodeResponse]", told: set[str]) -> None:
    """A line for each pod as it ends, for as long as the drain goes on."""
    waited: set[str] = set()
    while not wait([drained], LOOK_S).done:
        left = set(waited)
        with suppress(CommandFailed):
            found = ask(Session(endpoint=session.endpoint), NODE, node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)
            left = set(found.node.drain.waits_for)
        for pod in sorted(waited - left):
            click.echo(f"pod/{pod} ended")
        for pod in sorted(left - waited):
            click.echo(f"pod/{pod} ends", err=True)
        told |= waited - left
        waited = left


def _keep_all(session: Session) -> None:
    with connected(session) as daemon:
        running = [
            (*names_of(pod), status["name"])
            for pod in objects(daemon, "pods")
            for _, status in containers(pod)
            if state_of(status)[0] == RUNNING
        ]
        for namespace, name, container in running:
            request = pod_pb2.CheckpointContainerRequest(namespace=namespace, name=name, container=container)
            try:
                click.echo(_write(daemon, request).path)
            except CommandFailed as error:
                text = f"{namespace}/{name}, container {container}: {error}; nothing was stopped"
                raise CommandFailed(text, error.exit_code) from error


def _write(daemon: Client, request: pod_pb2.CheckpointContainerRequest) -> pod_pb2.CheckpointContainerResponse:
    return daemon.call(f"{SERVICE}/CheckpointContainer", request, pod_pb2.CheckpointContainerResponse)


@click.command()
@click.argument("node", metavar="[NODE]", default="")
@click.option("--reason", default="", metavar="TEXT", help="Why; status, events and metrics show it.")
@click.pass_obj
def cordon(session: Session, node: str, reason: str) -> None:
    """Let no pod start until `kepctl uncordon` or a reboot; those that run go on. NODE may be said, and is this one."""
    if node:
        _is_this(session, node)
    request = pod_pb2.DrainNodeRequest(keeps_pods=True, reason=reason)
    ask(session, f"{SERVICE}/DrainNode", request, pod_pb2.DrainNodeResponse)
    click.echo("the node takes no pods")


@click.command()
@click.argument("node", metavar="[NODE]", default="")
@click.pass_obj
def uncordon(session: Session, node: str) -> None:
    """Allow pods again and restart drained ones, but for those that run once. NODE may be said, and is this one."""
    if node:
        _is_this(session, node)
    answer = ask(session, f"{SERVICE}/UncordonNode", pod_pb2.UncordonNodeRequest(), pod_pb2.UncordonNodeResponse)
    click.echo("the node takes pods again")
    for pod in answer.pods:
        click.echo(f"pod/{pod} begins anew")


@click.command()
@click.argument("target", metavar="POD[/CONTAINER]")
@click.pass_obj
def checkpoint(session: Session, target: str) -> None:
    """Write a checkpoint of a running container to an archive, if the runtime can.

    The archive has what the container has in memory: passwords, keys, tokens. Only root can read it.
    """
    with connected(patient(session)) as daemon:
        namespace, name, container = find_container(daemon, target)
        request = pod_pb2.CheckpointContainerRequest(namespace=namespace, name=name, container=container)
        try:
            answer = _write(daemon, request)
        except KeyboardInterrupt:
            click.echo("kepctl waits no longer; kepd goes on with it and logs checkpoint_ended", err=True)
            raise
    click.echo(answer.path)
    took_s = answer.took.ToMilliseconds() / 1000
    click.echo(f"took {took_s:g} s; the archive has what the container had in memory, secrets too", err=True)

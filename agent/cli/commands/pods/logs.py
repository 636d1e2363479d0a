# SPDX-License-Identifier: Apache-2.0
"""`kepctl logs`: of one container, of all of a pod, or of many pods at once."""

import queue
import sys
import threading
import time
from collections.abc import Sequence

import click
import msgspec

from agent.cli.client import Client, connected
from agent.cli.commands.pods.pods import SERVICE
from agent.cli.durations import Duration, moment
from agent.cli.objects.listed import got, objects
from agent.cli.objects.pod_names import find_container
from agent.cli.objects.workload_pods import find_workload, pods_of, workload_kind
from agent.cli.session import CommandFailed, Session
from agent.kinds.kind import Kind
from agent.kinds.pods.pod_parts import containers, created, name_of, told
from agent.kinds.selection import Scope
from agent.kinds.table import names_of
from agent.model.exit_codes import NOT_FOUND, USAGE
from agent.wire.kepd.v1 import pod_pb2

LABELLED_TAIL = 10
MOST_FOLLOWED = 50
MOST_WAITING = 1000


class LogOf(msgspec.Struct, frozen=True):
    """One container whose log is printed; an empty one is the pod's only, or first."""

    namespace: str
    pod: str
    container: str = ""

    @property
    def prefix(self) -> bytes:
        place = f"{self.pod}/{self.container}" if self.container else self.pod
        return f"[pod/{place}] ".encode()


@click.command()
@click.argument("targets", metavar="POD[/CONTAINER]…", nargs=-1)
@click.option("-l", "--selector", default="", metavar="LABELS", help="Pods with these labels, such as app=web.")
@click.option("-c", "--container", default="", help="The container.")
@click.option("--all-containers", "has_all", is_flag=True, help="All containers of the pods.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, over restarts and from before the start.")
@click.option("-p", "--previous", is_flag=True, help="Print the log of the previous instance.")
@click.option("--since", "since_s", type=Duration(), help="Only lines of the last while, such as 5m.")
@click.option("--since-time", "since_time", metavar="TIME", help="Only lines since then, such as 2026-01-01T10:00:00Z.")
@click.option("--tail", type=click.IntRange(-1), default=None, help="Number of lines from the end; -1 = all [-l: 10].")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
@click.option("--prefix", "has_prefix", is_flag=True, help="Begin each line with its pod and container.")
@click.pass_obj
def logs(
    session: Session, *, targets: tuple[str, ...], selector: str, container: str, has_all: bool, follow: bool,
    previous: bool, since_s: float | None, since_time: str | None, tail: int | None, timestamps: bool, has_prefix: bool,
) -> None:  # fmt: skip
    """Print the logs of containers. With -f it waits for those that have not begun, and ends with the last of them."""
    if bool(targets) == bool(selector):
        raise CommandFailed("expected either PODs or -l LABELS", USAGE)
    if has_all and container:
        raise CommandFailed(f"--all-containers and -c {container} exclude each other; expected one", USAGE)
    lines = LABELLED_TAIL if selector and tail is None and not follow else max(tail or 0, 0)
    wanted = pod_pb2.StreamLogsRequest(follow=follow, previous=previous, tail=lines, timestamps=timestamps)
    since = _since(since_s, since_time)
    if tail == 0:
        # To the daemon no lines from the end are all lines; whose time is still to come are none of the past.
        since = max(time.time(), since or 0.0)
    if since is not None:
        wanted.since.FromNanoseconds(int(since * 1e9))
    with connected(session) as daemon:
        sources = _labelled(daemon, selector) if selector else [_named(daemon, one, container) for one in targets]
        if has_all:
            sources = [inner for one in sources for inner in _all_of(daemon, one)]
        elif container:
            sources = [msgspec.structs.replace(one, container=container) for one in sources]
        if follow and len(sources) > 1:
            _follow_together(daemon, sources, wanted, has_prefix=has_prefix)
        else:
            for one in sources:
                _print(daemon, one, wanted, has_prefix=has_prefix)


def _since(since_s: float | None, since_time: str | None) -> float | None:
    if since_s is not None and since_time is not None:
        raise CommandFailed("--since and --since-time exclude each other; expected one", USAGE)
    if since_time is None:
        return time.time() - since_s if since_s is not None else None
    return moment("--since-time", since_time)


def _named(daemon: Client, target: str, container: str) -> LogOf:
    word, slash, name = target.partition("/")
    kind = workload_kind(word) if slash and name and "/" not in name else None
    if kind is not None:
        return _of_workload(daemon, kind, name, container)
    namespace, pod, named = find_container(daemon, target)
    return LogOf(namespace, pod, container or named)


def _of_workload(daemon: Client, kind: Kind, name: str, container: str) -> LogOf:
    """Of its pods one that runs, else the youngest, as kubectl has it."""
    found, made = find_workload(daemon, kind, name)
    pods = pods_of(daemon, kind, made)
    if not pods:
        raise CommandFailed(f"{kind.singular}/{found.key} has no pod now", NOT_FOUND)
    chosen = max(pods, key=lambda pod: (told(pod, "phase") == "Running", created(pod)))
    if len(pods) > 1:
        click.echo(f"{len(pods)} pods; this is pod/{name_of(chosen)}", err=True)
    return LogOf(*names_of(chosen), container)


def _labelled(daemon: Client, selector: str) -> list[LogOf]:
    found = [LogOf(*names_of(pod)) for pod in objects(daemon, "pods", Scope(selector=selector))]
    if not found:
        raise CommandFailed(f"no pod has the labels {selector}; see kepctl get pods", NOT_FOUND)
    return found


def _all_of(daemon: Client, source: LogOf) -> list[LogOf]:
    pod = got(daemon, "pods", source.namespace, source.pod)
    return [LogOf(source.namespace, source.pod, status["name"]) for _, status in containers(pod)]


def _request(source: LogOf, wanted: pod_pb2.StreamLogsRequest) -> pod_pb2.StreamLogsRequest:
    request = pod_pb2.StreamLogsRequest()
    request.CopyFrom(wanted)
    request.namespace, request.name, request.container = source.namespace, source.pod, source.container
    return request


def _print(daemon: Client, source: LogOf, wanted: pod_pb2.StreamLogsRequest, *, has_prefix: bool) -> None:
    prefix, out = source.prefix if has_prefix else b"", sys.stdout.buffer
    for answer in daemon.follow(f"{SERVICE}/StreamLogs", _request(source, wanted), pod_pb2.StreamLogsResponse):
        out.write(prefix + answer.line)
        if wanted.follow:
            # Who follows through a pipe sees each line when it comes.
            out.flush()
    out.flush()


def _follow_together(
    daemon: Client, sources: Sequence[LogOf], wanted: pod_pb2.StreamLogsRequest, *, has_prefix: bool
) -> None:
    """One thread for each. A source that fails says so, and the others go on."""
    if len(sources) > MOST_FOLLOWED:
        raise CommandFailed(
            f"{len(sources)} containers are more than the {MOST_FOLLOWED} that -f follows at once", USAGE
        )
    lines: queue.Queue[bytes | CommandFailed | None] = queue.Queue(MOST_WAITING)

    def read(source: LogOf) -> None:
        prefix = source.prefix if has_prefix else b""
        try:
            for answer in daemon.follow(f"{SERVICE}/StreamLogs", _request(source, wanted), pod_pb2.StreamLogsResponse):
                lines.put(prefix + answer.line)
        except CommandFailed as error:
            lines.put(error)
        finally:
            lines.put(None)

    for one in sources:
        threading.Thread(target=read, args=(one,), daemon=True).start()
    left, failed = len(sources), None
    while left:
        line = lines.get()
        if line is None:
            left -= 1
        elif isinstance(line, CommandFailed):
            failed = line
            click.echo(f"kepctl: {line}", err=True)
        else:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    if failed is not None:
        raise CommandFailed("not all logs could be followed", failed.exit_code)

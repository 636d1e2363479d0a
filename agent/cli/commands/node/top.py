# SPDX-License-Identifier: Apache-2.0
"""`kepctl top` and `kepctl stats`: what the node, its pods and its containers use."""

import sys
import time
from typing import TYPE_CHECKING

import click

from agent.cli.client import Client, connected
from agent.cli.durations import Duration
from agent.cli.objects.pod_names import readings
from agent.cli.objects.scope_options import namespace_option
from agent.cli.objects.words import find_named, without_kind
from agent.cli.plain_rows import print_plain
from agent.cli.render import output_option, print_data, print_listing, wants_objects
from agent.cli.session import CommandFailed, Session
from agent.cli.texts.usage import (
    ORDERS,
    WHAT,
    container_columns,
    container_rows,
    node_listing,
    ordered_pods,
    ordered_rows,
    pod_usage_listing,
)
from agent.config.packages import is_installed
from agent.kinds.kind import Named
from agent.kinds.registry import BY_WORD
from agent.model.exit_codes import NOT_FOUND, USAGE
from agent.wire.kepd.v1 import node_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

WORDS = {"no": "node", "nodes": "node", "po": "pods", "pod": "pods", "container": "containers"}
EVERY_S = 2.0
METHOD, WATCH = "kepd.v1.NodeService/ListStats", "kepd.v1.NodeService/WatchStats"
SUMMARY = "kepd.v1.NodeService/GetStatsSummary"


@click.command()
@click.argument("what", default="pods", metavar="[node|pods|containers]")
@click.argument("names", nargs=-1, metavar="[NAME…]")
@click.option("--sort-by", "order", default="", metavar="ORDER", help=f"Order by {', '.join(ORDERS)}.")
@click.option("-w", "--watch", is_flag=True, help="Show it again and again; over the whole screen on a terminal.")
@click.option("--every", "every_s", type=Duration(), default=EVERY_S, metavar="DURATION", help="How often, with -w.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Show only the first N.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces, as without -n.")
@namespace_option()
@output_option("table", "json", "yaml")
@click.pass_obj
def top(
    session: Session, what: str, names: tuple[str, ...], *, order: str, every_s: float, limit: int | None,
    namespace: str, output: str, watch: bool, everywhere: bool,
) -> int:  # fmt: skip
    """Show what the node, its pods or its containers use now, most processor time first."""
    of = WORDS.get(what, what)
    if of not in WHAT:
        raise CommandFailed(f'no top of "{what}"; expected one of {", ".join(WHAT)}', USAGE)
    if namespace and everywhere:
        raise CommandFailed(f"-n {namespace} and -A exclude each other; expected one", USAGE)
    if order and order not in ORDERS:
        raise CommandFailed(f"--sort-by {order} is no order; expected one of {', '.join(ORDERS)}", USAGE)
    shown = TopScreen(of, names, namespace, order or "cpu", limit)
    with connected(session) as daemon:
        if not watch:
            shown.print(daemon.call(METHOD, node_pb2.ListStatsRequest(), node_pb2.ListStatsResponse), output, session)
            return 0
        is_screen = sys.stdout.isatty() and sys.stdin.isatty() and is_installed("ui")
        if output == "table" and of != "node" and is_screen:
            from kepd_ui.run.top import run_live

            first = daemon.call(METHOD, node_pb2.ListStatsRequest(), node_pb2.ListStatsResponse)
            return run_live(session, (first, watched(daemon, every_s)), shown, every_s)
        _again(daemon, shown, every_s, output, session)
    return 0


class TopScreen:
    """What was asked for, of an answer with everything."""

    def __init__(self, of: str, names: tuple[str, ...], namespace: str, order: str, limit: int | None) -> None:
        self.of, self.order = of, order
        self._names, self._namespace, self._limit = names, namespace, limit

    def picked(self, answer: node_pb2.ListStatsResponse) -> node_pb2.ListStatsResponse:
        """Only the pods that are meant."""
        kept = [pod for pod in answer.pods if self._namespace in ("", pod.namespace)]
        if self._names:
            # Behind the name in the manifest stands the node's.
            known = {Named(pod.namespace, pod.name, pod.name.removesuffix(f"-{answer.node.name}")): pod for pod in kept}
            names = (without_kind(name, "pod") for name in self._names)
            wanted = dict.fromkeys(find_named(BY_WORD["pods"], name, known, self._namespace) for name in names)
            kept = [known[one] for one in wanted]
        picked = node_pb2.ListStatsResponse(node=answer.node, window=answer.window, taken_at=answer.taken_at)
        picked.pods.extend(ordered_pods(kept, self.order)[: self._limit])
        return picked

    def print(self, answer: node_pb2.ListStatsResponse, output: str, session: Session) -> None:
        picked = answer if self.of == "node" else self.picked(answer)
        if wants_objects(output):
            from google.protobuf.json_format import MessageToDict

            print_data(MessageToDict(picked.node if self.of == "node" else picked), output)
        elif self.of == "node":
            print_listing(node_listing(answer), output, session)
        elif self.of == "pods":
            print_listing(pod_usage_listing(picked.pods), output, session)
        else:
            columns = container_columns()
            rows = ordered_rows(container_rows(picked.pods), self.order)[: self._limit]
            print_plain([title for title, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


def watched(daemon: Client, every_s: float) -> "Iterator[node_pb2.ListStatsResponse]":
    request = node_pb2.WatchStatsRequest()
    request.interval.FromMilliseconds(int(every_s * 1000))
    return daemon.follow(WATCH, request, node_pb2.ListStatsResponse)


def _again(daemon: Client, shown: TopScreen, every_s: float, output: str, session: Session) -> None:
    """One table after the other for what is no terminal; one object in each line as JSON."""
    for place, answer in enumerate(watched(daemon, every_s)):
        if place and output == "table":
            click.echo()
        if output == "json":
            from google.protobuf.json_format import MessageToJson

            click.echo(MessageToJson(shown.picked(answer), indent=None))
        else:
            shown.print(answer, output, session)


@click.command()
@click.argument("pod", default="", metavar="[POD[/CONTAINER]]")
@click.option("--summary", is_flag=True, help="Print the JSON of /stats/summary, as a kubelet has it.")
@namespace_option()
@output_option("table", "wide", "json", "yaml")
@click.pass_obj
def stats(session: Session, pod: str, *, summary: bool, namespace: str, output: str) -> None:
    """Show every figure of a pod's containers as the kernel's files have it; -o wide names the files. Without a pod,
    what all containers use, as `kepctl top containers` does."""
    if summary and (pod or namespace or output != "table"):
        raise CommandFailed("--summary is of the whole node and in JSON; expected no pod, -n or -o with it", USAGE)
    if summary:
        with connected(session) as daemon:
            parts = daemon.follow(SUMMARY, node_pb2.GetStatsSummaryRequest(), node_pb2.GetStatsSummaryResponse)
            click.echo(b"".join(part.json for part in parts))
    elif not pod:
        with connected(session) as daemon:
            answer = daemon.call(METHOD, node_pb2.ListStatsRequest(), node_pb2.ListStatsResponse)
        TopScreen("containers", (), namespace, "name", None).print(
            answer, "table" if output == "wide" else output, session
        )
    else:
        _of_pod(session, pod, namespace, output)


def _of_pod(session: Session, pod: str, namespace: str, output: str) -> None:
    request = node_pb2.ListStatsRequest(with_readings=True)
    with connected(session) as daemon:
        answer = daemon.call(METHOD, request, node_pb2.ListStatsResponse)
    found, container = _meant(answer, pod, namespace)
    kept = [one for one in found.containers if container in ("", one.name)]
    if not kept:
        names = ", ".join(one.name for one in found.containers) or "none"
        text = f'no container "{container}" runs in {found.namespace}/{found.name}; it has {names}'
        raise CommandFailed(text, NOT_FOUND)
    if wants_objects(output):
        from google.protobuf.json_format import MessageToDict

        print_data(MessageToDict(found), output)
        return
    age_s = max(time.time() - answer.taken_at.ToMicroseconds() / 1e6, 0.0)
    titles = ["CONTAINER", "FILE", "VALUE", *(["PATH"] if output == "wide" else [])]
    rows = [
        [one.name, reading.name, reading.value, *([reading.path] if output == "wide" else [])]
        for one in kept
        for reading in one.readings
    ]
    print_plain(titles, rows)
    click.echo(f"read {age_s:.1f} s ago", err=True)


def _meant(answer: node_pb2.ListStatsResponse, target: str, namespace: str) -> tuple[node_pb2.PodUsage, str]:
    """A pod, and the container that is named behind it."""
    failed: CommandFailed | None = None
    for pod, container in readings(without_kind(target, "pod")):
        try:
            return TopScreen("pods", (pod,), namespace, "name", None).picked(answer).pods[0], container
        except CommandFailed as error:
            failed = failed or error
    raise failed or CommandFailed(f'no pod "{target}"', NOT_FOUND)

# SPDX-License-Identifier: Apache-2.0
"""`kepctl get`: lists of everything the daemon knows."""

from collections.abc import Callable
from difflib import get_close_matches

import click

from agent.cli.client import Client, connected
from agent.cli.image_listings import PULL_COLUMNS, list_images, list_mirrors, list_pulls, pull_name
from agent.cli.listings import (
    EVENT_COLUMNS,
    POD_COLUMNS,
    event_name,
    list_containers,
    list_events,
    list_nodes,
    list_planes,
    list_pods,
)
from agent.cli.proxy_listings import list_proxy
from agent.cli.render import output_option, print_listing
from agent.cli.service_listings import SERVICE_COLUMNS, list_endpoints, list_rules, list_services, service_name
from agent.cli.session import CommandFailed, Session
from agent.cli.table import Listing
from agent.model.exit_codes import NOT_FOUND
from agent.wire.kepd.v1 import image_pb2, list_pb2, node_pb2, pod_pb2, service_proxy_pb2

NOUNS: dict[str, Callable[[Client], Listing]] = {  # type: ignore[type-arg]  # each noun has its own message
    "nodes": list_nodes,
    "planes": list_planes,
    "pods": list_pods,
    "containers": list_containers,
    "images": list_images,
    "pulls": list_pulls,
    "mirrors": list_mirrors,
    "services": list_services,
    "endpoints": list_endpoints,
    "rules": list_rules,
    "proxy": list_proxy,
    "events": list_events,
}


COMPLETION_LIMIT_S = 0.5


def _noun(word: str) -> str:
    for candidate in (word, f"{word}s"):
        if candidate in NOUNS:
            return candidate
    close = get_close_matches(word, NOUNS, n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"nouns are {', '.join(NOUNS)}"
    raise click.UsageError(f'no list of "{word}"; {hint}')


def _complete_noun(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
    return [word for word in NOUNS if word.startswith(typed)]


def _complete_name(ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
    """Live names for the shell, if the daemon answers quickly."""
    session = Session(endpoint=ctx.parent.params.get("endpoint") if ctx.parent else None, timeout_s=COMPLETION_LIMIT_S)
    try:
        with connected(session) as daemon:
            listing = NOUNS[_noun(ctx.params["kind"])](daemon)
    except (CommandFailed, click.UsageError):
        return []
    names = [listing.name(item).rpartition("/")[2] for item in listing.items]
    return [name for name in names if name.startswith(typed)]


@click.command()
@click.argument("kind", metavar="NOUN", shell_complete=_complete_noun)
@click.argument("name", required=False, shell_complete=_complete_name)
@output_option()
@click.option("-w", "--watch", is_flag=True, help="Keep printing changes (pods, pulls, services, events).")
@click.pass_obj
def get(session: Session, kind: str, name: str | None, output: str, *, watch: bool) -> None:
    """List nodes, planes, pods, containers, images, pulls, mirrors, services, endpoints, rules or events."""
    kind = _noun(kind)
    with connected(session) as daemon:
        if watch:
            _follow(daemon, kind, output, session)
            return
        listing = NOUNS[kind](daemon)
    if name is not None:
        items = [item for item in listing.items if listing.name(item).rpartition("/")[2] == name]
        if not items:
            raise CommandFailed(f'no {kind.removesuffix("s")} "{name}"', NOT_FOUND)
        listing = Listing(listing.kind, items, listing.columns, listing.name)
    print_listing(listing, output, session)


def _follow(daemon: Client, kind: str, output: str, session: Session) -> None:
    if kind == "pods":
        request = pod_pb2.WatchPodsRequest()
        for change in daemon.follow("kepd.v1.PodService/WatchPods", request, pod_pb2.WatchPodsResponse):
            if change.type != list_pb2.CHANGE_TYPE_BOOKMARK:
                pods = Listing("Pod", [change.pod], POD_COLUMNS, lambda pod: f"pod/{pod.namespace}/{pod.name}")
                print_listing(pods, output, session)
    elif kind == "pulls":
        wanted = image_pb2.WatchImagePullsRequest()
        for step in daemon.follow("kepd.v1.ImageService/WatchImagePulls", wanted, image_pb2.WatchImagePullsResponse):
            if step.type not in (list_pb2.CHANGE_TYPE_BOOKMARK, list_pb2.CHANGE_TYPE_DELETED):
                print_listing(Listing("Pull", [step.pull], PULL_COLUMNS, pull_name), output, session)
    elif kind == "services":
        sought = service_proxy_pb2.WatchServicesRequest()
        path = "kepd.v1.ServiceProxyService/WatchServices"
        for turn in daemon.follow(path, sought, service_proxy_pb2.WatchServicesResponse):
            if turn.type not in (list_pb2.CHANGE_TYPE_BOOKMARK, list_pb2.CHANGE_TYPE_DELETED):
                print_listing(Listing("Service", [turn.service], SERVICE_COLUMNS, service_name), output, session)
    elif kind == "events":
        asked = node_pb2.WatchEventsRequest()
        for news in daemon.follow("kepd.v1.NodeService/WatchEvents", asked, node_pb2.WatchEventsResponse):
            if news.type not in (list_pb2.CHANGE_TYPE_BOOKMARK, list_pb2.CHANGE_TYPE_DELETED):
                print_listing(Listing("Event", [news.event], EVENT_COLUMNS, event_name), output, session)
    else:
        raise click.UsageError("only pods, pulls, services and events can be watched")

# SPDX-License-Identifier: Apache-2.0
"""`kepctl describe`: one pod, Service or node in full, with its events at the end."""

from collections.abc import Iterator

import click

from agent.cli.client import Client, connected
from agent.cli.completing import complete_objects, names_of
from agent.cli.objects.foreign import KINDS, in_place_of
from agent.cli.objects.listed import SERVICE, every_event
from agent.cli.objects.words import split_name
from agent.cli.session import Session
from agent.kinds.described import event_lines
from agent.kinds.kind import Kind
from agent.kinds.registry import BY_WORD
from agent.kinds.selection import nearest
from agent.wire.kepd.v1 import object_pb2

DESCRIBED = (
    "pods",
    "deployments",
    "replicasets",
    "replicationcontrollers",
    "daemonsets",
    "statefulsets",
    "jobs",
    "cronjobs",
    "poddisruptionbudgets",
    "networkpolicies",
    "services",
    "claims",
    "persistentvolumeclaims",
    "nodes",
)


def complete_described(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """As everywhere, but of kinds only what can be described."""
    if param.name == "name":
        kind = BY_WORD.get(str(ctx.params.get("kind")).lower())
        return names_of(ctx, kind, typed) if kind is not None else []
    return [word for word in complete_objects(ctx, param, typed) if "/" in word or word in DESCRIBED]


@click.command()
@click.argument("kind", metavar="KIND[/NAME]", shell_complete=complete_described)
@click.argument("name", metavar="[NAME]", default="", shell_complete=complete_described)
@click.option("-o", "--output", hidden=True)
@click.pass_obj
def describe(session: Session, kind: str, name: str, output: str | None) -> None:
    """Show all details of a pod, workload, Service, claim or the node, in sections as kubectl has them."""
    if output is not None:
        given = " ".join(one for one in (kind, name) if one)
        raise click.UsageError(f"describe has no -o {output}; for programs there is kepctl get {given} -o json")
    word, slash, rest = kind.partition("/")
    name = rest if slash else name
    known = BY_WORD.get(word.lower())
    if known is None or known.plural not in DESCRIBED:
        close = nearest(word.lower(), (one for plural in DESCRIBED for one in BY_WORD[plural].words))
        known_words = "pod, a workload, poddisruptionbudget, networkpolicy, service, claim, pvc or node"
        hint = f'did you mean "{close}"?' if close else f"expected {known_words}"
        instead = in_place_of(word, KINDS) or f"; {hint}"
        raise click.UsageError(f'"{word}" cannot be described{instead}')
    if not name and known.has_namespace:
        raise click.UsageError(f"no {known.singular} is named; expected kepctl describe {known.singular} NAME")
    with connected(session) as daemon:
        for line in described(daemon, known, name):
            click.echo(line)


def described(daemon: Client, kind: Kind, name: str) -> Iterator[str]:
    namespace, short = split_name(name, daemon.namespace) if kind.has_namespace else ("", name)
    request = object_pb2.DescribeRequest(kind=kind.plural, namespace=namespace, name=short)
    answer = daemon.call(f"{SERVICE}/Describe", request, object_pb2.DescribeResponse)
    yield from answer.lines
    yield from event_lines(every_event(daemon, answer.event_filters))

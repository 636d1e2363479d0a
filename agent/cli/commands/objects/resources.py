# SPDX-License-Identifier: Apache-2.0
"""`kepctl api-resources`: the kinds that the daemon has."""

from collections.abc import Iterator

import click

from agent.cli.client import ask
from agent.cli.objects.listed import SERVICE
from agent.cli.render import output_option, print_listing
from agent.cli.session import Session
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import object_pb2 as pb


def _verbs(kind: pb.KnownKind) -> Iterator[str]:
    yield "get"
    yield from ("watch",) * kind.is_watched
    yield from ("describe",) * kind.is_described
    if kind.api:
        yield from ("apply", "edit", "delete")


COLUMNS: Columns[pb.KnownKind] = (
    Column("NAME", lambda one: one.plural),
    Column("SHORTNAMES", lambda one: ",".join(one.short)),
    Column("KIND", lambda one: one.api),
    Column("NAMESPACED", lambda one: "true" if one.has_namespace else "false"),
    Column("VERBS", lambda one: ",".join(_verbs(one)), wide=True),
)


@click.command()
@output_option("table", "wide", "json", "yaml", "name")
@click.pass_obj
def api_resources(session: Session, output: str) -> None:
    """List the kinds of objects. Those with a KIND have manifests; the others are what kepd itself knows."""
    kinds = ask(session, f"{SERVICE}/ListKinds", pb.ListKindsRequest(), pb.ListKindsResponse).kinds
    print_listing(Listing("Kind", kinds, COLUMNS, lambda one: one.plural), output, session)

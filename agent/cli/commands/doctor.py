# SPDX-License-Identifier: Apache-2.0
"""`kepctl doctor`: what should be changed on this node, settings of the kubelet included.

Owns: the question and its exit codes: 0 nothing to do, 1 something.
Never: changes anything.
"""

import click

from agent.cli.client import Client, connected
from agent.cli.options import output_option
from agent.cli.render import print_listing
from agent.cli.session import Session
from agent.cli.table import Column, Columns, Listing
from agent.wire.kepd.v1 import node_pb2

__all__ = ["doctor"]

COLUMNS: Columns[node_pb2.Finding] = (
    Column("SUBJECT", lambda one: one.subject),
    Column("IS", lambda one: one.found),
    Column("SHOULD BE", lambda one: one.wanted),
    Column("WHY", lambda one: one.text),
)


@click.command()
@output_option()
@click.pass_context
def doctor(ctx: click.Context, output: str) -> None:
    """List what should be changed on this node, with the reason. Exit code 0: nothing, 1: something."""
    session: Session = ctx.obj
    with connected(session) as daemon:
        findings = diagnosed(daemon)
    listing = Listing("Finding", findings, COLUMNS, lambda one: f"finding/{one.subject}", "nothing to change")
    print_listing(listing, output, session)
    ctx.exit(1 if findings else 0)


def diagnosed(daemon: Client) -> list[node_pb2.Finding]:
    """What every kepd of this node says, for each sees to other things."""
    findings: list[node_pb2.Finding] = []
    asked: Client | None = daemon
    while asked is not None:
        answer = asked.call("kepd.v1.NodeService/Diagnose", node_pb2.DiagnoseRequest(), node_pb2.DiagnoseResponse)
        findings += answer.findings
        asked = asked.other
    return findings

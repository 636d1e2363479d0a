# SPDX-License-Identifier: Apache-2.0
"""`kepctl version`: local and quick.

The daemon's own version is asked for only when wanted: importing gRPC alone takes longer than all the rest.
"""

import click

from agent import __version__
from agent.cli.session import Session


@click.command()
@click.option("--daemon", "ask_daemon", is_flag=True, help="Also print the daemon's version.")
@click.pass_obj
def version(session: Session, *, ask_daemon: bool) -> None:
    """Print the version of this program, and optionally of the daemon."""
    click.echo(f"kepctl {__version__}")
    if not ask_daemon:
        return
    from agent.cli.client import ask
    from agent.wire.kepd.v1 import node_pb2

    answer = ask(session, "kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)
    click.echo(f"kepd   {answer.node.kepd_version}")

# SPDX-License-Identifier: Apache-2.0
"""`kepctl version`: quick, and without a daemon if there is none."""

from pathlib import Path

import click

from agent import __version__
from agent.cli.session import CommandFailed, Session

__all__ = ["version"]


@click.command()
@click.option("--client", is_flag=True, help="The client's alone; asks nobody.")
@click.pass_obj
def version(session: Session, *, client: bool) -> None:
    """Versions of client and daemon."""
    click.echo(f"kepctl {__version__}")
    path = session.sockets()[0]
    if client or not Path(path).exists():
        return
    from agent.cli.client import connected
    from agent.wire.kepd.v1 import node_pb2

    try:
        with connected(session) as daemon:
            answer = daemon.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)
    except CommandFailed as error:
        click.echo(f"kepd    unknown: {error}", err=True)
        return
    click.echo(f"kepd    {answer.node.kepd_version}")

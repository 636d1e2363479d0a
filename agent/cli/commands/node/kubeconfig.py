# SPDX-License-Identifier: Apache-2.0
"""`kepctl kubeconfig`: the way into the door, for kubectl and other clients."""

import click

from agent.cli.client import ask
from agent.cli.session import Session
from agent.wire.kepd.v1 import node_pb2

LEVELS = ("read", "operate", "admin")


@click.command()
@click.option("--level", type=click.Choice(LEVELS), default="read", show_default=True, help="What it allows.")
@click.pass_obj
def kubeconfig(session: Session, level: str) -> None:
    """Print a kubeconfig, with which kubectl and other clients work with this node.

    It needs api.door.address in the configuration. Who holds the file may do what its level allows."""
    request = node_pb2.GetKubeconfigRequest(level=level)
    answer = ask(session, "kepd.v1.NodeService/GetKubeconfig", request, node_pb2.GetKubeconfigResponse)
    click.echo(answer.content, nl=False)

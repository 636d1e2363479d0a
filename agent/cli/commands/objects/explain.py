# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain`: why things are as they are. The answers come from the planes; this is their common roof."""

import click

from agent.cli.client import ask, connected
from agent.cli.commands.node.dns import explain_dns
from agent.cli.commands.planes.claims import cdi, claim
from agent.cli.commands.planes.services import route
from agent.cli.commands.planes.topology import hints, spread
from agent.cli.commands.pods.eviction import explain_eviction
from agent.cli.commands.pods.pods import SERVICE as PODS
from agent.cli.objects.kind_group import KindGroup
from agent.cli.objects.pod_names import find_pod
from agent.cli.objects.workload_pods import find_workload, pods_of
from agent.cli.render import output_option, print_message
from agent.cli.session import Session
from agent.cli.texts.explained_workload import explained_workload
from agent.kinds.images.pulls import stage_line
from agent.kinds.registry import BY_WORD
from agent.wire.kepd.v1 import image_pb2, pod_pb2


@click.group(cls=KindGroup)
def explain() -> None:
    """Explain why a pod, pull, route, hint, name or eviction is as it is."""


explain.add_command(route)
explain.add_command(hints)
explain.add_command(spread)
explain.add_command(claim)
explain.add_command(cdi)
explain.add_command(explain_dns)
explain.add_command(explain_eviction)


@explain.command()
@click.argument("name", metavar="POD")
@output_option("table", "json", "yaml")
@click.pass_obj
def pod(session: Session, name: str, output: str) -> None:
    """Show what a pod waits for, and kepd's latest plan for it."""
    with connected(session) as daemon:
        namespace, found = find_pod(daemon, name)
        request = pod_pb2.ExplainPodRequest(namespace=namespace, name=found)
        answer = daemon.call(f"{PODS}/ExplainPod", request, pod_pb2.ExplainPodResponse)
    if output != "table":
        print_message(answer, output)
        return
    click.echo(explained_head(f"{namespace}/{found}", answer))
    for line in answer.lines:
        click.echo(f"- {line}")


def explained_head(name: str, answer: pod_pb2.ExplainPodResponse) -> str:
    """What has ended, or failed again, does not wait for nothing as one does that is well."""
    if answer.waits_for:
        return f"POD {name}  {answer.status or 'Pending'}; waits for: {answer.waits_for}"
    if answer.phase in ("Succeeded", "Failed"):
        return f"POD {name}  {answer.status}; it has ended, and nothing more happens to it"
    return f"POD {name}  {answer.status or 'Running'}; waits for: nothing"


def _workload(singular: str) -> None:
    kind = BY_WORD[singular]

    @explain.command(singular, help=f"Explain how far a {kind.api} has come, and what the rest of its pods wait for.")
    @click.argument("name", metavar="NAME")
    @click.pass_obj
    def explained(session: Session, name: str) -> None:
        with connected(session) as daemon:
            found, made = find_workload(daemon, kind, name)
            pods = pods_of(daemon, kind, found, made)
        for line in explained_workload(kind, made, pods):
            click.echo(line)


for _singular in ("deployment", "daemonset", "job"):
    _workload(_singular)


@explain.command()
@click.argument("image", metavar="REF")
@output_option("table", "json", "yaml")
@click.pass_obj
def pull(session: Session, image: str, output: str) -> None:
    """Explain why a pull waits or failed, and why its image stays on the node or what would bring it there."""
    request = image_pb2.ExplainPullRequest(image=image)
    answer = ask(session, "kepd.v1.ImageService/ExplainPull", request, image_pb2.ExplainPullResponse)
    if output != "table":
        print_message(answer, output)
        return
    click.echo(f"IMAGE {answer.image}  {answer.reference}  {'present' if answer.is_present else 'not present'}")
    if answer.HasField("pull"):
        click.echo(f"PULL {answer.pull.id}  {stage_line(answer.pull)}")
    for sentence in answer.sentences:
        click.echo(f"- {sentence}")

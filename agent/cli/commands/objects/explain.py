# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain`: why things are as they are. The answers come from the planes; this is their common roof."""

import time
from collections.abc import Iterator
from contextlib import suppress

import click

from agent.cli.client import ask, connected
from agent.cli.commands.node.dns import explain_dns
from agent.cli.commands.planes.claims import cdi, claim
from agent.cli.commands.planes.services import outage, route, show_route
from agent.cli.commands.planes.topology import asked_hints, hints, spread
from agent.cli.commands.pods.eviction import explain_eviction
from agent.cli.commands.pods.pods import SERVICE as PODS
from agent.cli.objects.kind_group import KindGroup
from agent.cli.objects.listed import listed, named_of
from agent.cli.objects.pod_names import find_pod, given_pod
from agent.cli.objects.words import qualified
from agent.cli.objects.workload_pods import find_workload, pods_of
from agent.cli.render import output_option, print_blocks, print_message
from agent.cli.session import CommandFailed, Session
from agent.cli.texts.explained_cron_job import explained_cron_job
from agent.cli.texts.explained_workload import explained_workload
from agent.kinds.described import reason_lines
from agent.kinds.images.pulls import stage_line
from agent.kinds.own_shape import fields_of_message
from agent.kinds.registry import BY_WORD
from agent.kinds.selection import nearest
from agent.kinds.services.networkpolicies import SERVICE as POLICIES
from agent.kinds.services.services import SERVICE as SERVICES
from agent.model.exit_codes import NOT_FOUND
from agent.topology.explain.texts import hints_text
from agent.wire.kepd.v1 import image_pb2, pod_pb2, policy_pb2
from agent.wire.kepd.v1.service_proxy_pb2 import ExplainRouteRequest as ExplainRoute
from agent.wire.kepd.v1.service_proxy_pb2 import ExplainRouteResponse

ANYTHING = "anything"
EXPLAINED = ("pod", "service", "deployment", "daemonset", "statefulset", "job", "cronjob", "policy", "claim")


class Explained(KindGroup):
    anything = ANYTHING


@click.group(cls=Explained)
def explain() -> None:
    """Explain why a pod, Service, pull, hint, name or eviction is as it is.

    `kepctl explain NAME` finds the kind by itself.
    """


explain.add_command(route)
explain.add_command(hints)
explain.add_command(spread)
explain.add_command(claim)
explain.add_command(cdi)
explain.add_command(explain_dns)
explain.add_command(outage)
explain.add_command(explain_eviction)


@explain.command()
@click.argument("name", metavar="POD")
@output_option("table", "json", "yaml")
@click.pass_obj
def pod(session: Session, name: str, output: str) -> None:
    """Show what a pod waits for, and kepd's latest plan for it."""
    with connected(session) as daemon:
        try:
            namespace, found = find_pod(daemon, name)
        except CommandFailed as error:
            if error.exit_code != NOT_FOUND:
                raise
            # No list has it, but the daemon knows whether a manifest with a fault may have.
            namespace, found = given_pod(daemon, name)
        request = pod_pb2.ExplainPodRequest(namespace=namespace, name=found)
        answer = daemon.call(f"{PODS}/ExplainPod", request, pod_pb2.ExplainPodResponse)
    if output != "table":
        print_message(answer, output)
        return
    for line in explained_head(f"{namespace}/{found}", answer):
        click.echo(line)
    for line in answer.lines:
        click.echo(f"- {line}")


def explained_head(name: str, answer: pod_pb2.ExplainPodResponse) -> Iterator[str]:
    """The cause first. What has ended well does not wait for nothing as one does that runs."""
    head = f"POD {name}  {answer.status or 'Pending'}"
    if answer.reasons:
        first, *rest = reason_lines(answer.reasons)
        yield f"{head}: {first}"
        yield from rest
    elif answer.phase in ("Succeeded", "Failed"):
        yield f"{head}; it has ended, and nothing more happens to it"
    else:
        yield f"{head}; it is well and waits for nothing"


def _workload(singular: str) -> None:
    kind = BY_WORD[singular]

    @explain.command(singular, help=f"Explain how far a {kind.api} has come, and what the rest of its pods wait for.")
    @click.argument("name", metavar="NAME")
    @click.pass_obj
    def explained(session: Session, name: str) -> None:
        with connected(session) as daemon:
            _, made = find_workload(daemon, kind, name)
            pods = pods_of(daemon, kind, made)
        for line in explained_workload(kind, made, pods):
            click.echo(line)


for _singular in ("deployment", "daemonset", "job"):
    _workload(_singular)


@explain.command()
@click.argument("name", metavar="NAME")
@click.pass_obj
def cronjob(session: Session, name: str) -> None:
    """Explain when a CronJob starts next, in its zone and UTC, and why the last time did or did not."""
    with connected(session) as daemon:
        _, made = find_workload(daemon, BY_WORD["cronjob"], name)
    for line in explained_cron_job(made, time.time()):
        click.echo(line)


@explain.command()
@click.argument("name", metavar="[NAMESPACE/]NAME")
@output_option("table", "wide", "json", "yaml")
@click.pass_obj
def service(session: Session, name: str, output: str) -> None:
    """Explain why a Service answers or not: its endpoints, where its traffic goes, its topology hints."""
    full = qualified(name, "service", session.namespace)
    answer = ask(session, f"{SERVICES}/ExplainRoute", ExplainRoute(service=full), ExplainRouteResponse)
    if output in ("json", "yaml"):
        print_message(answer, output)
        return
    show_route(f"SERVICE {full}", answer, output, session)
    # Where hints are computed elsewhere, the lines above have all there is to say of them.
    with suppress(CommandFailed):
        print_blocks(hints_text(asked_hints(session, full)), session)


@explain.command(ANYTHING, hidden=True)
@click.argument("name", metavar="NAME")
@output_option("table", "json", "yaml")
@click.pass_context
def anything(ctx: click.Context, name: str, output: str) -> None:
    """Explain what is called so, of whatever kind it is."""
    session: Session = ctx.obj
    found = []
    with connected(session) as daemon:
        for singular in EXPLAINED:
            # The plane of a kind may be off.
            with suppress(CommandFailed):
                rows = named_of(listed(daemon, BY_WORD[singular]), BY_WORD[singular], [name], session.namespace).rows
                found += [(singular, f"{row.namespace}/{row.name}") for row in rows[:1]]
    if not found:
        known = sorted(set(explain.commands) - {ANYTHING})
        close = nearest(name, known)
        hint = f'; did you mean "kepctl explain {close}"?' if close else f"; kinds that it explains: {', '.join(known)}"
        raise CommandFailed(f'nothing here is called "{name}"{hint}', NOT_FOUND)
    for singular, full in found:
        # The daemon has no message for a workload, only these lines.
        more = {"output": output} if any(one.name == "output" for one in explain.commands[singular].params) else {}
        ctx.invoke(explain.commands[singular], name=full, **more)


@explain.command()
@click.argument("name", metavar="[NAMESPACE/]NAME")
@output_option("table", "json", "yaml")
@click.pass_obj
def policy(session: Session, name: str, output: str) -> None:
    """Explain which pods a NetworkPolicy selects, and what it allows them, with the addresses of now."""
    full = qualified(name, "networkpolicy", session.namespace)
    namespace, _, short = full.partition("/")
    request = policy_pb2.ExplainPolicyRequest(namespace=namespace, name=short)
    answer = ask(session, f"{POLICIES}/ExplainPolicy", request, policy_pb2.ExplainPolicyResponse)
    if output != "table":
        print_message(answer, output)
        return
    click.echo(f"POLICY {full}  {'in force' if answer.is_in_force else 'NOT in force'}")
    for line in answer.lines:
        click.echo(f"- {line}")


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
        click.echo(f"PULL {answer.pull.id}  {stage_line(fields_of_message(answer.pull))}")
    for sentence in answer.sentences:
        click.echo(f"- {sentence}")

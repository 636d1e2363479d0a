# SPDX-License-Identifier: Apache-2.0
"""`kepctl rules`, `diff`, `trace`, `explain route`, `explain outage` and `end connections`: what is in the kernel,
where a packet would go, and how to end what goes nowhere.

Exit codes: 0 equal or arrives, 1 different or does not, 2 wrong input.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import click
from msgspec.structs import replace

from agent.cli.client import ask, connected
from agent.cli.objects.kind_group import KindGroup
from agent.cli.objects.listed import got, objects
from agent.cli.objects.pod_names import find_pod
from agent.cli.objects.words import find_named, qualified, without_kind
from agent.cli.render import output_option, print_listing, print_message
from agent.cli.session import CommandFailed, Session
from agent.kinds.ages import age_of
from agent.kinds.described import reason_lines
from agent.kinds.kind import Named
from agent.kinds.own_shape import fields_of_message
from agent.kinds.pods.pod_parts import told
from agent.kinds.registry import BY_WORD
from agent.kinds.services.endpoints import COLUMNS as ENDPOINT_COLUMNS
from agent.kinds.services.rules import COLUMNS as RULE_COLUMNS
from agent.kinds.services.services import SERVICE, ports_of
from agent.kinds.table import FACTS, Column, Columns, Listing, Object, names_of
from agent.model.exit_codes import CONFLICT, USAGE
from agent.wire.kepd.v1 import policy_pb2
from agent.wire.kepd.v1 import service_proxy_pb2 as pb

TARGET = re.compile(r"\[(?P<v6>[^]]+)\]:(?P<v6_port>\d+)|(?P<v4>[^:]+):(?P<v4_port>\d+)", re.ASCII)

DIFFERENCES: Columns[pb.RuleDifference] = (
    Column("FAMILY", lambda one: one.family),
    Column("MAP", lambda one: one.map),
    Column("KEY", lambda one: one.key),
    Column("SHOULD BE", lambda one: one.desired or "absent"),
    Column("IS", lambda one: one.actual or "absent"),
)

CONNECTIONS: Columns[pb.Connection] = (
    Column("FAMILY", lambda one: one.family),
    Column("CLIENT", lambda one: one.client),
    Column("TO", lambda one: one.target),
    Column("ENDPOINT", lambda one: one.endpoint),
)
MOST_S = 600.0


@click.command()
@click.argument("service", metavar="[NAMESPACE/NAME]", default="")
@click.option("--desired", is_flag=True, help="List the rules that should be there, without reading the kernel.")
@output_option()
@click.pass_obj
def rules(session: Session, service: str, output: str, *, desired: bool) -> None:
    """List the elements of kepd's nftables maps, for one Service or all."""
    with connected(session) as daemon:
        wanted = qualified(service, "service", session.namespace) if service else ""
        request = pb.ListRulesRequest(service=wanted, desired=desired)
        answer = daemon.call(f"{SERVICE}/ListRules", request, pb.ListRulesResponse)
    columns = [Column(column.title, _shown_by(column)) for column in RULE_COLUMNS]
    listing = Listing("Rule", answer.rules, columns, lambda one: f"rule/{one.map}/{one.key}", "no rules")
    print_listing(listing, output, session)


@click.command()
@output_option()
@click.pass_context
def diff(ctx: click.Context, output: str) -> None:
    """Compare the rules in the kernel with those that should be there. Exit code 0: equal, 1: different."""
    session: Session = ctx.obj
    answer = ask(session, f"{SERVICE}/DiffRules", pb.DiffRulesRequest(), pb.DiffRulesResponse)
    listing = Listing(
        "RuleDifference", answer.differences, DIFFERENCES, lambda one: f"rule/{one.map}/{one.key}", "no difference"
    )
    print_listing(listing, output, session)
    ctx.exit(1 if answer.differences else 0)


@click.command()
@click.argument("pod", metavar="[POD]", default="")
@click.argument("service", metavar="[SERVICE[:PORT]]", default="")
@click.option("--from", "source", default="", metavar="IP", help="Source address of the connection.")
@click.option("--to", "target", default="", metavar="IP:PORT", help="Destination; IPv6 in brackets.")
@click.option("--protocol", default="", help="TCP, UDP or SCTP [TCP, or that of the Service's port].")
@click.option("--kernel", is_flag=True, help="Trace the elements that the kernel has now.")
@output_option("table", "json", "yaml")
@click.pass_context
def trace(
    ctx: click.Context, *, pod: str, service: str, source: str, target: str, protocol: str, kernel: bool, output: str
) -> None:  # fmt: skip
    """Follow a new connection through the rules, from a POD to a SERVICE or between addresses.

    Exit code 0: it reaches an endpoint, 1: it does not.
    """
    if bool(pod) == bool(source) or bool(service) == bool(target):
        raise click.UsageError("expected POD and SERVICE, or --from and --to")
    if pod:
        source, target, protocol = _addresses(ctx.obj, pod, service, protocol)
    found = TARGET.fullmatch(target)
    if found is None:
        raise click.BadParameter(
            f'"{target}" is not valid; expected IP:PORT, for instance 10.96.0.10:80 or [fd00::10]:80'
        )
    address, port = (found["v6"], found["v6_port"]) if found["v6"] else (found["v4"], found["v4_port"])
    request = pb.TracePacketRequest(to=address, port=min(int(port), 2**31), protocol=protocol or "TCP", kernel=kernel)
    setattr(request, "from", source)
    session: Session = ctx.obj
    answer = ask(session, f"{SERVICE}/TracePacket", request, pb.TracePacketResponse)
    add_policies(session, answer, source, target, request.protocol)
    if output == "table":
        for step in answer.steps:
            click.echo(f"{step.place}: {step.found}")
        whose = f"service/{answer.service}: " if answer.service else ""
        where = f" to one of {', '.join(answer.targets)}" if answer.targets else ""
        click.echo(f"=> {whose}{answer.verdict}{where}")
        if answer.masquerade:
            click.echo(f"   masqueraded: {answer.masquerade}")
    else:
        print_message(answer, output)
    ctx.exit(0 if answer.verdict in ("dnat", "relay") else 1)


def add_policies(session: Session, answer: pb.TracePacketResponse, source: str, target: str, protocol: str) -> None:
    """What NetworkPolicies say of it: of the endpoint that it may come to, or of where it is sent."""
    if answer.verdict not in ("dnat", "pass"):
        return
    verdicts = []
    for end in answer.targets or [target]:
        address, _, port = end.rpartition(":")
        request = policy_pb2.JudgePacketRequest(to=address.strip("[]"), port=int(port), protocol=protocol)
        setattr(request, "from", source)
        # The plane may be off.
        with suppress(CommandFailed):
            found = ask(session, "kepd.v1.PolicyService/JudgePacket", request, policy_pb2.JudgePacketResponse)
            verdicts.append(found.is_allowed)
            for step in found.steps:
                more = f" (to {end})" if len(answer.targets) > 1 else ""
                answer.steps.add(place=step.place, found=f"{step.found}{more}")
    if verdicts and not any(verdicts):
        answer.verdict = "drop"


def _addresses(session: Session, pod: str, service: str, protocol: str) -> tuple[str, str, str]:
    """Of a pod, and of a Service with its only port, or one by its name or number."""
    name, _, wanted = service.partition(":")
    with connected(session) as daemon:
        namespace, full = find_pod(daemon, pod)
        source = told(got(daemon, "pods", namespace, full), "podIP")
        services = objects(daemon, "services")
        known = [Named(*names_of(made)) for made in services]
        to = services[known.index(find_named(BY_WORD["services"], without_kind(name, "service"), known, namespace))]
    ports = [
        port for port in ports_of(to)
        if wanted in ("", port["name"], str(port["port"])) and protocol.upper() in ("", port["protocol"])
        and (port["family"] == "IPv6") == (":" in source)
    ]  # fmt: skip
    address = next((one for one in to[FACTS]["clusterIps"] if (":" in one) == (":" in source)), "")
    if not source or not address:
        lacking = f"pod {namespace}/{full}" if not source else f"Service {'/'.join(names_of(to))}"
        raise CommandFailed(f"{lacking} has no address of that family; say --from IP --to IP:PORT", CONFLICT)
    if len(ports) != 1:
        names = ", ".join(f"{port['port']}/{port['protocol']}" for port in ports_of(to)) or "none"
        raise CommandFailed(f"{service}: which port? It has {names}; expected SERVICE:PORT, or --protocol", USAGE)
    target = f"[{address}]" if ":" in address else address
    return source, f"{target}:{ports[0]['port']}", ports[0]["protocol"]


@click.command()
@click.argument("service", metavar="NAMESPACE/NAME[:PORT]")
@output_option("table", "wide", "json", "yaml")
@click.pass_obj
def route(session: Session, service: str, output: str) -> None:
    """Show where a Service's traffic goes from this node, and why each endpoint is used or not."""
    name, sign, port = service.partition(":")
    full = qualified(name, "service", session.namespace)
    request = pb.ExplainRouteRequest(service=full)
    if sign:
        request.port = port
    answer = ask(session, f"{SERVICE}/ExplainRoute", request, pb.ExplainRouteResponse)
    if output in ("json", "yaml"):
        print_message(answer, output)
        return
    show_route(f"ROUTE {full}", answer, output, session)


def _shown_by(column: Column[Object]) -> Callable[[Any], str]:
    """A column of objects for the messages of a call, which have the same fields."""
    return lambda message: column.cell({"status": fields_of_message(message)})


def show_route(title: str, answer: pb.ExplainRouteResponse, output: str, session: Session) -> None:
    """What is wrong, each way in, then each endpoint with the reason for its use."""
    first, *rest = [*reason_lines(answer.reasons)] or ["all of its ready endpoints get traffic"]
    for line in (f"{title}: {first}", *rest):
        click.echo(line)
    for line in answer.lines:
        click.echo(line)
    columns = [Column(column.title, _shown_by(column)) for column in ENDPOINT_COLUMNS[1:]]
    listing = Listing("Endpoint", answer.endpoints, columns, lambda one: f"endpoint/{one.endpoint}", "no endpoints")
    print_listing(listing, output, session)


DEAD: Columns[pb.DeadEndpoint] = (
    Column("SERVICE", lambda one: one.service),
    Column("ENDPOINT", lambda one: f"{one.endpoint}/{one.protocol}"),
    Column("NODE", lambda one: one.node),
    Column("WHY", lambda one: one.why),
)


@click.command()
@output_option("table", "json", "yaml")
@click.pass_obj
def outage(session: Session, output: str) -> None:
    """Explain since when no API server answers, what is done about it, and which endpoints are dead meanwhile."""
    answer = ask(session, f"{SERVICE}/ExplainOutage", pb.ExplainOutageRequest(), pb.ExplainOutageResponse)
    if output != "table":
        print_message(answer, output)
        return
    for line in outage_lines(answer, time.time()):
        click.echo(line)
    if answer.dead:
        listing = Listing("DeadEndpoint", answer.dead, DEAD, lambda one: f"endpoint/{one.endpoint}", "")
        print_listing(listing, output, session)


def outage_lines(answer: pb.ExplainOutageResponse, now_s: float) -> Iterator[str]:
    if answer.mode == "off":
        yield "OUTAGE services.outage is off: without an API server everything stays as it is, dead endpoints included"
        return
    yield f"OUTAGE {answer.phase} for {age_of(answer.since, now_s)}, services.outage: {answer.mode}"
    yield from (f"- {line}" for line in answer.lines)
    if answer.HasField("snapshot"):
        age = age_of(answer.snapshot, now_s)
        yield f"- this kepd began with a snapshot that a server vouched for {age} ago"
    if answer.checked:
        yield f"- {answer.dead_total} of {answer.checked} endpoints are dead"


@click.group(cls=KindGroup)
def end() -> None:
    """End connections of a Service."""


@end.command("connections")
@click.argument("service", metavar="NAMESPACE/NAME")
@click.option("--to", default="", metavar="IP:PORT", help="Those to this endpoint, whether it is gone or not.")
@click.option("--dry-run", is_flag=True, help="Only list them.")
@output_option()
@click.pass_obj
def end_connections(session: Session, *, service: str, to: str, dry_run: bool, output: str) -> None:
    """End TCP connections of a Service to endpoints that are gone.

    An endpoint is gone when no EndpointSlice of the Service has it. Whoever sends on such a connection gets a reset.
    """
    name = qualified(service, "service", session.namespace)
    request = pb.EndConnectionsRequest(service=name, to=to, dry_run=dry_run)
    patient = replace(session, timeout_s=max(session.timeout_s, MOST_S))
    answer = ask(patient, f"{SERVICE}/EndConnections", request, pb.EndConnectionsResponse)
    if output in ("json", "yaml"):
        print_message(answer, output)
        return
    listing = Listing(
        "Connection", answer.connections, CONNECTIONS, lambda one: f"connection/{one.client}", "no such connections"
    )
    print_listing(listing, output, session)
    if output != "name" and answer.total:
        ended = f"{answer.entries} ended, {answer.sockets} sockets of this host" if not dry_run else "none ended"
        click.echo(f"{answer.total} connections, {ended}", err=True)

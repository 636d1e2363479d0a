# SPDX-License-Identifier: Apache-2.0
"""`kepctl status`, `health` and `doctor`: the node, whether all is well, and what should be changed on it."""

import json
from collections.abc import Iterator

import click
from grpc_health.v1 import health_pb2

from agent.cli.client import Client, connected
from agent.cli.objects.listed import listed
from agent.cli.render import output_option, print_listing, print_message, print_table
from agent.cli.session import CommandFailed, Session
from agent.kinds.ages import age
from agent.kinds.registry import BY_WORD
from agent.kinds.table import Column, Columns, Listing
from agent.model.finding import printable
from agent.wire.kepd.v1 import node_pb2


@click.command()
@output_option("table", "json", "yaml")
@click.pass_obj
def status(session: Session, output: str) -> None:
    """Show the node and its planes at a glance."""
    with connected(session) as daemon:
        answer = daemon.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse)
        planes = listed(daemon, BY_WORD["planes"])
    if output != "table":
        print_message(answer.node, output)
        return
    node = answer.node
    runtime = f"{node.runtime.name} {node.runtime.version}" if node.runtime.is_connected else node.runtime.message
    click.echo(f"node     {node.name}  (Linux {node.kernel_version}, cgroup v{node.cgroup_version})")
    click.echo(f"kepd     {node.kepd_version}  pid {node.pid}")
    click.echo(f"runtime  {runtime}  {node.runtime.endpoint}")
    for line in _drain_lines(node.drain) if node.HasField("drain") else ():
        click.echo(printable(line))
    click.echo()
    print_table(planes, "table", session)


def _drain_lines(drain: node_pb2.Drain) -> Iterator[str]:
    why = f": {drain.reason}" if drain.reason else ""
    done = "cordoned" if drain.keeps_pods else "drained "
    waits = f"; waits for {', '.join(drain.waits_for)}" if drain.waits_for else "; all pods have ended"
    if drain.keeps_pods:
        waits = ""
    elif drain.selector:
        waits = f"; of {drain.selector} {waits.removeprefix('; ')}"
    yield f"{done} by {drain.by}, {age(drain.began_at)} ago{why}{waits}; kepctl uncordon ends it"
    for one in drain.kept:
        yield f"         {one.pod} stays: {one.why}"


@click.command()
@output_option("table", "json", "yaml")
@click.pass_obj
def health(session: Session, output: str) -> None:
    """Check that every part of the daemon is healthy. Exit code 1 if not."""
    request = health_pb2.HealthListRequest()
    with connected(session) as daemon:
        answer = daemon.call("grpc.health.v1.Health/List", request, health_pb2.HealthListResponse)
        planes = listed(daemon, BY_WORD["planes"], with_objects=True).rows if output == "table" else ()
    if output == "table":
        told = {plane.name: json.loads(plane.object).get("message", "") for plane in planes}
        for name, state in sorted(answer.statuses.items()):
            word = "ok" if state.status == health_pb2.HealthCheckResponse.SERVING else "NOT OK"
            click.echo(f"{word:8}{name or 'kepd':16}{told.get(name, '')}".rstrip())
    else:
        print_message(answer, output)
    bad = [name for name, state in answer.statuses.items() if state.status != health_pb2.HealthCheckResponse.SERVING]
    if bad:
        raise CommandFailed(f"unhealthy: {', '.join(sorted(bad))}; kepctl status says why")


COLUMNS: Columns[node_pb2.Finding] = (
    Column("SUBJECT", lambda one: one.subject),
    Column("IS", lambda one: one.found),
    Column("SHOULD BE", lambda one: "as it is" if one.is_note else one.wanted),
    Column("WHY", lambda one: one.text),
    Column("TO MEND IT", lambda one: one.mend),
)


@click.command()
@output_option()
@click.pass_context
def doctor(ctx: click.Context, output: str) -> None:
    """List what should be changed on this node, with the reason, and what is good to know. Exit code 0: nothing has to
    change, 1: something."""
    session: Session = ctx.obj
    with connected(session) as daemon:
        findings = diagnosed(daemon)
    listing = Listing("Finding", findings, COLUMNS, lambda one: f"finding/{one.subject}", "nothing to change")
    print_listing(listing, output, session)
    ctx.exit(0 if all(one.is_note for one in findings) else 1)


def diagnosed(daemon: Client) -> list[node_pb2.Finding]:
    """What every kepd of this node says, for each sees to other things."""
    findings: list[node_pb2.Finding] = []
    asked: Client | None = daemon
    while asked is not None:
        answer = asked.call("kepd.v1.NodeService/Diagnose", node_pb2.DiagnoseRequest(), node_pb2.DiagnoseResponse)
        for one in answer.findings:
            if one.subject.startswith("kepd ") and daemon.other is not None:
                # Whose part it is, where there are several.
                one.subject += f" of {asked.path}"
            if one not in findings:
                findings.append(one)
        asked = asked.other
    return findings

# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain hints`, `kepctl explain spread`, `kepctl plan zones`: from files, or as the daemon has it.

Exit codes: 0 yes, 1 no, 2 wrong input.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from agent.cli.objects.kind_group import KindGroup
from agent.cli.objects.words import qualified
from agent.cli.render import output_option, print_blocks, print_data
from agent.cli.session import CommandFailed, Session, content_of
from agent.config.strict_yaml import documents_or_fault, plain
from agent.model.exit_codes import USAGE
from agent.model.nodes.node import ZONE_LABEL
from agent.topology.explain.documents import NotThereError, explain_hints, explain_spread, plan_for_pod
from agent.topology.explain.hints import HintsExplanation
from agent.topology.explain.spread import SpreadExplanation
from agent.topology.explain.texts import hints_text, plan_text, spread_text
from agent.topology.hints.capacity import read_zone_quantities
from agent.topology.hints.zones import ZonePlan, parse_replicas, parse_zones, plan_zones
from agent.topology.manifest.objects import Document, Manifests, read_manifests
from agent.topology.spread.filter import WhatIf

# What only hints need of a Node; spread does not ask for it.
CAPACITY_PATHS = ("status.", f"metadata.labels[{ZONE_LABEL}]")
SUFFIXES = frozenset({".yaml", ".yml", ".json"})
FROM_FILES = click.option(
    "--from-files",
    "sources",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Manifests to read, instead of those of the running daemon; as often as there are files or directories.",
)


class Plans(KindGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "stop":
            from agent.cli.commands.pods.stop_plan import stop

            stop.format_epilog = self.format_epilog  # type: ignore[method-assign]  # all show examples alike
            return stop
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "stop"])


@click.group(cls=Plans)
def plan() -> None:
    """Compute what would happen, without doing it."""


@click.command()
@click.argument("service", metavar="NAMESPACE/NAME")
@FROM_FILES
@output_option("table", "json", "yaml")
@click.pass_context
def hints(ctx: click.Context, service: str, sources: tuple[Path, ...], output: str) -> None:
    """Explain why a Service has or has no topology hints. Exit code 0: it has, 1: it has none, 2: wrong input."""
    session: Session = ctx.obj
    service = qualified(service, "service", session.namespace)
    if not sources:
        explanation = asked_hints(session, service)
    else:
        manifests = _read(*sources)
        try:
            explanation = explain_hints(manifests, service)
        except NotThereError as error:
            raise CommandFailed(str(error), USAGE) from error
    if output == "table":
        print_blocks(hints_text(explanation), session)
    else:
        print_data(_hints_document(explanation), output)
    ctx.exit(explanation.exit_code)


@click.command()
@click.argument("pod", metavar="NAMESPACE/NAME")
@FROM_FILES
@click.option("--honor-taints", is_flag=True, help="What if nodeTaintsPolicy were Honor?")
@click.option("--min-domains", type=click.IntRange(1), help="What if minDomains were N?")
@click.option("--drop", multiple=True, metavar="NODE", help="What if this node were gone?")
@click.option("--ignore-dead-domains", is_flag=True, help="What if fully tainted domains did not hold the minimum?")
@output_option("table", "json", "yaml")
@click.pass_context
def spread(
    ctx: click.Context,
    *,
    pod: str,
    sources: tuple[Path, ...],
    honor_taints: bool,
    min_domains: int | None,
    drop: tuple[str, ...],
    ignore_dead_domains: bool,
    output: str,
) -> None:
    """Show where a pod's spread constraints let it go. Exit code 0: somewhere, 1: nowhere, 2: wrong input."""
    what_if = WhatIf(honor_taints, min_domains, frozenset(drop), ignore_dead_domains)
    session: Session = ctx.obj
    pod = qualified(pod, "pod", session.namespace)
    if not sources:
        explanation = _asked_spread(session, pod, what_if)
    else:
        manifests = _read(*sources, for_hints=False)
        try:
            explanation = explain_spread(manifests, pod, what_if)
        except NotThereError as error:
            raise CommandFailed(str(error), USAGE) from error
    if output == "table":
        print_blocks(spread_text(explanation), session)
    else:
        print_data(msgspec.to_builtins(explanation), output)
    ctx.exit(explanation.exit_code)


def asked_hints(session: Session, service: str) -> HintsExplanation:
    from agent.cli.client import ask
    from agent.wire.kepd.v1 import topology_pb2 as pb

    request = pb.ExplainHintsRequest(service=service)
    answer = ask(session, "kepd.v1.TopologyService/ExplainHints", request, pb.ExplainHintsResponse)
    return msgspec.json.decode(answer.explanation, type=HintsExplanation)


def _asked_spread(session: Session, pod: str, what_if: WhatIf) -> SpreadExplanation:
    from agent.cli.client import ask
    from agent.wire.kepd.v1 import topology_pb2 as pb

    request = pb.ExplainSpreadRequest(
        pod=pod,
        honor_taints=what_if.honors_taints,
        min_domains=what_if.min_domains or 0,
        without_nodes=sorted(what_if.dropped_nodes),
        ignore_dead_domains=what_if.ignores_dead_domains,
    )
    answer = ask(session, "kepd.v1.TopologyService/ExplainSpread", request, pb.ExplainSpreadResponse)
    return msgspec.json.decode(answer.explanation, type=SpreadExplanation)


@plan.command()
@click.option("--zones", metavar="A=CPU,B=CPU", help="Zones with their allocatable CPUs.")
@click.option("--pod", "pod_file", type=click.Path(exists=True, path_type=Path), help="Manifest of a pod or workload.")
@click.option("--nodes", "node_source", type=click.Path(exists=True, path_type=Path), help="Manifests of the nodes.")
@click.option("--replicas", default="1..30", show_default=True, metavar="N..M", help="Numbers of replicas.")
@output_option("table", "json", "yaml")
@click.pass_obj
def zones(
    session: Session, *, zones: str | None, pod_file: Path | None, node_source: Path | None, replicas: str, output: str
) -> None:
    """Show for which numbers of replicas topology hints are active, and what each zone then gets."""
    try:
        table = _plan_table(zones, pod_file, node_source, parse_replicas(replicas))
    except (ValueError, NotThereError) as error:
        raise CommandFailed(str(error), USAGE) from error
    if output == "table":
        print_blocks(plan_text(table), session)
    else:
        print_data(_plan_document(table), output)


def _plan_table(zones: str | None, pod_file: Path | None, node_source: Path | None, replicas: range) -> ZonePlan:
    if zones is not None and pod_file is None and node_source is None:
        quantities = parse_zones(zones)
        return plan_zones(read_zone_quantities(quantities), replicas.start, replicas.stop - 1, sorted(quantities))
    if zones is None and pod_file is not None and node_source is not None:
        pods = _read(pod_file)
        nodes = _read(node_source).nodes
        return plan_for_pod(msgspec.structs.replace(pods, nodes=nodes), replicas)
    raise CommandFailed("give either --zones, or --pod together with --nodes", USAGE)


def _read(*sources: Path, for_hints: bool = True) -> Manifests:
    """Manifests of files and directories, as one whole. Errors end the command; notes are shown where they bear on the
    question."""
    manifests = read_manifests(list(documents_of(sources)))
    notes = [note for note in manifests.notes if for_hints or not note.path.startswith(CAPACITY_PATHS)]
    for finding in (*manifests.errors, *notes):
        click.echo(str(finding), err=True)
    if manifests.errors:
        sys.exit(USAGE)
    return manifests


def documents_of(sources: Iterable[Path]) -> Iterator[Document]:
    for path in (path for source in sources for path in files_of(source)):
        trees, findings = documents_or_fault(content_of(path), str(path))
        if findings:
            raise CommandFailed("\n".join(map(str, findings)), USAGE)
        for tree in trees:
            yield Document(tree.where, plain(tree))


def files_of(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    return sorted(one for one in source.rglob("*") if one.suffix in SUFFIXES and not one.name.startswith("."))


def _hints_document(explanation: HintsExplanation) -> dict[str, object]:
    """One object per family: the numbers of the assignment, and beside them what explains them."""
    families = []
    for family in explanation.families:
        explained = msgspec.to_builtins(family)
        numbers = explained.pop("document") or {}
        families.append({**numbers, "explanation": explained})
    return {"service": explanation.service, "mode": msgspec.to_builtins(explanation.choice), "families": families}


def _plan_document(table: ZonePlan) -> dict[str, object]:
    """The rows with the names that people know from the table."""
    rows = [
        {
            "n": row.n,
            "active": row.refusal is None,
            "reason": row.refusal,
            "min": row.least,
            "minTotal": row.least_total,
            "placed": row.placed,
            "perZone": row.per_zone,
            "donated": row.donated,
        }
        for row in table.rows
    ]
    return {"rows": rows, "alwaysFrom": table.always_from, "remarks": list(table.remarks)}

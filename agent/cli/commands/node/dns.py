# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain dns NAME`, `flush dns`. Exit codes of an explanation: 0 the name has records, 1 none is known."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from agent.cli.client import ask, connected
from agent.cli.objects.kind_group import KindGroup
from agent.cli.objects.pod_names import find_pod
from agent.cli.render import output_option, print_data, print_message
from agent.cli.session import CommandFailed, Session
from agent.config.packages import is_installed, not_installed
from agent.model.exit_codes import FAILURE, USAGE
from agent.model.services.dns_report import NameExplanation
from agent.wire.kepd.v1 import dns_pb2 as pb

SERVICE = "kepd.v1.DnsService"


@click.command("dns")
@click.argument("name", metavar="NAME")
@click.argument("type_", metavar="[TYPE]", default="A")
@click.option(
    "--from", "pod", default="", metavar="[NAMESPACE/]POD", help="With the search list of this pod, not the usual one."
)
@click.option("--trace", "is_traced", is_flag=True, help="Ask for it, and say what is answered in what time.")
@click.option(
    "--from-files",
    "source",
    type=click.Path(exists=True, path_type=Path),
    help="Manifests to read, as a bare node does, instead of asking the running daemon.",
)
@output_option("table", "json", "yaml")
@click.pass_context
def explain_dns(
    ctx: click.Context, *, name: str, type_: str, pod: str, is_traced: bool, source: Path | None, output: str
) -> None:  # fmt: skip
    """Explain what is answered to NAME, from what, or who is asked. Exit code 0: it has records, 1: none is known."""
    session: Session = ctx.obj
    if pod and source is None:
        with connected(session) as daemon, suppress(CommandFailed):
            pod = "/".join(find_pod(daemon, pod))
    if (pod and "/" not in pod) or "." not in name:
        # A pod adds its search list to a name without a dot, so an explanation does too.
        pod = f"{session.namespace or 'default'}/{pod}" if "/" not in pod else pod
    if source is not None:
        if is_traced:
            raise CommandFailed(
                "expected one of --trace and --from-files; --trace asks the running kepd-dns",
                USAGE,
            )
        report = _from_files(source, name, type_.upper(), pod)
        _print(explained(report)) if output == "table" else print_data(msgspec.to_builtins(report), output)
        ctx.exit(0 if report.is_found else FAILURE)
    request = pb.ExplainNameRequest(name=name, type=type_.upper(), pod=pod, is_traced=is_traced)
    answer = ask(session, f"{SERVICE}/ExplainName", request, pb.ExplainNameResponse)
    _print(explained(answer)) if output == "table" else print_message(answer, output)
    ctx.exit(0 if answer.is_found else FAILURE)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _from_files(source: Path, name: str, type_: str, pod: str) -> NameExplanation:
    if not is_installed("dns"):
        raise CommandFailed(f"the plane for names is {not_installed('dns')}; --from-files needs it", USAGE)
    from agent.cli.objects.manifest_files import read_files
    from kepd_dns.view.from_files import UnreadableFile, explain_files

    try:
        return explain_files({one.path: one.content for one in read_files([str(source)])}, name, type_, pod)
    except UnreadableFile as error:
        raise CommandFailed(str(error), USAGE) from error


def explained(answer: pb.ExplainNameResponse | NameExplanation) -> Iterator[str]:
    for one in answer.steps:
        yield f"QUESTION {one.name}  zone {one.zone} ({one.kind})  {one.code or 'not known yet'}"
        yield from (f"  {record}" for record in one.records)
        yield from (f"- {sentence}" for sentence in one.sentences)


@click.group(cls=KindGroup)
def flush() -> None:
    """Forget answers to names."""


@flush.command("dns")
@click.argument("name", metavar="[NAME]", default="")
@click.option("--zone", default="", help="All names of this zone.")
@click.pass_obj
def flush_dns(session: Session, name: str, zone: str) -> None:
    """Forget the answers kept for NAME, for a zone, or all of them."""
    if name and zone:
        raise CommandFailed("expected either a NAME or --zone", USAGE)
    request = pb.FlushNamesRequest(name=name, zone=zone)
    answer = ask(session, f"{SERVICE}/FlushNames", request, pb.FlushNamesResponse)
    click.echo(f"{answer.entries} answers forgotten")

# SPDX-License-Identifier: Apache-2.0
"""`kepctl node-logs`: what services of the node wrote into the journal, or a log file."""

import os
import sys
import time

import click

from agent.cli.client import Client, connected
from agent.cli.durations import moment
from agent.cli.render import print_listing
from agent.cli.session import CommandFailed, Session
from agent.kinds.ages import age
from agent.kinds.table import Column, Columns, Listing
from agent.model.exit_codes import USAGE
from agent.model.images.text import bytes_text
from agent.wire.kepd.v1 import node_pb2

SERVICE = "kepd.v1.NodeService"
KEPT = "\n\t"
COLUMNS: Columns[node_pb2.LogSource] = (
    Column("NAME", lambda one: one.name if one.kind == "unit" or "/" in one.name else f"./{one.name}"),
    Column("KIND", lambda one: one.kind),
    Column("SIZE", lambda one: bytes_text(one.size_bytes) if one.HasField("size_bytes") else "-"),
    Column("LAST", lambda one: age(one.last_at) if one.HasField("last_at") else "-"),
)


@click.command("node-logs")
@click.argument("sources", nargs=-1, metavar="[UNIT… | FILE]")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, for up to an hour.")
@click.option("--since", metavar="TIME", help="Only lines since then: 2026-01-01T10:00:00Z, or 10m for the last while.")
@click.option("--until", metavar="TIME", help="Only lines until then.")
@click.option(
    "--tail", type=click.IntRange(0), help="Number of lines from the end [500, without --since and the like]."
)
@click.option(
    "--boot", default="", metavar="BOOT", help="Of units: 0 = since this boot, -1 = of the one before, or an id."
)
@click.option("--grep", default="", metavar="PATTERN", help="Only lines with this pattern.")
@click.option("-i", "--ignore-case", is_flag=True, help="The pattern takes both cases.")
@click.option(
    "--priority", type=click.IntRange(0, 7), help="Of units: only lines this urgent, 0 = emergencies, 7 = all."
)
@click.option(
    "-o", "--output", type=click.Choice(["short-iso-precise", "short", "cat", "json"]), default=None,
    help="How lines of units are shown [short-iso-precise]; cat shows the text alone.",
)  # fmt: skip
@click.option("--rotated", is_flag=True, help="Of a file: its rotated files too, oldest first.")
@click.pass_obj
def node_logs(
    session: Session, *, sources: tuple[str, ...], follow: bool, since: str | None, until: str | None,
    tail: int | None, boot: str, grep: str, ignore_case: bool, priority: int | None, output: str | None, rotated: bool,
) -> None:  # fmt: skip
    """Print logs of the node's services: of units in the journal, merged by time, or of a file below /var/log.

    A word with a slash is a file: ./syslog, apt/history.log. `kernel` is the kernel's own log. Without a name it lists
    what there is. Exit code 1: the answer is not complete, and standard error says why.
    """
    files = [one for one in sources if "/" in one]
    if files and len(sources) > 1:
        raise CommandFailed("expected either units or one file", USAGE)
    wanted = node_pb2.StreamNodeLogsRequest(
        units=[] if files else sources, file=files[0].removeprefix("./") if files else "", follow=follow, boot=boot,
        grep=grep, ignore_case=ignore_case, output=output or "", rotated=rotated, tail=tail, priority=priority,
    )  # fmt: skip
    for name, given in (("since", since), ("until", until)):
        if given is not None:
            getattr(wanted, name).FromMicroseconds(_micros(f"--{name}", given))
    with connected(session) as daemon:
        if not sources:
            print_listing(list_log_sources(daemon), "table", session)
            return
        _print(daemon, wanted)


def list_log_sources(daemon: Client) -> Listing[node_pb2.LogSource]:
    method = f"{SERVICE}/ListLogSources"
    answer = daemon.call(method, node_pb2.ListLogSourcesRequest(), node_pb2.ListLogSourcesResponse)
    return Listing("LogSource", answer.sources, COLUMNS, lambda one: f"logsource/{one.name}", "no log you may read")


def _micros(option: str, given: str) -> int:
    from agent.config.kinds import DURATION, Wrong

    try:
        return int((time.time() - float(str(DURATION.read(given)))) * 1e6)
    except Wrong:
        pass
    return round(moment(option, given, ", or a while, such as 10m") * 1e6)


def _print(daemon: Client, wanted: node_pb2.StreamNodeLogsRequest) -> None:
    """To a pipe as it is, for whoever reads there may want the bytes."""
    out = sys.stdout.buffer
    is_screen, cut = os.isatty(sys.stdout.fileno()), "kepd ended in the middle of it"
    for answer in daemon.follow(f"{SERVICE}/StreamNodeLogs", wanted, node_pb2.StreamNodeLogsResponse):
        out.write(visible(answer.lines) if is_screen else answer.lines)
        if wanted.follow:
            out.flush()
        if answer.is_last:
            cut = answer.cut
    out.flush()
    if cut:
        raise CommandFailed(f"not complete: {cut}")


def visible(lines: bytes) -> bytes:
    """With what a terminal would obey as `\\xNN`."""
    text = lines.decode("utf-8", "surrogateescape")
    if all(sign.isprintable() or sign in KEPT for sign in text):
        return lines
    return "".join(sign if sign.isprintable() or sign in KEPT else _escaped(sign) for sign in text).encode()


def _escaped(sign: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogateescape"))

# SPDX-License-Identifier: Apache-2.0
"""`kepctl events`: what happened on this node, of one object or of all, and what happens from now on."""

import queue
import threading
from collections.abc import Callable, Sequence

import click
import msgspec

from agent.cli.client import Client, connected
from agent.cli.objects.listed import changes, every_event
from agent.cli.objects.pod_names import find_pod, given_pod
from agent.cli.render import output_option, print_table
from agent.cli.session import CommandFailed, Session
from agent.kinds.node.events import SHOWN
from agent.kinds.registry import BY_WORD
from agent.kinds.table import FACTS, Object, Row, Table, names_of, without_facts
from agent.model.exit_codes import CONFLICT, NOT_FOUND, USAGE
from agent.model.finding import printable
from agent.wire.kepd.v1 import list_pb2

TYPES = ("Normal", "Warning")
WORKLOADS = ("deployment", "daemonset", "job", "cronjob")
SUBJECTS = ("pod", "service", "node", *WORKLOADS)
# Of a list that grows, as far as columns can be known before their cells are.
WIDTHS = (10, 8, 24, 30)
MOST_WAITING = 1000

Meant = Callable[[Object], bool]


@click.command()
@click.option(
    "--for", "subject", default="", metavar="KIND/NAME", help="Only of this pod, Service or workload, or of the node."
)
@click.option("--types", default="", metavar="TYPES", help="Only these: Normal, Warning, or both with a comma.")
@click.option("-w", "--watch", is_flag=True, help="Print these, and then each new one.")
@output_option()
@click.pass_obj
def events(session: Session, subject: str, types: str, output: str, *, watch: bool) -> None:
    """List events of this node, the latest last."""
    chosen = _types(types)
    with connected(session) as daemon:
        kind, terms = _subject(daemon, subject)

        def is_meant(event: Object) -> bool:
            # One name may be that of a pod and of a Service; of Services only their plane tells.
            facts = event[FACTS]
            is_other = kind in ("pod", "service") and (facts["plane"] == "services") != (kind == "service")
            wanted = BY_WORD[kind].api if kind in WORKLOADS else ""
            return event["type"] in chosen and not is_other and (not kind or facts["objectKind"] == wanted)

        if watch:
            _follow(daemon, terms, is_meant, output, session)
            return
        found = [event for event in every_event(daemon, [terms]) if is_meant(event)]
    what = f"no events of {subject}" if subject else "no events"
    print_table(_table(found, output, what), output, session)


def _table(events: Sequence[Object], output: str, empty: str = "") -> Table:
    kind = BY_WORD["events"]
    columns = SHOWN.columns_of(kind, is_wide=output == "wide")
    rows = [
        Row(
            [column.cell(event) for column in columns],
            SHOWN.name(kind, event),
            *names_of(event),
            object=msgspec.json.encode(without_facts(event)),
        )
        for event in events
    ]
    return Table("Event", columns, rows, is_kubernetes=True, empty=empty)


def _types(text: str) -> frozenset[str]:
    by_lower = {one.lower(): one for one in TYPES}
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if word.lower() not in by_lower]
    if wrong:
        raise CommandFailed(f'--types: "{wrong[0]}" is no type of events; expected Normal or Warning', USAGE)
    return frozenset(by_lower[word.lower()] for word in words) or frozenset(TYPES)


def _subject(daemon: Client, text: str) -> tuple[str, str]:
    """The kind, and the terms of a filter."""
    if not text:
        return "", ""
    word, _, name = text.partition("/")
    known = BY_WORD.get(word.lower())
    kind = known.singular if known is not None else ""
    if kind not in SUBJECTS or (kind != "node" and not name):
        raise CommandFailed(
            f'--for: "{text}" names no object; expected pod/NAME, service/NAME, deployment/NAME or node', USAGE
        )
    if kind == "node":
        return kind, "objectName="
    namespace, short = _pod_or_gone(daemon, name) if kind == "pod" else given_pod(daemon, name)
    return kind, f"namespace={namespace},objectName={short}"


def _pod_or_gone(daemon: Client, name: str) -> tuple[str, str]:
    """Events outlive their pod, and may be about pods of a kubelet."""
    try:
        return find_pod(daemon, name)
    except CommandFailed as error:
        if error.exit_code not in (NOT_FOUND, CONFLICT):
            raise
        return given_pod(daemon, name)


def _follow(daemon: Client, terms: str, is_meant: Meant, output: str, session: Session) -> None:
    """One thread for each kepd of this node; the titles are printed once."""
    news: queue.Queue[Object | CommandFailed] = queue.Queue(MOST_WAITING)

    def read(asked: Client) -> None:
        try:
            for change, event in changes(asked, "events", terms=terms):
                if event is not None and change != list_pb2.CHANGE_TYPE_DELETED:
                    news.put(event)
        except CommandFailed as error:
            news.put(error)

    asked: Client | None = daemon
    while asked is not None:
        threading.Thread(target=read, args=(asked,), daemon=True).start()
        asked = asked.other
    columns = SHOWN.columns_of(BY_WORD["events"], is_wide=output == "wide")
    if output in ("table", "wide"):
        _print_row([one.title for one in columns])
    while True:
        event = news.get()
        if isinstance(event, CommandFailed):
            raise event
        if not is_meant(event):
            continue
        if output in ("table", "wide"):
            _print_row([one.cell(event) for one in columns])
        else:
            print_table(_table([event], output), output, session)


def _print_row(cells: Sequence[str]) -> None:
    padded = [cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=False)]
    click.echo("  ".join((*padded, *(printable(cell) for cell in cells[len(WIDTHS) :]))).rstrip())

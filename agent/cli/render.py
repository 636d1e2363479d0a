# SPDX-License-Identifier: Apache-2.0
"""The one place where kepctl prints: tables, JSON, YAML, names.

Output which is no terminal has no colour and is never cut. rich is imported only when a table goes to a terminal.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import click
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from agent.cli.session import Session
from agent.cli.table import Grid, Listing, Paragraph
from agent.cli.terminal import clean, unfiltered
from agent.model.finding import printable

FORMATS = ("table", "wide", "json", "yaml", "name")
Item = TypeVar("Item", bound=Message)
STATE_STYLES = {
    "ready": "green", "running": "green", "succeeded": "green", "failed": "red", "degraded": "yellow",
    "pending": "yellow", "starting": "yellow", "absent": "dim", "off": "dim", "waiting": "yellow",
}  # fmt: skip


def print_listing(listing: Listing[Item], output: str, session: Session) -> None:
    if output in ("json", "yaml") and listing.whole is not None:
        print_message(listing.whole, output)
        return
    if output in ("json", "yaml"):
        print_data({"kind": listing.kind, "items": [_plain(item) for item in listing.items]}, output)
        return
    if output == "name":
        for item in listing.items:
            click.echo(listing.name(item))
        return
    columns = [column for column in listing.columns if output == "wide" or not column.wide]
    if not listing.items:
        click.echo(listing.empty or "nothing to show", err=True)
        return
    rows = [[column.cell(item) for column in columns] for item in listing.items]
    _print_rows([column.title for column in columns], rows, session)
    for note in listing.notes:
        click.echo(note, err=True)


def print_data(data: object, output: str) -> None:
    if output == "yaml":
        import yaml

        text = yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)
        if text != clean(text):
            text = yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False)
        click.echo(text, nl=False)
    else:
        click.echo(json_text(data))


def json_text(data: object) -> str:
    """Readable, but what a terminal would obey is an escape, as JSON has them for any sign."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return text if text == clean(text) else json.dumps(data, indent=2)


def print_message(message: Message, output: str) -> None:
    print_data(_plain(message), output)


def _plain(message: Message) -> object:
    return MessageToDict(message, preserving_proto_field_name=False)


def _wants_color(session: Session) -> bool:
    if session.color != "auto":
        return session.color == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def print_blocks(blocks: Iterable[Paragraph | Grid], session: Session) -> None:
    for block in blocks:
        if isinstance(block, Paragraph):
            click.echo(block.text)
        else:
            click.echo()
            _print_rows(block.titles, block.rows, session)
            click.echo()


def _print_rows(titles: Sequence[str], rows: Sequence[Sequence[str]], session: Session) -> None:
    if not sys.stdout.isatty() and session.color != "always":
        _print_plain(titles, rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell), style=STATE_STYLES.get(cell.lower(), "")) for cell in row))
    if _wants_color(session):
        Console(file=unfiltered(), force_terminal=session.color == "always" or None, highlight=False).print(table)
    else:
        Console(file=unfiltered(), color_system=None, highlight=False).print(table)


def _print_plain(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def age(stamp: Timestamp) -> str:
    """How long ago, as kubectl writes it."""
    if not stamp.seconds:
        return ""
    seconds = max(0, int(datetime.now(UTC).timestamp() - stamp.seconds))
    for limit, unit, length in ((120, "s", 1), (7200, "m", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds // length}{unit}"
    return f"{seconds // 86400}d"


Command = TypeVar("Command", bound=Callable[..., object])


def output_option(*formats: str) -> Callable[[Command], Command]:
    """`-o`; without formats given, all that a list has."""
    choices = formats or FORMATS
    return click.option(
        "-o", "--output", type=click.Choice(choices), default=choices[0], help=f"Format: {', '.join(choices)}."
    )

# SPDX-License-Identifier: Apache-2.0
"""The one place where kepctl prints: tables, JSON, YAML, names.

Output which is no terminal has no colour and is never cut. rich is imported only when a table goes to a terminal.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from agent.cli.plain_rows import print_plain
from agent.cli.session import Session
from agent.cli.terminal import clean, unfiltered
from agent.kinds.table import Grid, Item, Listing, Paragraph, Table, table_of
from agent.model.finding import printable

if TYPE_CHECKING:
    from google.protobuf.message import Message

FORMATS = ("table", "wide", "json", "yaml", "kyaml", "name", "jsonpath=TEMPLATE", "custom-columns=TITLE:PATH,…")
STATE_STYLES = {
    "ready": "green", "running": "green", "succeeded": "green", "failed": "red", "degraded": "yellow",
    "pending": "yellow", "starting": "yellow", "absent": "dim", "off": "dim", "waiting": "yellow",
}  # fmt: skip


def print_listing(listing: Listing[Item], output: str, session: Session) -> None:
    """A list that the command made itself."""
    print_table(table_of(listing, is_wide=output == "wide", with_objects=wants_objects(output)), output, session)


def print_table(
    table: Table, output: str, session: Session, *, is_one: bool = False, has_titles: bool = True
) -> None:  # fmt: skip
    """`is_one`: exactly this object was asked for by name, so programs get it without a list around it."""
    if wants_objects(output):
        print_objects(_data_of(table, is_one=is_one), output)
        return
    if output == "name":
        for row in table.rows:
            click.echo(row.shown)
        return
    if not table.rows:
        click.echo(table.empty or "nothing to show", err=True)
        return
    titles = [printable(column.title) for column in table.columns]
    _print_rows(titles if has_titles else [], [row.cells for row in table.rows], session)
    for note in table.notes:
        click.echo(note, err=True)


def objects_of(table: Table) -> list[Any]:
    """Each once, in the order of rows."""
    return [json.loads(one) for one in dict.fromkeys(row.object for row in table.rows)]


def _data_of(table: Table, *, is_one: bool) -> object:
    objects = objects_of(table)
    if not table.is_kubernetes:
        return {"kind": table.kind, "items": objects}
    from agent.kinds.kube_shape import list_of

    return objects[0] if is_one and len(objects) == 1 else list_of(objects)


def print_objects(data: object, output: str) -> None:
    """In one of the formats that show objects: JSON, YAML, a template, or columns that the caller chose."""
    style, _, argument = output.partition("=")
    if style == "jsonpath":
        from agent.model.text.jsonpath import render

        text = render(argument, data)
        click.echo(text, nl=not text.endswith("\n"))
    elif style == "custom-columns":
        from agent.model.text.jsonpath import read_path, shown

        columns = [column.partition(":") for column in argument.split(",")]
        items = data["items"] if isinstance(data, dict) and isinstance(data.get("items"), list) else [data]
        cells = [[read_path(path, item) for _, _, path in columns] for item in items]
        rows = [[",".join(map(shown, values)) or "<none>" for values in row] for row in cells]
        print_plain([title for title, _, _ in columns], rows)
    else:
        print_data(data, style)


def print_data(data: object, output: str) -> None:
    if output == "kyaml":
        from agent.cli.kyaml import as_kyaml

        click.echo(as_kyaml(data))
    elif output == "yaml":
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


def print_message(message: "Message", output: str) -> None:
    print_data(_plain(message), output)


def _plain(message: "Message") -> object:
    from google.protobuf.json_format import MessageToDict

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
        print_plain(titles, rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.show_header = bool(titles)
    for title in titles or [""] * max(map(len, rows), default=0):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell), style=STATE_STYLES.get(cell.lower(), "")) for cell in row))
    if _wants_color(session):
        Console(file=unfiltered(), force_terminal=session.color == "always" or None, highlight=False).print(table)
    else:
        Console(file=unfiltered(), color_system=None, highlight=False).print(table)


Command = TypeVar("Command", bound=Callable[..., object])


def wants_objects(output: str) -> bool:
    """Whether a program reads the answer."""
    return output.partition("=")[0] in ("json", "yaml", "kyaml", "jsonpath", "custom-columns")


class OutputFormat(click.ParamType[str]):
    """One of some words; those that end in `=…` take an argument."""

    name = "format"

    def __init__(self, formats: Sequence[str]) -> None:
        self._formats = {known.partition("=")[0]: "=" in known for known in formats}

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        style, sign, argument = value.partition("=")
        if style not in self._formats:
            from difflib import get_close_matches

            close = next(iter(get_close_matches(style, self._formats, n=1)), "")
            hint = f'did you mean "{close}"?' if close else f"formats are {', '.join(self._formats)}"
            self.fail(f'no format "{style}"; {hint}', param, ctx)
        if self._formats[style] != bool(sign and argument):
            self.fail(f'"{value}" {"needs" if self._formats[style] else "takes no"} argument after "="', param, ctx)
        if style == "custom-columns" and any(not all(part.partition(":")[::2]) for part in argument.split(",")):
            self.fail(f'"{argument}" are no columns; expected TITLE:PATH, for instance NAME:.metadata.name', param, ctx)
        return value

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = [f"{style}=" if takes else style for style, takes in self._formats.items()]
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def output_option(*formats: str) -> Callable[[Command], Command]:
    """`-o`; without formats given, all that a list has."""
    choices = formats or FORMATS
    return click.option(
        "-o", "--output", type=OutputFormat(choices), default=choices[0], help=f"Format: {', '.join(choices)}."
    )

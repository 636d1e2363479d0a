# SPDX-License-Identifier: Apache-2.0
"""The manual page of a program, from the help of its commands: `python scripts/man.py kepctl`."""

import sys
from collections.abc import Iterator

import click

from agent import __version__
from agent.cli.texts.examples import examples_of

SECTIONS = {"kepctl": "1", "kepd": "8"}
SEE_ALSO = {"kepctl": "kepd (8)", "kepd": "kepctl (1), systemctl (1), nft (8)"}


def page(name: str, program: click.Command) -> Iterator[str]:
    section = SECTIONS[name]
    yield f'.TH {name.upper()} {section} "" "kepd {__version__}"'
    yield f".SH NAME\n{name} \\- {_plain(program.get_short_help_str(200)).rstrip('.')}"
    yield f".SH SYNOPSIS\n.B {name}\n[OPTIONS] COMMAND [ARGUMENTS]"
    yield f".SH DESCRIPTION\n{_plain(program.help or '')}"
    context = click.Context(program, info_name=name)
    yield ".SH OPTIONS"
    yield from _options(program, context)
    yield ".SH COMMANDS"
    yield from _commands(program, context, ())
    yield f".SH SEE ALSO\n{SEE_ALSO[name]}"


def _commands(program: click.Command, context: click.Context, above: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(program, click.Group):
        return
    for name in sorted(program.list_commands(context)):
        command = program.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield f".SS {' '.join((*above, name))} {_plain(' '.join(command.collect_usage_pieces(inner)))}"
        yield _plain(command.help or "")
        yield from _options(command, inner)
        if found := [] if isinstance(command, click.Group) else examples_of(" ".join(("kepctl", *above, name))):
            yield ".PP\nExamples:\n.nf"
            yield from (_plain(line) for line in found[:3])
            yield ".fi"
        yield from _commands(command, inner, (*above, name))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield f".TP\n\\fB{_plain(record[0])}\\fR\n{_plain(record[1])}"


def _plain(text: str) -> str:
    """No character that the formatter takes for its own; click's mark for kept lines is gone."""
    words = text.replace("\b\n", "").replace("\\", "\\e").replace("-", "\\-").strip()
    return "\n".join(
        f"\\&{line.strip()}" if line.strip()[:1] in (".", "'") else line.strip() for line in words.split("\n")
    )


def main() -> None:
    name = sys.argv[1]
    if name == "kepd":
        from agent.host.main import main as program
    else:
        from agent.cli.main import cli as program
    print("\n".join(page(name, program)))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All that others hold on to, a line each: keys, commands and their options, rpcs and fields, metrics, events,
annotations, exit codes, units. Prints what of it has gone since the last release; `--record VERSION` prints all of it,
as `scripts/release` keeps it in tests/deploy/surface.txt.
"""

import asyncio
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from agent.cli.main import cli as kepctl
from agent.config.document import Configuration
from agent.config.keys import all_keys
from agent.host.main import main as kepd
from agent.model import exit_codes
from scripts.vocabulary import ANNOTATIONS, EVENTS, metrics

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests/deploy/surface.txt"
INTERFACES = ROOT / "tests/proto/interfaces.txt"


def surface() -> list[str]:
    lines = [f"key {path}" for path in all_keys(Configuration)]
    for name, program in (("kepctl", kepctl), ("kepd", kepd)):
        lines += _commands(name, program, click.Context(program, info_name=name))
    lines += [f"rpc {line}" for line in INTERFACES.read_text().splitlines() if line.startswith("kepd.v1.")]
    for one in asyncio.run(metrics()):
        lines.append(" ".join(("metric", one.name, one.type, *getattr(one, "_labelnames", ()))))
    lines += [f"event {reason}" for reason in EVENTS]
    lines += [f"annotation kepd.dev/{name}" for name, *_ in ANNOTATIONS]
    lines += [f"exit {code} {name.lower()}" for name, code in vars(exit_codes).items() if name.isupper()]
    lines += [f"unit {path.name}" for path in (ROOT / "systemd").glob("*.service")]
    return sorted(set(lines))


def _commands(words: str, command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"command {words}"
    for parameter in command.get_params(context):
        yield from (
            f"option {words} {name}" for name in (*parameter.opts, *parameter.secondary_opts) if name[:1] == "-"
        )
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name) if isinstance(command, click.Group) else None
        if inner is not None and not inner.hidden:
            yield from _commands(f"{words} {name}", inner, click.Context(inner, info_name=name, parent=context))


def gone(recorded: Iterable[str], now: Iterable[str]) -> list[str]:
    return sorted({line for line in recorded if not line.startswith("#")} - set(now))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        print(f"# kepd {sys.argv[2]}", *surface(), sep="\n")
    else:
        print(*gone(RECORD.read_text().splitlines(), surface()), sep="\n")

# SPDX-License-Identifier: Apache-2.0
"""Objects that a command line describes: made, shown or only tried."""

from typing import Any

import click

from agent.cli.client import connected
from agent.cli.objects.manifest_files import called, send_objects
from agent.cli.render import OutputFormat, print_data
from agent.cli.session import Session
from agent.kinds.kind import DEFAULT_NAMESPACE
from agent.objects.documents import dumped

Object = dict[str, Any]
dry_run_option = click.option(
    "--dry-run", type=click.Choice(["none", "client", "server"]), is_flag=False, flag_value="client", default="none",
    help="Only show what would be made.",
)  # fmt: skip
output_option = click.option(
    "-o", "--output", type=OutputFormat(("yaml", "json")), help="Print the object: yaml, json."
)


def new_object(kind: str, name: str, session: Session, version: str = "v1") -> Object:
    metadata = {"name": name, "namespace": session.namespace or DEFAULT_NAMESPACE}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def make(session: Session, made: Object, dry_run: str, output: str | None) -> None:
    """Create it; with an output print it, and without a dry run do both."""
    key = made["kind"], made["metadata"]["namespace"], made["metadata"]["name"]
    if dry_run != "client":
        with connected(session) as daemon:
            send_objects(daemon, dumped(made).encode(), create_only=True, dry_run=dry_run == "server")
    if output:
        print_data(made, output)
    else:
        click.echo(f"{called(*key)} created{' (dry run)' if dry_run != 'none' else ''}")

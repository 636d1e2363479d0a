# SPDX-License-Identifier: Apache-2.0
"""`kepctl config`: the configuration of the running daemon; `check` needs none."""

import json

import click

from agent.cli.client import ask
from agent.cli.objects.kind_group import KindGroup
from agent.cli.render import output_option, print_data
from agent.cli.session import Session
from agent.config.commands import check
from agent.wire.kepd.v1 import node_pb2


@click.group(cls=KindGroup)
def config() -> None:
    """Show, change, reload or check the configuration."""


config.add_command(check)


@config.command()
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
@output_option("table", "json", "yaml")
@click.pass_obj
def show(session: Session, output: str, *, origin: bool) -> None:
    """Show the configuration in force."""
    answer = ask(session, "kepd.v1.NodeService/GetConfig", node_pb2.GetConfigRequest(), node_pb2.GetConfigResponse)
    if output != "table":
        rows = [{"path": one.path, "value": json.loads(one.value), "origin": one.origin} for one in answer.values]
        print_data(rows, output)
        return
    for one in answer.values:
        click.echo(f"{one.path}: {one.value}  # {one.origin}" if origin else f"{one.path}: {one.value}")


@config.command("set")
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE…")
@click.option("--dry-run", is_flag=True, help="Validate without applying.")
@click.pass_obj
def set_values(session: Session, values: tuple[str, ...], *, dry_run: bool) -> None:
    """Set keys, all of them or none, until the daemon stops or reloads."""
    pairs: dict[str, str] = {}
    for value in values:
        path, equals, text = value.partition("=")
        if not equals:
            raise click.UsageError(f'"{value}" is not KEY=VALUE')
        pairs[path] = text
    request = node_pb2.SetConfigRequest(values=pairs, dry_run=dry_run)
    answer = ask(session, "kepd.v1.NodeService/SetConfig", request, node_pb2.SetConfigResponse)
    for change in answer.applied:
        click.echo(f"{change.path}: {change.old_value} -> {change.new_value}{' (dry run)' if dry_run else ''}")


@config.command()
@click.pass_obj
def reload(session: Session) -> None:
    """Read all sources again, as SIGHUP does."""
    request = node_pb2.ReloadConfigRequest()
    answer = ask(session, "kepd.v1.NodeService/ReloadConfig", request, node_pb2.ReloadConfigResponse)
    for change in answer.applied:
        click.echo(f"{change.path}: {change.old_value} -> {change.new_value}")
    for change in answer.waiting_for_restart:
        click.echo(f"{change.path}: {change.old_value} stays until a restart (wanted: {change.new_value})")
    if not answer.applied and not answer.waiting_for_restart:
        click.echo("nothing has changed")

# SPDX-License-Identifier: Apache-2.0
"""`kepd config`: the configuration without a daemon. kepctl offers `config check` from here too.

Never: needs root, a runtime or a network.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.model.exit_codes import BAD_CONFIGURATION
from agent.model.finding import printable

if TYPE_CHECKING:
    from agent.config.check import CheckedConfiguration
    from agent.config.sources import Loaded


def configuration_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The flags that decide about configuration; shared by all commands that read it."""
    options = (
        click.option(
            "--config",
            "file",
            type=click.Path(path_type=Path, readable=False),
            help="Configuration file [/etc/kepd/config.yaml].",
        ),
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set one key; may be repeated."),
        click.option("--planes", metavar="A,B", help="Run only these planes."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group("config")
def config_commands() -> None:
    """Check and show the configuration."""


def checked(file: Path | None, settings: tuple[str, ...], planes: str | None) -> "CheckedConfiguration":
    """The configuration a daemon with these flags would run with; ends the program if there is none."""
    return loaded_and_checked(file, settings, planes)[1]


def loaded_and_checked(
    file: Path | None, settings: tuple[str, ...], planes: str | None
) -> "tuple[Loaded, CheckedConfiguration]":
    from agent.config.sources import Sources, check, host_facts, read

    loaded = read(Sources(file=file, environment=os.environ, settings=settings, planes=planes))
    asked = click.get_current_context().obj
    outcome = check(loaded, host_facts(os.environ), further=asked() if callable(asked) else ())
    for finding in (*loaded.warnings, *outcome.findings):
        click.echo(str(finding), err=True)
    if outcome.configuration is None:
        sys.exit(BAD_CONFIGURATION)
    return loaded, outcome


@config_commands.command()
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(path_type=Path, readable=False))
@configuration_flags
def check(path: Path | None, file: Path | None, settings: tuple[str, ...], planes: str | None) -> None:
    """Check the configuration and print every fault, or the files it was read from. FILE says the same as
    --config FILE."""
    if path is not None and file is not None:
        raise click.UsageError(f"{path} and --config {file} name two files; expected one")
    loaded, _ = loaded_and_checked(path or file, settings, planes)
    for one in loaded.files:
        click.echo(f"read {printable(str(one))}")
    click.echo("the configuration is valid")


@config_commands.command()
@configuration_flags
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
def show(file: Path | None, settings: tuple[str, ...], planes: str | None, *, origin: bool) -> None:
    """Show the configuration in force."""
    from agent.config.reference import as_document, as_yaml, with_origins

    outcome = checked(file, settings, planes)
    if outcome.configuration is not None:
        text = with_origins(outcome) if origin else as_yaml(as_document(outcome.configuration))
        click.echo(text, nl=False)


@config_commands.command()
def defaults() -> None:
    """Show every key with its default."""
    from agent.config.document import Configuration
    from agent.config.reference import as_document, as_yaml

    click.echo(as_yaml(as_document(Configuration())), nl=False)


@config_commands.command()
@configuration_flags
def diff(file: Path | None, settings: tuple[str, ...], planes: str | None) -> None:
    """Show the keys that differ from their default."""
    from agent.config.reference import differences

    outcome = checked(file, settings, planes)
    if outcome.configuration is not None:
        for path, default, value in differences(outcome):
            click.echo(f"{path}: {json.dumps(default)} -> {json.dumps(value)}  ({outcome.origins[path]})")


@config_commands.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    from agent.config.reference import as_schema

    click.echo(json.dumps(as_schema(), indent=2))


@config_commands.command("import")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_other(source: Path) -> None:
    """Convert a configuration file of a kubelet or kube-proxy; keys without a counterpart are reported."""
    from agent.config.importing import import_document
    from agent.config.reference import as_yaml
    from agent.config.strict_yaml import UnreadableYaml

    try:
        document, left_out = import_document(source.read_bytes(), str(source))
    except UnreadableYaml as error:
        click.echo(str(error), err=True)
        sys.exit(BAD_CONFIGURATION)
    for finding in left_out:
        click.echo(str(finding), err=True)
    click.echo(as_yaml(document), nl=False)

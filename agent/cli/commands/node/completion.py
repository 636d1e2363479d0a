# SPDX-License-Identifier: Apache-2.0
"""`kepctl completion`: the script a shell evaluates."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL, for instance: source <(kepctl completion bash)."""
    from agent.cli.main import cli

    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(cli, {}, "kepctl", "_KEPCTL_COMPLETE").source())

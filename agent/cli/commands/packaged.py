# SPDX-License-Identifier: Apache-2.0
"""Commands whose code is in a package of its own. The core has their places by name, and no module of it imports them.

A place is `module:attribute`, as in an entry point. It stands here because reading the metadata of installed packages
takes 45 ms, a sixth of what such a command takes.
"""

from importlib import import_module

import click

from agent.cli.session import CommandFailed
from agent.config.packages import is_installed, not_installed
from agent.model.exit_codes import USAGE


def _command(part: str, place: str, name: str, summary: str) -> click.Command:
    """The package's own; where it is not installed, one that says which package to install."""
    if is_installed(part):
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command
    words = {"ignore_unknown_options": True, "allow_extra_args": True}

    @click.command(name, context_settings=words, help=f"{summary} It is {not_installed(part)}.")
    def refuse() -> None:
        raise CommandFailed(f"{name} is {not_installed(part)}", USAGE)

    return refuse


what_if = _command(
    "rehearsal",
    "kepd_rehearsal.run.what_if:what_if",
    "what-if",
    "Tell what changes of a cluster would do, before they are made.",
)

# SPDX-License-Identifier: Apache-2.0
"""`kepctl ui`: the node live, over the whole terminal."""

import click

from agent.cli.session import CommandFailed, Session
from agent.config.packages import is_installed, not_installed
from agent.model.exit_codes import USAGE


@click.command()
@click.pass_obj
def ui(session: Session) -> int:
    """Show pods, pulls, Services and events as they change, over the whole terminal. `?` lists the keys."""
    if not is_installed("ui"):
        raise CommandFailed(f"the live screen is {not_installed('ui')}", USAGE)
    from kepd_ui.run.loop import run_ui

    return run_ui(session)

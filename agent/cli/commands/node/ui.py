# SPDX-License-Identifier: Apache-2.0
"""`kepctl ui`: the node live, over the whole terminal."""

import click

from agent.cli.session import Session


@click.command()
@click.pass_obj
def ui(session: Session) -> int:
    """Show pods, pulls, Services and events as they change, over the whole terminal. `?` lists the keys."""
    from agent.cli.ui.run.loop import run_ui

    return run_ui(session)

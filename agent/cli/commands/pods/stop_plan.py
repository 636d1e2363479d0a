# SPDX-License-Identifier: Apache-2.0
"""`kepctl plan stop -f FILE`: what ending a pod would look like, before anyone does it."""

from pathlib import Path

import click

from agent.cli.texts.planned import Guess, end_moments, pods_of, show
from agent.pods.view.timeline import draw_picture


@click.command()
@click.option("-f", "--file", "path", type=click.Path(exists=True, path_type=Path), required=True, help="The manifest.")
@click.option(
    "--grace", "grace_s", type=click.IntRange(0), help="Grace in seconds, instead of the pod's own; 0 = force."
)
@click.option(
    "--exit-after", "exits_s", type=float, default=1.0, show_default=True, help="Seconds from signal to exit."
)
@click.option("--deaf", multiple=True, metavar="NAME", help="A container that ignores its signal.")
@click.option(
    "--hook", "hook_s", type=float, default=1.0, show_default=True, help="Seconds that exec and HTTP hooks take."
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "svg", "html", "json"]), default="text", help="Output format."
)
def stop(path: Path, grace_s: int | None, exits_s: float, deaf: tuple[str, ...], hook_s: float, output: str) -> None:
    """Show how a pod from a file would stop."""
    pictures = []
    for pod in pods_of(path):
        wanted_s = float(pod.grace_s if grace_s is None else grace_s)
        moments = end_moments(pod, wanted_s, Guess(exits_s=exits_s, hook_s=hook_s, deaf=deaf))
        picture = draw_picture(moments, [one.name for one in pod.containers], moments[-1].at_s)
        pictures.append((f"end of {pod.key} within {wanted_s:g} s, as planned", picture))
    show(pictures, output)

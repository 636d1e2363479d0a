# SPDX-License-Identifier: Apache-2.0
"""`kepctl plan stop`: what ending a pod would look like, before anyone does it."""

from pathlib import Path

import click

from agent.cli.client import connected
from agent.cli.objects.listed import listed
from agent.cli.objects.pod_names import PODS, find_pod
from agent.cli.session import CommandFailed, Session
from agent.cli.texts.planned import Guess, end_moments, pods_in, pods_of, show
from agent.model.exit_codes import USAGE
from agent.model.pods.pod import PodSpec
from agent.pods.view.timeline import draw_picture


@click.command()
@click.argument("pod", metavar="[POD]", default="")
@click.option("-f", "--file", "path", type=click.Path(exists=True, path_type=Path), help="A manifest, of pods to be.")
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
@click.pass_obj
def stop(
    session: Session, pod: str, *, path: Path | None, grace_s: int | None, exits_s: float, deaf: tuple[str, ...],
    hook_s: float, output: str,
) -> None:  # fmt: skip
    """Show how a pod of this node, or those of a file, would stop."""
    if (path is None) == (not pod):
        raise CommandFailed("expected either a POD or -f with a manifest", USAGE)
    pictures = []
    for one in pods_of(path) if path is not None else _running(session, pod):
        wanted_s = float(one.grace_s if grace_s is None else grace_s)
        moments = end_moments(one, wanted_s, Guess(exits_s=exits_s, hook_s=hook_s, deaf=deaf))
        picture = draw_picture(moments, [each.name for each in one.containers], moments[-1].at_s)
        assumed = f"if programs take {exits_s:g} s to exit" + (f", but for {', '.join(deaf)}" if deaf else "")
        pictures.append((f"end of {one.key} within {wanted_s:g} s, {assumed}", picture))
    show(pictures, output)


def _running(session: Session, pod: str) -> list[PodSpec]:
    with connected(session) as daemon:
        key = find_pod(daemon, pod)
        rows = listed(daemon, PODS, with_objects=True).rows
    (found,) = (row for row in rows if (row.namespace, row.name) == key)
    return pods_in(found.shown, found.object)

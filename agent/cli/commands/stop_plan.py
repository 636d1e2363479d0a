# SPDX-License-Identifier: Apache-2.0
"""`kepctl plan stop -f FILE`: what ending a pod would look like, before anyone does it.

Owns: assumptions about containers (they end some time after their signal) and the picture. Never: decides; the planner
of the pods plane does, with the code that ends real pods.
"""

import shutil
from pathlib import Path

import click
import msgspec

from agent.cli.session import CommandFailed
from agent.cli.timeline_text import picture_as_svg, picture_as_text
from agent.model.exit_codes import USAGE
from agent.model.pod import ContainerKind, PodSpec
from agent.pods.annotations import read_wishes
from agent.pods.forecast import Assumption, HookAssumption, forecast_stop
from agent.pods.manifest import Identity, parse_objects
from agent.pods.order import Member, waits_for_end
from agent.pods.stop_state import Ending, Stop, Trigger, begin_stop
from agent.pods.timeline import draw_picture, moments_of_forecast

__all__ = ["stop"]

WIDEST = 160
LEAD_S = 0.0


@click.command()
@click.option("-f", "--file", "path", type=click.Path(exists=True, path_type=Path), required=True, help="The manifest.")
@click.option("--grace", "grace_s", type=click.IntRange(0), help="Seconds in place of the pod's own; 0 is force.")
@click.option(
    "--exit-after", "exits_s", type=float, default=1.0, show_default=True, help="Seconds from signal to exit."
)
@click.option("--deaf", multiple=True, metavar="NAME", help="A container that ignores its signal.")
@click.option(
    "--hook", "hook_s", type=float, default=1.0, show_default=True, help="Seconds that exec and HTTP hooks take."
)
@click.option("-o", "--output", type=click.Choice(["text", "svg", "json"]), default="text", help="Form of the picture.")
def stop(path: Path, grace_s: int | None, exits_s: float, deaf: tuple[str, ...], hook_s: float, output: str) -> None:
    """Show how the end of a pod from a file would go."""
    found = parse_objects(str(path), path.read_bytes(), Identity("", has_name_suffix=False))
    if found.findings:
        raise CommandFailed("\n".join(str(one) for one in found.findings), USAGE)
    for pod in found.pods:
        wanted_s = float(pod.grace_s if grace_s is None else grace_s)
        planned = planned_stop(pod, wanted_s)
        assumptions = {one.name: _assumption(pod, one.name, exits_s, hook_s, deaf) for one in pod.containers}
        happenings = forecast_stop(planned, assumptions)
        running = [one.name for one in planned.containers if one.is_running]
        moments = moments_of_forecast(happenings, running, wanted_s, LEAD_S)
        picture = draw_picture(moments, [one.name for one in pod.containers], moments[-1].at_s)
        title = f"end of {pod.key} within {wanted_s:g} s, as planned"
        if output == "json":
            click.echo(msgspec.json.format(msgspec.json.encode(picture), indent=2).decode())
        elif output == "svg":
            click.echo(picture_as_svg(picture, title))
        else:
            click.echo(picture_as_text(picture, title, min(shutil.get_terminal_size((100, 24)).columns, WIDEST)))


def planned_stop(pod: PodSpec, grace_s: float) -> Stop:
    """The beginning of the end, with mains and sidecars running."""
    plain = [Member(name=one.name, kind=one.kind) for one in pod.containers]
    wishes = read_wishes(pod.notes, plain)
    members = [Member(name=one.name, kind=one.kind, needs=wishes.needs.get(one.name, ())) for one in pod.containers]
    waits = waits_for_end(members)
    endings = []
    for one in pod.containers:
        hook = one.fields.pre_stop
        endings.append(
            Ending(
                name=one.name,
                kind=one.kind,
                hook=hook.type if hook is not None else "",
                is_hook_at_turn=wishes.is_hook_at_turn and one.kind is ContainerKind.SIDECAR,
                waits_for=waits[one.name],
                own_grace_s=wishes.graces_s.get(one.name),
                reserve_s=wishes.reserve_s if one.kind is ContainerKind.MAIN else 0.0,
                is_running=one.kind is not ContainerKind.INIT,
            )
        )
    return begin_stop(Trigger.DELETE, endings, grace_s, 0.0)


def _assumption(pod: PodSpec, name: str, exits_s: float, hook_s: float, deaf: tuple[str, ...]) -> Assumption:
    hook = pod.by_name[name].fields.pre_stop
    assumed = None
    if hook is not None:
        seconds = float(hook.sleep.seconds) if hook.sleep is not None else hook_s
        fails = hook.tcp_socket is not None
        assumed = HookAssumption(
            seconds=0.0 if fails else seconds, is_native=hook.sleep is not None, succeeds=not fails
        )
    return Assumption(hook=assumed, exit_after_s=None if name in deaf else exits_s)

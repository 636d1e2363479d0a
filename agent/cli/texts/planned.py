# SPDX-License-Identifier: Apache-2.0
"""Pods from files, and what their starts and ends would look like.

Unless the user says otherwise inits take a second, hooks too, and containers end a second after their signal.
"""

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import click
import msgspec

from agent.cli.session import CommandFailed
from agent.model.exit_codes import USAGE
from agent.model.pods.container_fields import Hook
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.pods.manifest.annotations import annotations_of
from agent.pods.manifest.objects import NodeIdentity, parse_objects
from agent.pods.plan.order import waits_for_end
from agent.pods.plan.remembered import Moment
from agent.pods.plan.start_steps import StartRules
from agent.pods.plan.stop_state import Stop, Trigger, begin_stop
from agent.pods.view.forecast import Assumption, HookAssumption, forecast_start, forecast_stop
from agent.pods.view.simulation import Beginning
from agent.pods.view.timeline import Picture, moments_of_forecast
from agent.pods.view.timeline_svg import picture_as_svg, pictures_as_page
from agent.pods.view.timeline_text import picture_as_text

WIDEST = 160
INIT_S = 1.0


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    exits_s: float = 1.0
    hook_s: float = 1.0
    deaf: Collection[str] = ()


def pods_of(path: Path) -> list[PodSpec]:
    return pods_in(str(path), path.read_bytes())


def pods_in(place: str, content: bytes) -> list[PodSpec]:
    found = parse_objects(place, content, NodeIdentity("", has_name_suffix=False))
    if found.findings:
        raise CommandFailed("\n".join(str(one) for one in found.findings), USAGE)
    return found.pods


def show(pictures: Sequence[tuple[str, Picture]], output: str) -> None:
    """`pictures`: with their titles."""
    if output == "html":
        click.echo(pictures_as_page(pictures))
        return
    if output == "svg" and len(pictures) > 1:
        text = f"an SVG shows one pod, and these are {len(pictures)}; name one of them, or say -o html"
        raise CommandFailed(text, USAGE)
    for title, picture in pictures:
        if output == "json":
            click.echo(msgspec.json.format(msgspec.json.encode(picture), indent=2).decode())
        elif output == "svg":
            click.echo(picture_as_svg(picture, title))
        else:
            click.echo(picture_as_text(picture, title, min(shutil.get_terminal_size((100, 24)).columns, WIDEST)))


def end_moments(pod: PodSpec, grace_s: float, guess: Guess, lead_s: float = 0.0) -> list[Moment]:
    planned = _planned_stop(pod, grace_s)
    assumptions = {one.name: _assumption(pod, one.name, guess) for one in pod.containers}
    happenings = forecast_stop(planned, assumptions)
    running = [one.name for one in planned.containers if one.is_running]
    return moments_of_forecast(happenings, running, grace_s, lead_s)


def life_moments(pod: PodSpec, grace_s: float, guess: Guess, up_s: float) -> list[Moment]:
    annotated = annotations_of(pod)
    rules = StartRules(needs=annotated.needs, keystone=annotated.keystone)
    started = forecast_start(pod, rules, {one.name: _beginning(one, guess) for one in pod.containers})
    lead_s = max((one.at_s for one in started), default=0.0) + up_s
    ended = [one for one in end_moments(pod, grace_s, guess, lead_s) if one.kind != "started"]
    return [*started, *ended]


def _planned_stop(pod: PodSpec, grace_s: float) -> Stop:
    annotated = annotations_of(pod)
    waits = waits_for_end([annotated.member(one) for one in pod.containers])
    endings = [
        annotated.ending(one, waits[one.name], is_running=one.kind is not ContainerKind.INIT) for one in pod.containers
    ]
    return begin_stop(Trigger.DELETE, endings, grace_s, 0.0)


def _assumption(pod: PodSpec, name: str, guess: Guess) -> Assumption:
    hook = pod.by_name[name].fields.pre_stop
    assumed = None
    if hook is not None:
        fails = hook.tcp_socket is not None
        seconds = 0.0 if fails else _hook_seconds(hook, guess)
        assumed = HookAssumption(seconds=seconds, is_native=hook.sleep is not None, succeeds=not fails)
    return Assumption(hook=assumed, exit_after_s=None if name in guess.deaf else guess.exits_s)


def _hook_seconds(hook: Hook, guess: Guess) -> float:
    return float(hook.sleep.seconds) if hook.sleep is not None else guess.hook_s


def _beginning(container: ContainerSpec, guess: Guess) -> Beginning:
    fields = container.fields
    startup = fields.startup_probe
    readiness = fields.readiness_probe
    return Beginning(
        hook_s=_hook_seconds(fields.post_start, guess) if fields.post_start is not None else None,
        # A probe that succeeds at its first run.
        started_s=max(float(startup.initial_delay_seconds), guess.hook_s) if startup is not None else 0.0,
        ready_s=max(float(readiness.initial_delay_seconds), 0.1) if readiness is not None else 0.0,
        runs_s=INIT_S if container.kind is ContainerKind.INIT else None,
    )

# SPDX-License-Identifier: Apache-2.0
"""`kepctl rollout` and `kepctl scale`: Deployments and DaemonSets while they change."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
from msgspec.structs import replace

from agent.cli.client import Client, connected
from agent.cli.commands.pods.pods import patient
from agent.cli.completing import complete_objects
from agent.cli.objects.kind_group import KindGroup
from agent.cli.objects.manifest_files import SERVICE, called, send_objects
from agent.cli.objects.scope_options import namespace_option
from agent.cli.objects.words import parse_wanted
from agent.cli.objects.workload_pods import PLURALS, find_workload
from agent.cli.session import CommandFailed, Session
from agent.cli.waits.patience import Patience
from agent.cli.waits.waiting import told_workload
from agent.cli.waits.workloads import progress
from agent.config.manifest_documents import dumped
from agent.config.restarted import RESTARTED
from agent.config.strict_yaml import parse_documents, plain
from agent.kinds.pods.parts import items
from agent.kinds.registry import BY_API, Kind, Named
from agent.model.exit_codes import FAILURE, USAGE
from agent.wire.kepd.v1 import object_pb2 as pb


@click.group(cls=KindGroup)
def rollout() -> None:
    """Follow a change of a Deployment or DaemonSet, or make its pods anew."""


@rollout.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND/NAME", shell_complete=complete_objects)
@namespace_option()
@click.pass_obj
def status(session: Session, words: tuple[str, ...], namespace: str) -> None:
    """Wait until all pods have the present template and are available."""
    kind, name = _one(words, ("deployments", "daemonsets"))
    session = patient(session)
    patience = Patience(session.timeout_s)
    with connected(replace(session, namespace=namespace)) as daemon:
        while True:
            found, made = find_workload(daemon, kind, name)
            is_done, text = progress(kind, made)
            if is_done:
                click.echo(f"{called(kind.api, found.namespace, found.name)}: {text}")
                return
            late = _condition(made, "Progressing")
            if late.get("reason") == "ProgressDeadlineExceeded":
                raise CommandFailed(f"{kind.singular}/{found.key} does not go on: {late.get('message', '')}", FAILURE)
            patience.rest(told_workload(daemon, kind, found, made, text))


def _condition(made: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((one for one in items(made, "status", "conditions") if one.get("type") == kind), {})


@rollout.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND/NAME", shell_complete=complete_objects)
@namespace_option()
@click.pass_obj
def restart(session: Session, words: tuple[str, ...], namespace: str) -> None:
    """Make all pods anew, one after the other as its strategy says; its manifest gets an annotation that says when."""
    kind, name = _one(words, ("deployments", "daemonsets"))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def change(made: dict[str, Any]) -> None:
        metadata = made["spec"].setdefault("template", {}).setdefault("metadata", {})
        metadata["annotations"] = {**(metadata.get("annotations") or {}), RESTARTED: now}

    with connected(replace(session, namespace=namespace)) as daemon:
        click.echo(f"{_changed(daemon, kind, name, change)} restarted")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND/NAME", shell_complete=complete_objects)
@click.option("--replicas", type=click.IntRange(0), required=True, help="How many pods a Deployment has.")
@namespace_option()
@click.pass_obj
def scale(session: Session, words: tuple[str, ...], replicas: int, namespace: str) -> None:
    """Write another number of pods into a Deployment's manifest."""
    kind, name = _one(words, ("deployments",))
    with connected(replace(session, namespace=namespace)) as daemon:
        click.echo(f"{_changed(daemon, kind, name, lambda made: made['spec'].update(replicas=replicas))} scaled")


def _one(words: tuple[str, ...], plurals: tuple[str, ...]) -> tuple[Kind, str]:
    wanted = parse_wanted(words)
    names = [(one.kind, name) for one in wanted for name in one.names]
    if len(names) != 1:
        raise CommandFailed("expected one object, as KIND/NAME", USAGE)
    if names[0][0].plural not in plurals:
        known = ", ".join(one.plural for one in BY_API.values() if one.plural in plurals and one.plural in PLURALS)
        raise CommandFailed(f"{names[0][0].plural} have no such thing; expected one of {known}", USAGE)
    return names[0]


def _changed(daemon: Client, kind: Kind, name: str, change: Callable[[dict[str, Any]], None]) -> str:
    found, _ = find_workload(daemon, kind, name, elsewhere=False)
    request = pb.GetManifestRequest(kind=kind.api, namespace=found.namespace, name=found.name)
    text = daemon.call(f"{SERVICE}/GetManifest", request, pb.GetManifestResponse).content
    made = _parsed(text, found)
    change(made)
    send_objects(daemon, dumped(made).encode())
    return called(kind.api, found.namespace, found.name)


def _parsed(text: bytes, found: Named) -> dict[str, Any]:
    documents, _ = parse_documents(text, "manifest")
    made = plain(documents[0]) if documents else None
    if not isinstance(made, dict) or not isinstance(made.get("spec"), dict):
        raise CommandFailed(f"the manifest of {found.key} has no spec", FAILURE)
    return made

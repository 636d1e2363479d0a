# SPDX-License-Identifier: Apache-2.0
"""`kepctl rollout` and `kepctl scale`: Deployments, DaemonSets and StatefulSets while they change."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click
from msgspec.structs import replace

from agent.cli.client import Client, connected
from agent.cli.commands.pods.pods import patient
from agent.cli.completing import complete_objects
from agent.cli.objects.kind_group import KindGroup
from agent.cli.objects.listed import objects
from agent.cli.objects.manifest_files import SERVICE, called, send_patch
from agent.cli.objects.scope_options import namespace_option
from agent.cli.objects.words import parse_wanted
from agent.cli.objects.workload_pods import PLURALS, find_workload
from agent.cli.session import CommandFailed, Session
from agent.cli.waits.patience import Patience
from agent.cli.waits.waiting import told_workload
from agent.cli.waits.workloads import progress
from agent.config.restarted import RESTARTED
from agent.config.strict_yaml import parse_documents, plain
from agent.kinds.kind import Kind, Named
from agent.kinds.parts import items, part
from agent.kinds.registry import BY_API
from agent.kinds.selection import Scope
from agent.kinds.workloads.revisions import CAUSE, owner_of, revision_number
from agent.model.exit_codes import FAILURE, USAGE
from agent.model.finding import printable
from agent.objects.documents import dumped
from agent.wire.kepd.v1 import object_pb2 as pb

HASH = "pod-template-hash"
CHANGED = ("deployments", "daemonsets", "statefulsets")


def of_one(command: Any) -> Any:  # noqa: ANN401  # a decorator of decorated functions
    """Takes the words that name one object, and its namespace."""
    words = click.argument("words", nargs=-1, required=True, metavar="KIND/NAME", shell_complete=complete_objects)
    return words(namespace_option()(command))


@click.group(cls=KindGroup)
def rollout() -> None:
    """Follow a change of a Deployment, DaemonSet or StatefulSet, hold it, undo it, or make the pods anew."""


@rollout.command()
@of_one
@click.pass_obj
def status(session: Session, words: tuple[str, ...], namespace: str) -> None:
    """Wait until all pods have the present template and are available."""
    kind, name = _one(words, CHANGED)
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
@of_one
@click.pass_obj
def restart(session: Session, words: tuple[str, ...], namespace: str) -> None:
    """Make all pods anew, one after the other as its strategy says; its manifest gets an annotation that says when."""
    kind, name = _one(words, CHANGED)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    template = {"metadata": {"annotations": {RESTARTED: now}}}
    with connected(replace(session, namespace=namespace)) as daemon:
        click.echo(f"{_changed(daemon, kind, name, {'spec': {'template': template}})} restarted")


@rollout.command()
@of_one
@click.option("--revision", type=click.IntRange(1), help="Show the template of one.")
@click.pass_obj
def history(session: Session, words: tuple[str, ...], revision: int | None, namespace: str) -> None:
    """List the templates that it had and has, newest last, by number and cause."""
    kind, name = _one(words, CHANGED)
    with connected(replace(session, namespace=namespace)) as daemon:
        found, _ = find_workload(daemon, kind, name)
        known = _revisions(daemon, kind, found)
        if revision is not None:
            click.echo(dumped(_template(daemon, found, _chosen(known, found, revision))).rstrip())
            return
    click.echo(f"{kind.singular}/{found.key}")
    click.echo("REVISION  CHANGE-CAUSE")
    for number, one in sorted(known.items()):
        cause = part(one, "metadata", "annotations").get(CAUSE) or "<none>"
        click.echo(printable(f"{number:<8}  {cause}"))


@rollout.command()
@of_one
@click.option("--to-revision", type=click.IntRange(0), default=0, help="Which one [the last before the present].")
@click.pass_obj
def undo(session: Session, words: tuple[str, ...], to_revision: int, namespace: str) -> None:
    """Write a former template into its manifest; what else the manifest says stays."""
    kind, name = _one(words, CHANGED)
    with connected(replace(session, namespace=namespace)) as daemon:
        found, made = find_workload(daemon, kind, name, elsewhere=False)
        if part(made, "spec").get("paused"):
            text = f"{kind.singular}/{found.key} is paused; first: kepctl rollout resume {kind.singular}/{found.name}"
            raise CommandFailed(text, FAILURE)
        known = _revisions(daemon, kind, found)
        if not to_revision and len(known) < 2:
            raise CommandFailed(f"{kind.singular}/{found.key} has no former template to go back to", FAILURE)
        chosen = _chosen(known, found, to_revision or sorted(known)[-2])
        template = _template(daemon, found, chosen)
        whole = [{"op": "add", "path": "/spec/template", "value": template}]
        text = _changed(daemon, kind, name, whole, "json")
    click.echo(f"{text} rolled back to revision {revision_number(chosen)}")


def _revisions(daemon: Client, kind: Kind, found: Named) -> dict[int, dict[str, Any]]:
    plural = "replicasets" if kind.api == "Deployment" else "controllerrevisions"
    made = objects(daemon, plural, Scope(found.namespace))
    return {revision_number(one): one for one in made if owner_of(one) == (kind.api, found.name)}


def _chosen(known: Mapping[int, dict[str, Any]], found: Named, number: int) -> dict[str, Any]:
    if number not in known:
        there = ", ".join(map(str, sorted(known))) or "none"
        raise CommandFailed(f"{found.key} has no revision {number}; it has {there}", USAGE)
    return known[number]


def _template(daemon: Client, found: Named, chosen: dict[str, Any]) -> dict[str, Any]:
    """Whole, with the values that lists do not show."""
    request = pb.GetManifestRequest(
        kind=chosen["kind"], namespace=found.namespace, name=str(chosen["metadata"]["name"])
    )
    made = _parsed(daemon.call(f"{SERVICE}/GetManifest", request, pb.GetManifestResponse).content, found)
    template = dict(part(made, "spec", "template"))
    template.pop("$patch", None)
    labels = {name: value for name, value in part(template, "metadata", "labels").items() if name != HASH}
    return {**template, "metadata": {**part(template, "metadata"), "labels": labels}}


def _hold(session: Session, words: tuple[str, ...], namespace: str, *, is_paused: bool) -> None:
    kind, name = _one(words, ("deployments",))

    with connected(replace(session, namespace=namespace)) as daemon:
        _, made = find_workload(daemon, kind, name, elsewhere=False)
        if bool(part(made, "spec").get("paused")) == is_paused:
            raise CommandFailed(f"{kind.singular}/{name} is {'already' if is_paused else 'not'} paused", FAILURE)
        text = _changed(daemon, kind, name, {"spec": {"paused": True if is_paused else None}})
        click.echo(f"{text} {'paused' if is_paused else 'resumed'}")


@rollout.command()
@of_one
@click.pass_obj
def pause(session: Session, words: tuple[str, ...], namespace: str) -> None:
    """Hold a Deployment's change: pods keep the template that they have, whatever its manifest says, until resume."""
    _hold(session, words, namespace, is_paused=True)


@rollout.command()
@of_one
@click.pass_obj
def resume(session: Session, words: tuple[str, ...], namespace: str) -> None:
    """Let the template of a paused Deployment take the place of the former."""
    _hold(session, words, namespace, is_paused=False)


@click.command()
@of_one
@click.option("--replicas", type=click.IntRange(0), required=True, help="How many pods it has.")
@click.pass_obj
def scale(session: Session, words: tuple[str, ...], replicas: int, namespace: str) -> None:
    """Write another number of pods into the manifest of a Deployment or StatefulSet."""
    kind, name = _one(words, ("deployments", "statefulsets"))
    with connected(replace(session, namespace=namespace)) as daemon:
        click.echo(f"{_changed(daemon, kind, name, {'spec': {'replicas': replicas}})} scaled")


def _one(words: tuple[str, ...], plurals: tuple[str, ...]) -> tuple[Kind, str]:
    wanted = parse_wanted(words)
    names = [(one.kind, name) for one in wanted for name in one.names]
    if len(names) != 1:
        raise CommandFailed("expected one object, as KIND/NAME", USAGE)
    if names[0][0].plural not in plurals:
        known = ", ".join(one.plural for one in BY_API.values() if one.plural in plurals and one.plural in PLURALS)
        raise CommandFailed(f"{names[0][0].plural} have no such thing; expected one of {known}", USAGE)
    return names[0]


def _changed(daemon: Client, kind: Kind, name: str, patch: object, how: str = "merge") -> str:
    found, _ = find_workload(daemon, kind, name, elsewhere=False)
    send_patch(daemon, kind, found, patch, how)
    return called(kind.api, found.namespace, found.name)


def _parsed(text: bytes, found: Named) -> dict[str, Any]:
    documents, _ = parse_documents(text, "manifest")
    made = plain(documents[0]) if documents else None
    if isinstance(made, dict) and isinstance(made.get("data"), dict):
        # Of a ControllerRevision.
        made = made["data"]
    if not isinstance(made, dict) or not isinstance(made.get("spec"), dict):
        raise CommandFailed(f"the manifest of {found.key} has no spec", FAILURE)
    return made

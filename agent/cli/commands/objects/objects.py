# SPDX-License-Identifier: Apache-2.0
"""`kepctl apply`, `delete`, `validate`: objects of the manifests, one or many at a time."""

from collections.abc import Sequence
from pathlib import Path

import click
from msgspec.structs import replace

from agent.cli.client import Client, connected
from agent.cli.commands.pods.pods import SERVICE as PODS
from agent.cli.commands.pods.pods import patient
from agent.cli.completing import complete_objects
from agent.cli.objects.listed import objects
from agent.cli.objects.manifest_files import (
    SERVICE,
    CheckedFile,
    ManifestFile,
    called,
    check_file,
    checked_files,
    file_option,
    joined,
    read_files,
    send_objects,
    told_dry,
    without_fault,
)
from agent.cli.objects.scope_options import scope_options
from agent.cli.objects.words import Wanted, find_named, parse_wanted
from agent.cli.session import CommandFailed, Session
from agent.kinds.kind import Kind, Named
from agent.kinds.parts import part
from agent.kinds.pods.pod_parts import manifest_key, uid_of
from agent.kinds.registry import BY_API, BY_WORD, BY_WRITTEN
from agent.kinds.selection import Scope
from agent.kinds.shown import shown_of
from agent.model.exit_codes import FAILURE, NOT_FOUND, USAGE
from agent.model.finding import Finding
from agent.objects.documents import ManifestObject
from agent.wire.kepd.v1 import object_pb2, pod_pb2

# Files of kepd's own, and no objects of manifests.
CHECKPOINTS = "checkpoints"

dry_run_option = click.option(
    "--dry-run", type=click.Choice(["none", "client", "server"]), is_flag=False, flag_value="server", default="none",
    help="Only show what would be done; server also shows what would differ.",
)  # fmt: skip


@click.command()
@file_option
@click.argument("more", nargs=-1, metavar="[FILE|DIR|-…]")
@click.option("-k", "--kustomize", "folder", metavar="DIR", help="The manifests that a plain kustomization makes.")
@dry_run_option
@click.option(
    "--allow-unknown/--no-allow-unknown", "allows_foreign", default=True,
    help="Leave out what is not carried out here, and say so.",
)  # fmt: skip
@click.option(
    "--wait", is_flag=True,
    help="Wait until pods are ready and Services are in the kernel, and say why not yet; an hour, else --timeout.",
)  # fmt: skip
@click.pass_obj
def apply(
    session: Session, paths: tuple[str, ...], more: tuple[str, ...], *, folder: str | None, dry_run: str,
    allows_foreign: bool, wait: bool,
) -> None:  # fmt: skip
    """Put the objects of manifests into the node's manifest directory, all of them or none.

    An object that is there is changed where it stands; a new one gets a file of its own.
    """
    if folder is None:
        files = checked_files((*paths, *more), allows_foreign=allows_foreign)
    elif paths or more:
        raise CommandFailed("files and -k exclude each other; expected one", USAGE)
    else:
        from agent.cli.objects.kustomization import built

        made = ManifestFile(folder, built(Path(folder)))
        files = without_fault([made], allows_foreign=allows_foreign)
    if dry_run == "client":
        for file in files:
            for found in check_file(file).objects:
                click.echo(f"{called(*found.key)} is valid (dry run)")
        return
    with connected(session) as daemon:
        before = _uids(daemon) if wait else {}
        applied = send_objects(daemon, joined(files), dry_run=dry_run == "server")
    for one in applied:
        click.echo(f"{called(one.kind, one.namespace, one.name)} {one.result}{told_dry(dry_run)}")
        if dry_run == "server" and one.diff:
            click.echo(one.diff)
    if wait and dry_run == "none":
        from agent.cli.waits.waiting import wait_applied

        wait_applied(session, applied, before)


def _uids(daemon: Client) -> dict[str, str]:
    try:
        return {manifest_key(pod): uid_of(pod) for pod in objects(daemon, "pods")}
    except CommandFailed:
        return {}


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] NAME…", shell_complete=complete_objects)
@file_option
@scope_options
@click.option("--all", "is_all", is_flag=True, help="All objects of the kind, in the namespace of -n or default.")
@click.option(
    "--grace", "--grace-period", "grace_s", type=click.IntRange(0),
    help="Grace of pods in seconds, instead of their own; 0 = force.",
)  # fmt: skip
@click.option("--now", is_flag=True, help="A grace of 1 second.")
@click.option("--ignore-not-found", is_flag=True, help="Succeed if there is nothing to delete.")
@click.option("--wait", is_flag=True, help="Wait until the pods are gone; an hour, else --timeout.")
@dry_run_option
@click.pass_obj
def delete(
    session: Session, words: tuple[str, ...], paths: tuple[str, ...], *, namespace: str, selector: str, dry_run: str,
    grace_s: int | None, everywhere: bool, is_all: bool, now: bool, ignore_not_found: bool, wait: bool,
) -> None:  # fmt: skip
    """Remove objects from the manifests: by KIND and NAME, as KIND/NAME, by labels, or all that a file has.

    A NAME alone is a pod. Pods stop with their hooks and order. The rest of a file stays as it is.
    """
    if bool(words) == bool(paths):
        raise CommandFailed("expected either KIND and NAME, or -f with manifests", USAGE)
    grace_s = 1 if now and grace_s is None else grace_s
    wanted = _of_files(paths) if paths else [(one.kind, name) for one in _of_words(words) for name in one.names]
    ended = []
    with connected(replace(session, namespace=namespace)) as daemon:
        if words and (selector or is_all):
            wanted += _selected(daemon, words, namespace, selector, everywhere=everywhere)
        elif words and any(not one.names for one in _of_words(words)):
            raise CommandFailed("no name is given; expected names, -l LABELS or --all", USAGE)
        for kind, found in _all_resolved(daemon, wanted, skips_missing=ignore_not_found):
            _delete_one(daemon, kind, found, grace_s, is_dry=dry_run != "none")
            ended += [found.key] if kind.api == "Pod" else []
            word = "ends" if kind.api == "Pod" else "deleted"
            click.echo(f"{kind.singular}/{found.key} {word}{told_dry(dry_run)}")
    if wait and ended and dry_run == "none":
        from agent.cli.waits.waiting import wait_gone

        wait_gone(patient(session), ended)


def _all_resolved(
    daemon: Client, wanted: Sequence[tuple[Kind, str]], *, skips_missing: bool
) -> list[tuple[Kind, Named]]:
    """Before the first is deleted: a mistyped name among several may mean that none of them was meant."""
    found: dict[tuple[str, Named], tuple[Kind, Named]] = {}
    missing: list[CommandFailed] = []
    for kind, name in wanted:
        try:
            one = resolved(daemon, kind, name, daemon.namespace)
        except CommandFailed as error:
            if error.exit_code != NOT_FOUND:
                raise
            missing.append(error)
        else:
            found[kind.plural, one] = (kind, one)
    if missing and not skips_missing:
        rest = "; nothing was deleted" if found else ""
        raise CommandFailed("\n".join(f"{error}{rest}" for error in missing), NOT_FOUND)
    return list(found.values())


def _delete_checkpoint(daemon: Client, name: str, *, is_dry: bool) -> None:
    if not is_dry:
        request = pod_pb2.DeleteCheckpointRequest(name=name)
        daemon.call(f"{PODS}/DeleteCheckpoint", request, pod_pb2.DeleteCheckpointResponse)


def _of_words(words: Sequence[str]) -> tuple[Wanted, ...]:
    found = parse_wanted(words, default="pods")
    for one in found:
        if one.kind.plural == CHECKPOINTS and not one.names:
            raise CommandFailed("checkpoints are deleted by their names alone; kepctl get checkpoints has them", USAGE)
        if not one.kind.api and one.kind.plural != CHECKPOINTS:
            text = f"{one.kind.plural} cannot be deleted; only {', '.join(kind.plural for kind in BY_API.values())} can"
            raise CommandFailed(text, USAGE)
    return found


def _of_files(paths: Sequence[str]) -> list[tuple[Kind, str]]:
    """In the opposite order: what others need goes last."""
    found = []
    for file in read_files(paths):
        check = check_file(file)
        if not check.objects:
            raise CommandFailed("\n".join(map(str, (*check.findings, *check.foreign))), FAILURE)
        for one in check.objects:
            kind = BY_API.get(one.kind) or BY_WRITTEN.get(one.kind)
            if kind is None:
                raise CommandFailed(f"{one.where}: kind {one.kind} is not known here", USAGE)
            found.append((kind, Named(one.namespace, one.name).key))
    return found[::-1]


def _selected(
    daemon: Client, words: Sequence[str], namespace: str, selector: str, *, everywhere: bool
) -> list[tuple[Kind, str]]:
    from agent.cli.objects.listed import listed

    found = []
    for one in _of_words(words):
        if one.names:
            raise CommandFailed("names and -l or --all exclude each other; expected one", USAGE)
        scope = Scope("" if everywhere else namespace or "default", selector)
        rows = listed(daemon, one.kind, scope).rows
        found += [(one.kind, Named(row.namespace, row.name).key) for row in rows]
    return found


def _delete_one(daemon: Client, kind: Kind, found: Named, grace_s: int | None, *, is_dry: bool) -> None:
    if kind.plural == CHECKPOINTS:
        _delete_checkpoint(daemon, found.name, is_dry=is_dry)
    elif kind.api == "Pod" and not is_dry:
        request = pod_pb2.DeletePodRequest(namespace=found.namespace, name=found.name, grace_seconds=grace_s)
        daemon.call(f"{PODS}/DeletePod", request, pod_pb2.DeletePodResponse)
    elif kind.api != "Pod":
        other = object_pb2.DeleteRequest(kind=kind.api, namespace=found.namespace, name=found.name, dry_run=is_dry)
        daemon.call(f"{SERVICE}/Delete", other, object_pb2.DeleteResponse)


def resolved(daemon: Client, kind: Kind, name: str, namespace: str) -> Named:
    """In its namespace only: what follows changes it."""
    return find_named(kind, name, _known(daemon, kind), namespace, elsewhere=False)


def end_pod(session: Session, name: str) -> None:
    with connected(session) as daemon:
        pods = BY_WORD["pods"]
        _delete_one(daemon, pods, resolved(daemon, pods, name, daemon.namespace), None, is_dry=False)


def _known(daemon: Client, kind: Kind) -> list[Named]:
    if kind.plural == CHECKPOINTS or kind is BY_WORD["pods"]:
        return [shown_of(kind).named(made) for made in objects(daemon, kind.plural)]
    request = object_pb2.ListObjectsRequest(kind=kind.api)
    written = daemon.call(f"{SERVICE}/ListObjects", request, object_pb2.ListObjectsResponse).objects
    return [Named(one.namespace, one.name) for one in written]


def _outlook(found: ManifestObject) -> str:
    """What a Service without an address meets on a bare node."""
    spec = part(found.content, "spec")
    if found.kind != "Service" or spec.get("clusterIP") or spec.get("type") == "ExternalName":
        return ""
    return "; its address comes from services.serviceCIDRs or a ServiceCIDR: without either it is not served"


@click.command()
@file_option
@click.argument("more", nargs=-1, metavar="[FILE…]", type=click.Path())
@click.option("--strict", "is_strict", is_flag=True, help="What is not carried out here is a fault.")
def validate(paths: tuple[str, ...], more: tuple[str, ...], *, is_strict: bool) -> None:
    """Check manifests without a daemon: every fault of every file, and what is good."""
    count = 0
    checks = [check_file(file) for file in read_files((*paths, *more))]
    for check in checks:
        for one in check.warnings:
            click.echo(f"{one.where}: {one.path}: warning: {one.text}")
        for one in check.foreign if not is_strict else ():
            click.echo(f"{one}; apply leaves it out")
        findings = _faults(check, is_strict=is_strict)
        for one in findings:
            click.echo(str(one), err=True)
        if not findings:
            for found in check.objects:
                click.echo(f"{found.where}: {called(*found.key)} is valid{_outlook(found)}")
                count += 1
    faulty = sum(bool(_faults(check, is_strict=is_strict)) for check in checks)
    if faulty:
        raise CommandFailed(f"{faulty} of {len(checks)} files {'has' if faulty == 1 else 'have'} faults", FAILURE)
    click.echo(f"all is valid; objects: {count}, files: {len(checks)}")


def _faults(check: CheckedFile, *, is_strict: bool) -> Sequence[Finding]:
    """A file that has nothing for a node is no good either."""
    is_refused = is_strict or not check.objects
    return [*check.findings, *(check.foreign if is_refused else ())]

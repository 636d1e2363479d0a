# SPDX-License-Identifier: Apache-2.0
"""`kepctl cp`: files and folders between here and a container that has a `tar`."""

from pathlib import Path, PurePosixPath

import click
import msgspec

from agent.cli.client import Client, connected
from agent.cli.commands.pods.pods import SERVICE
from agent.cli.objects.pod_names import find_container
from agent.cli.session import CommandFailed, Session
from agent.cli.streams.running import run_until_interrupted
from agent.model.exit_codes import USAGE
from agent.wire.kepd.v1 import pod_pb2

SIZED = 'size=$1; shift; head -c "$size" | "$@"'
"""For runtimes that cannot close the input of a command, such as containerd 1.6: a tar reads until its input ends."""


class Inside(msgspec.Struct, frozen=True):
    """A path in a container."""

    namespace: str
    pod: str
    container: str
    path: str


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("-c", "--container", default="", help="Name of the container; not needed if the pod has only one.")
@click.pass_obj
def cp(session: Session, source: str, target: str, container: str) -> None:
    """Copy a file or folder: POD[/CONTAINER]:PATH is in a container, whatever else is here.

    What a container sends is unpacked below the target and nowhere else: links that lead out, devices and owners are
    left out, which is told, and makes the exit code 1.
    """
    is_fetched, is_sent = _is_inside(source), _is_inside(target)
    if is_fetched == is_sent:
        raise CommandFailed(f'"{source}" and "{target}": expected one of them to be POD:PATH', USAGE)
    with connected(session) as daemon:
        inside = _place(daemon, source if is_fetched else target, container)
        if is_fetched:
            _fetch(daemon, inside, Path(target))
        else:
            _send(daemon, Path(source), inside)


def _is_inside(text: str) -> bool:
    """As kubectl: a colon before any `/` that begins a path here; `./a:b` is here."""
    name, colon, _ = text.partition(":")
    return bool(colon and name) and not name.startswith(("/", "."))


def _place(daemon: Client, text: str, container: str) -> Inside:
    target, _, path = text.partition(":")
    namespace, pod, named = find_container(daemon, target)
    return Inside(namespace, pod, container or named, path)


def _fetch(daemon: Client, inside: Inside, target: Path) -> None:
    from agent.cli.streams.remote_copy import fetch

    path = PurePosixPath(inside.path)
    if path.name in ("", ".."):
        raise CommandFailed(f'"{inside.path}" has no name of its own; expected a file or a folder below /', USAGE)
    command = ["tar", "cf", "-", "-C", _no_option(str(path.parent)), f"./{path.name}"]
    url = _url(daemon, inside, command, has_stdin=False)
    place = target / path.name if target.is_dir() else target
    left_out: list[str] = []

    def note(reason: str) -> None:
        left_out.append(reason)
        click.echo(f"kepctl: left out: {reason}", err=True)

    run_until_interrupted(fetch(url, path.name, place, note))
    if left_out:
        raise CommandFailed(f"{len(left_out)} entries of the archive were left out")


def _send(daemon: Client, source: Path, inside: Inside) -> None:
    from agent.cli.streams.remote_copy import Planned, exit_code, send

    if not source.exists():
        raise CommandFailed(f"{source}: there is no such file or folder", USAGE)
    if not inside.path:
        raise CommandFailed("expected a path after POD:", USAGE)
    path = PurePosixPath(inside.path)
    is_folder_there = ["test", "-d", _no_option(inside.path)]
    code, is_end_told = run_until_interrupted(exit_code(_url(daemon, inside, is_folder_there, has_stdin=False)))
    if inside.path.endswith("/") or code == 0:
        path /= source.resolve().name
    plan = Planned(source, path.name)
    command = ["tar", "xmf", "-", "-C", _no_option(str(path.parent))]
    if not is_end_told:
        command = ["sh", "-c", SIZED, "sh", str(plan.size), *command]
    run_until_interrupted(send(_url(daemon, inside, command, has_stdin=True), plan))


def _no_option(path: str) -> str:
    return path if path.startswith(("/", ".")) else f"./{path}"


def _url(daemon: Client, inside: Inside, command: list[str], *, has_stdin: bool) -> str:
    request = pod_pb2.GetExecUrlRequest(
        namespace=inside.namespace, name=inside.pod, container=inside.container, command=command, stdin=has_stdin
    )
    return daemon.call(f"{SERVICE}/GetExecUrl", request, pod_pb2.GetExecUrlResponse).url

# SPDX-License-Identifier: Apache-2.0
"""`kepctl edit`, `create` and `run`: objects without a manifest at hand."""

import base64
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from agent.cli.client import connected
from agent.cli.commands.objects.cron_making import cronjob
from agent.cli.commands.objects.making import deployment, job, service
from agent.cli.common_options import take_namespace
from agent.cli.completing import complete_objects
from agent.cli.objects.kind_group import KindGroup
from agent.cli.objects.manifest_files import SERVICE, called, checked_files, file_option, joined, send_objects, told_dry
from agent.cli.objects.new_objects import Object, dry_run_option, make, new_object, output_option
from agent.cli.objects.words import parse_wanted
from agent.cli.session import CommandFailed, Session
from agent.config.strict_yaml import UnreadableYaml
from agent.kinds.kind import DEFAULT_NAMESPACE
from agent.model.exit_codes import USAGE
from agent.objects.documents import read_objects
from agent.wire.kepd.v1 import object_pb2


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME", shell_complete=complete_objects)
@click.option("-n", "--namespace", default=DEFAULT_NAMESPACE, metavar="NAMESPACE", help="Namespace of the object.")
@click.pass_obj
def edit(session: Session, words: tuple[str, ...], namespace: str) -> None:
    """Change the manifest of one object in $KUBE_EDITOR, $EDITOR or vi. It is applied when the editor ends."""
    from agent.cli.commands.objects.objects import resolved

    (wanted, *more) = parse_wanted(words)
    if more or len(wanted.names) != 1:
        raise CommandFailed("one object can be edited at a time; expected KIND NAME or KIND/NAME", USAGE)
    if not wanted.kind.api:
        raise CommandFailed(f"{wanted.kind.plural} have no manifest", USAGE)
    with connected(session) as daemon:
        found = resolved(daemon, wanted.kind, wanted.names[0], namespace)
        request = object_pb2.GetManifestRequest(kind=wanted.kind.api, namespace=found.namespace, name=found.name)
        answer = daemon.call(f"{SERVICE}/GetManifest", request, object_pb2.GetManifestResponse)
        path = Path(_edited(answer.content, wanted.kind.singular))
        content = path.read_bytes()
        if content == answer.content:
            path.unlink()
            click.echo("nothing has changed")
            return
        _same(content, answer.content, path)
        try:
            applied = send_objects(daemon, content, version=answer.version)
        except CommandFailed as error:
            raise CommandFailed(f"{error}\nyour text is kept in {path}", error.exit_code) from error
    path.unlink()
    for one in applied:
        click.echo(f"{called(one.kind, one.namespace, one.name)} {one.result}")


def _edited(content: bytes, word: str) -> str:
    """The file that the editor left; its owner alone may read it."""
    handle, path = tempfile.mkstemp(prefix=f"kepctl-{word}-", suffix=".yaml")
    with os.fdopen(handle, "wb") as target:
        target.write(content)
    editor = os.environ.get("KUBE_EDITOR") or os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        done = subprocess.run([*shlex.split(editor), path], check=False)
    except (OSError, ValueError) as error:
        Path(path).unlink()
        raise CommandFailed(f"the editor {editor} cannot be started: {error}; set EDITOR", USAGE) from error
    if done.returncode:
        Path(path).unlink()
        raise CommandFailed(f"the editor ended with exit code {done.returncode}; nothing was applied")
    return path


def _same(content: bytes, before: bytes, path: Path) -> None:
    """An editor changes one object; another name would be another one."""
    try:
        now, then = ([one.key for one in read_objects(str(path), text)] for text in (content, before))
    except UnreadableYaml as error:
        raise CommandFailed(f"{error.finding}; your text is kept there", USAGE) from error
    if now != then:
        names = ", ".join(called(*key) for key in now) or "no object"
        raise CommandFailed(f"{path} has {names}; expected {called(*then[0])}. Use apply for other objects", USAGE)


class Makers(KindGroup):
    """`create KIND`, and `create -f FILE`."""


@click.group(cls=Makers, invoke_without_command=True)
@file_option
@dry_run_option
@click.pass_context
def create(ctx: click.Context, paths: tuple[str, ...], dry_run: str) -> None:
    """Make objects that are not there: of a kind, or what a file says."""
    if ctx.invoked_subcommand is not None:
        return
    files = checked_files(paths)
    with connected(ctx.obj) as daemon:
        applied = send_objects(daemon, joined(files), create_only=True, dry_run=dry_run != "none")
    for one in applied:
        click.echo(f"{called(one.kind, one.namespace, one.name)} {one.result}{told_dry(dry_run)}")


SOURCES = (
    click.option("--from-literal", "literals", multiple=True, metavar="KEY=VALUE", help="A key with its value."),
    click.option(
        "--from-file", "files", multiple=True, metavar="[KEY=]FILE|DIR",
        help="A file's content under its name, or KEY; of a directory all files.",
    ),
    click.option("--from-env-file", "env_files", multiple=True, metavar="FILE", help="Lines of KEY=VALUE."),
    dry_run_option,
    output_option,
)  # fmt: skip


def _with_sources(command: Any) -> Any:  # noqa: ANN401  # a decorator of decorated functions
    for option in reversed(SOURCES):
        command = option(command)
    return command


@create.command()
@click.argument("name", metavar="NAME")
@_with_sources
@click.pass_obj
def configmap(
    session: Session, name: str, *, literals: tuple[str, ...], files: tuple[str, ...], env_files: tuple[str, ...],
    dry_run: str, output: str | None,
) -> None:  # fmt: skip
    """Make a ConfigMap of literals and files."""
    made = new_object("ConfigMap", name, session)
    for key, value in _values(literals, files, env_files).items():
        try:
            made.setdefault("data", {})[key] = value.decode()
        except UnicodeError:
            made.setdefault("binaryData", {})[key] = base64.b64encode(value).decode()
    make(session, made, dry_run, output)


@create.command()
@click.argument(
    "type_", metavar="generic|tls|docker-registry", type=click.Choice(["generic", "tls", "docker-registry"])
)
@click.argument("name", metavar="NAME")
@_with_sources
@click.option("--type", "own_type", default="Opaque", help="Type of a generic Secret.")
@click.option("--cert", type=click.Path(exists=True, path_type=Path), help="Of tls: the certificate.")
@click.option("--key", type=click.Path(exists=True, path_type=Path), help="Of tls: its key.")
@click.option("--docker-server", default="https://index.docker.io/v1/", help="Of docker-registry: the registry.")
@click.option("--docker-username", default="", help="Of docker-registry: the user.")
@click.option("--docker-password", default="", help="Of docker-registry: the password.")
@click.pass_obj
def secret(
    session: Session, type_: str, name: str, *, literals: tuple[str, ...], files: tuple[str, ...],
    env_files: tuple[str, ...], dry_run: str, output: str | None, own_type: str, cert: Path | None, key: Path | None,
    docker_server: str, docker_username: str, docker_password: str,
) -> None:  # fmt: skip
    """Make a Secret of literals and files, of a certificate and its key, or of a registry's login."""
    _only_own_options(type_)
    values = _values(literals, files, env_files)
    if type_ == "tls":
        if cert is None or key is None:
            raise CommandFailed("a tls Secret needs --cert and --key", USAGE)
        own_type, values = "kubernetes.io/tls", {"tls.crt": cert.read_bytes(), "tls.key": key.read_bytes()}
    elif type_ == "docker-registry":
        if not docker_username:
            raise CommandFailed("a docker-registry Secret needs --docker-username and --docker-password", USAGE)
        own_type, values = "kubernetes.io/dockerconfigjson", _login(docker_server, docker_username, docker_password)
    made = new_object("Secret", name, session) | {"type": own_type}
    made["data"] = {one: base64.b64encode(value).decode() for one, value in values.items()}
    make(session, made, dry_run, output)


OWN_OPTIONS = {
    "generic": ("literals", "files", "env_files", "own_type"),
    "tls": ("cert", "key"),
    "docker-registry": ("docker_server", "docker_username", "docker_password"),
}


def _only_own_options(type_: str) -> None:
    """An option of another type would be ignored, and the Secret be another than was meant."""
    ctx = click.get_current_context()
    flags = {one.name: one.opts[0] for one in ctx.command.params if isinstance(one, click.Option)}
    foreign = [
        f"{flags[name]} is an option of {kind}"
        for kind, names in OWN_OPTIONS.items()
        for name in names
        if kind != type_ and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if foreign:
        own = ", ".join(flags[name] for name in OWN_OPTIONS[type_])
        raise CommandFailed(f"create secret {type_}: {'; '.join(foreign)}; those of {type_} are {own}", USAGE)


def _login(server: str, user: str, password: str) -> dict[str, bytes]:
    import json

    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {
        ".dockerconfigjson": json.dumps(
            {"auths": {server: {"username": user, "password": password, "auth": auth}}}
        ).encode()
    }


def _values(literals: Sequence[str], files: Sequence[str], env_files: Sequence[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    def put(key: str, value: bytes) -> None:
        if key in found:
            raise CommandFailed(f"key {key} is given twice", USAGE)
        found[key] = value

    for literal in literals:
        put(*_pair(literal, "--from-literal"))
    for source in files:
        key, sign, place = source.partition("=")
        path = Path(place if sign else source)
        try:
            inside = [one for one in sorted(path.iterdir()) if one.is_file()] if path.is_dir() and not sign else [path]
            for one in inside:
                put(key if sign else one.name, one.read_bytes())
        except OSError as error:
            raise CommandFailed(f"{path}: cannot be read: {error.strerror}", USAGE) from error
    for source in env_files:
        try:
            text = Path(source).read_text()
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise CommandFailed(f"{source}: cannot be read: {why}", USAGE) from error
        for line in text.splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                put(*_pair(line.lstrip(), source))
    return found


def _pair(text: str, where: str) -> tuple[str, bytes]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise CommandFailed(f'{where}: "{key}" has no value; expected KEY=VALUE', USAGE)
    return key, value.encode()


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="NAME")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARG…]")
@click.option("--image", required=True, help="The image.")
@click.option("--command", "is_command", is_flag=True, help="What follows -- is the command instead of its arguments.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable; may be given again.")
@click.option("--port", type=click.IntRange(1, 65535), help="A port of the container.")
@click.option("-l", "--labels", default="", metavar="KEY=VALUE,…", help="Labels [run=NAME].")
@click.option(
    "--restart", "policy", type=click.Choice(["Always", "OnFailure", "Never"]), default="Always", help="Restart policy."
)
@click.option("--image-pull-policy", default="", help="Pull policy.")
@click.option("-i", "--stdin", "has_stdin", is_flag=True, help="Attach, and send standard input to the container.")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Attach, and give the container a terminal.")
@click.option("--rm", "is_removed", is_flag=True, help="Delete the pod when it has been attached to; only with -i.")
@dry_run_option
@output_option
@click.pass_obj
def run(
    session: Session, name: str, *, arguments: tuple[str, ...], image: str, variables: tuple[str, ...],
    port: int | None, labels: str, policy: str, image_pull_policy: str, dry_run: str, output: str | None,
    is_command: bool, has_stdin: bool, is_tty: bool, is_removed: bool,
) -> None:  # fmt: skip
    """Run an image as a pod of one container, and write its manifest."""
    container: Object = {"name": name, "image": image}
    container |= {"command" if is_command else "args": list(arguments)} if arguments else {}
    pairs = [_pair(one, "--env") for one in variables]
    container |= {"env": [{"name": key, "value": value.decode()} for key, value in pairs]} if pairs else {}
    container |= {"ports": [{"containerPort": port}]} if port else {}
    container |= {"imagePullPolicy": image_pull_policy} if image_pull_policy else {}
    container |= {"stdin": True, "stdinOnce": True} if has_stdin else {}
    container |= {"tty": True} if is_tty else {}
    if is_removed and not has_stdin:
        raise CommandFailed("--rm needs -i, for a pod that nobody attached to would go at once", USAGE)
    made = new_object("Pod", name, session)
    given = [_pair(one, "--labels") for one in labels.split(",") if one] or [("run", name.encode())]
    made["metadata"]["labels"] = {key: value.decode() for key, value in given}
    made["spec"] = {"containers": [container], "restartPolicy": policy}
    make(session, made, dry_run, output)
    if (has_stdin or is_tty) and dry_run == "none":
        _attached(session, made, is_removed=is_removed, has_stdin=has_stdin)


def _attached(session: Session, made: Object, *, is_removed: bool, has_stdin: bool) -> None:
    """Until the container ends, whose exit code is that of kepctl."""
    from agent.cli.commands.pods.streams import attach
    from agent.cli.waits.waiting import wait_running

    namespace, name = made["metadata"]["namespace"], made["metadata"]["name"]
    context = click.get_current_context()
    try:
        wait_running(session, f"{namespace}/{name}")
        context.invoke(attach, target=f"{namespace}/{name}/{name}", has_stdin=has_stdin, container="")
    finally:
        if is_removed:
            from agent.cli.commands.objects.objects import end_pod

            end_pod(session, f"{namespace}/{name}")
            sys.stderr.write(f"kepctl: pod {namespace}/{name} ends\n")


for _of_workload in (deployment, job, cronjob, service):
    create.add_command(_of_workload)
for _maker in create.commands.values():
    take_namespace(_maker)
take_namespace(run)

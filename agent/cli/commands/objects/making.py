# SPDX-License-Identifier: Apache-2.0
"""`kepctl create deployment|job|service` and `kepctl expose`: workloads and Services without a file."""

from typing import Any

import click
from msgspec.structs import replace

from agent.cli.client import connected
from agent.cli.commands.objects.cron_making import job_of
from agent.cli.commands.objects.objects import resolved
from agent.cli.completing import complete_objects
from agent.cli.objects.manifest_files import SERVICE
from agent.cli.objects.new_objects import Object, dry_run_option, make, new_object, output_option
from agent.cli.objects.scope_options import namespace_option
from agent.cli.objects.words import parse_wanted
from agent.cli.session import CommandFailed, Session
from agent.config.strict_yaml import parse_documents, plain
from agent.kinds.parts import part
from agent.model.exit_codes import USAGE
from agent.wire.kepd.v1 import object_pb2

TYPES = {"clusterip": "ClusterIP", "nodeport": "NodePort", "loadbalancer": "LoadBalancer"}
EXPOSED = ("pods", "deployments", "daemonsets", "statefulsets")


def _container(name: str, image: str, command: tuple[str, ...]) -> Object:
    return {"name": name, "image": image} | ({"command": list(command)} if command else {})


@click.command()
@click.argument("name", metavar="NAME")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]")
@click.option("--image", required=True, help="The image.")
@click.option("-r", "--replicas", type=click.IntRange(0), default=1, show_default=True, help="How many pods.")
@click.option("--port", type=click.IntRange(1, 65535), help="A port of the container.")
@dry_run_option
@output_option
@click.pass_obj
def deployment(
    session: Session, name: str, *, command: tuple[str, ...], image: str, replicas: int, port: int | None,
    dry_run: str, output: str | None,
) -> None:  # fmt: skip
    """Make a Deployment of pods with one container; their label is app=NAME."""
    container = _container(name, image, command) | ({"ports": [{"containerPort": port}]} if port else {})
    made = new_object("Deployment", name, session, "apps/v1")
    made["metadata"]["labels"] = {"app": name}
    made["spec"] = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
    }
    make(session, made, dry_run, output)


@click.command()
@click.argument("name", metavar="NAME")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]")
@click.option("--image", default="", help="The image.")
@click.option(
    "--from", "origin", default="", metavar="cronjob/NAME", help="What this CronJob runs, in place of --image."
)
@dry_run_option
@output_option
@click.pass_obj
def job(
    session: Session, name: str, *, command: tuple[str, ...], image: str, origin: str, dry_run: str, output: str | None
) -> None:
    """Make a Job that runs one container once, or once what a CronJob runs."""
    if bool(image) == bool(origin) or (origin and command):
        raise CommandFailed("expected --image IMAGE [-- COMMAND…], or --from cronjob/NAME alone", USAGE)
    if origin:
        made = job_of(session, name, origin)
    else:
        made = new_object("Job", name, session, "batch/v1")
        spec = {"containers": [_container(name, image, command)], "restartPolicy": "Never"}
        made["spec"] = {"template": {"spec": spec}}
    make(session, made, dry_run, output)


@click.command()
@click.argument("type_", metavar="|".join(TYPES), type=click.Choice(tuple(TYPES)))
@click.argument("name", metavar="NAME")
@click.option("--tcp", "ports", multiple=True, required=True, metavar="PORT[:TARGET]", help="A port, and that of pods.")
@dry_run_option
@output_option
@click.pass_obj
def service(
    session: Session, type_: str, name: str, *, ports: tuple[str, ...], dry_run: str, output: str | None
) -> None:  # fmt: skip
    """Make a Service for pods with the label app=NAME."""
    made = new_object("Service", name, session)
    listed = []
    for one in ports:
        port, _, target = one.partition(":")
        if not port.isdecimal():
            raise CommandFailed(f'--tcp: "{one}" is no port; expected PORT or PORT:TARGET', USAGE)
        listed.append({"name": one.replace(":", "-"), "port": int(port), "targetPort": _target(target or port)})
    made["spec"] = {"type": TYPES[type_], "selector": {"app": name}, "ports": listed}
    make(session, made, dry_run, output)


def _target(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KIND/NAME", shell_complete=complete_objects)
@click.option("--port", type=click.IntRange(1, 65535), help="The Service's port [that of the container].")
@click.option("--target-port", default="", metavar="PORT", help="The port of the pods, by number or name [--port].")
@click.option("--name", "called", default="", help="The Service's name [that of the object].")
@click.option("--type", "type_", type=click.Choice(tuple(TYPES.values())), default="ClusterIP", help="Its type.")
@namespace_option()
@dry_run_option
@output_option
@click.pass_obj
def expose(
    session: Session, words: tuple[str, ...], *, port: int | None, target_port: str, called: str, type_: str,
    namespace: str, dry_run: str, output: str | None,
) -> None:  # fmt: skip
    """Make a Service for the pods of a Deployment or DaemonSet, or for one pod, by their labels."""
    wanted = [(one.kind, name) for one in parse_wanted(words) for name in one.names]
    if len(wanted) != 1 or wanted[0][0].plural not in EXPOSED:
        raise CommandFailed(f"expected one object of {', '.join(EXPOSED)}, as KIND/NAME", USAGE)
    kind, name = wanted[0]
    session = replace(session, namespace=namespace or session.namespace)
    with connected(session) as daemon:
        found = resolved(daemon, kind, name, session.namespace)
        own = found.short or found.name
        request = object_pb2.GetManifestRequest(kind=kind.api, namespace=found.namespace, name=own)
        content = daemon.call(f"{SERVICE}/GetManifest", request, object_pb2.GetManifestResponse).content
    whole: Any = plain(parse_documents(content, "manifest")[0][0])
    pod = whole if kind.api == "Pod" else part(whole, "spec", "template")
    labels = part(whole, "metadata", "labels") if kind.api == "Pod" else part(whole, "spec", "selector", "matchLabels")
    ports = [each for one in part(pod, "spec").get("containers") or () for each in one.get("ports") or ()]
    if port is None and len(ports) != 1:
        raise CommandFailed(f"{kind.singular}/{found.key} has {len(ports)} ports in its manifest; say --port", USAGE)
    if not labels:
        raise CommandFailed(f"{kind.singular}/{found.key} has no labels that a Service could select", USAGE)
    number = port or ports[0]["containerPort"]
    made = new_object("Service", called or own, replace(session, namespace=found.namespace))
    to = {"port": number, "targetPort": _target(target_port or str(number))}
    made["spec"] = {"type": type_, "selector": labels, "ports": [to]}
    make(session, made, dry_run, output)

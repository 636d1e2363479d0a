# SPDX-License-Identifier: Apache-2.0
"""`kepctl restore`: a pod like the one that a checkpoint is of, whose container begins from it."""

from typing import Any, cast

import click

from agent.cli.client import Client, connected
from agent.cli.completing import names_of
from agent.cli.objects.listed import objects
from agent.cli.objects.manifest_files import SERVICE, called, send_objects
from agent.cli.session import CommandFailed, Session
from agent.config.strict_yaml import parse_documents, plain
from agent.kinds.pods.pod_parts import containers, name_of, namespace_of, told
from agent.kinds.registry import BY_WORD
from agent.kinds.table import Object
from agent.model.exit_codes import FAILURE, NOT_FOUND
from agent.objects.documents import dumped
from agent.wire.kepd.v1 import object_pb2

NOTE = "kepd.dev/restore."


def _complete(ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
    return names_of(ctx, BY_WORD["checkpoints"], typed)


@click.command()
@click.argument("checkpoint", shell_complete=_complete)
@click.option("--as", "target", required=True, metavar="POD[/CONTAINER]", help="Name of the new pod.")
@click.pass_obj
def restore(session: Session, checkpoint: str, target: str) -> None:
    """Run another pod like the one that a checkpoint is of; its container goes on where it stood then.

    Once: when that container is started again, it begins as its manifest says. Volumes are not in a checkpoint.
    """
    pod, _, container = target.partition("/")
    with connected(session) as daemon:
        source, named = _source(daemon, checkpoint, container)
        request = object_pb2.GetManifestRequest(kind="Pod", namespace=namespace_of(source), name=name_of(source))
        answer = daemon.call(f"{SERVICE}/GetManifest", request, object_pb2.GetManifestResponse)
        documents, _ = parse_documents(answer.content, answer.source)
        made = _changed(cast("dict[str, Any]", plain(documents[0])), pod, named, checkpoint)
        applied = send_objects(daemon, dumped(made).encode(), create_only=True)
    for one in applied:
        click.echo(f"{called(one.kind, one.namespace, one.name)} {one.result}")


def _source(daemon: Client, checkpoint: str, container: str) -> tuple[Object, str]:
    """The pod that it is of, and the container. Names of namespaces and containers may both have hyphens."""
    found = next((one for one in objects(daemon, "checkpoints") if name_of(one) == checkpoint), None)
    if found is None:
        raise CommandFailed(f'no checkpoint "{checkpoint}" is here; kepctl get checkpoints lists them', NOT_FOUND)
    if (state := told(found, "state")) != "ready":
        raise CommandFailed(f"checkpoint {checkpoint} is {state}; only one that is ready can be used", FAILURE)
    for pod in objects(daemon, "pods"):
        for _, status in containers(pod):
            if checkpoint.startswith(f"checkpoint-{name_of(pod)}_{namespace_of(pod)}-{status['name']}-2"):
                return pod, container or status["name"]
    text = "the pod that it is of is not here; apply a manifest of your own with the annotation"
    raise CommandFailed(f"{text} {NOTE}CONTAINER: {checkpoint}", NOT_FOUND)


def _changed(manifest: dict[str, Any], pod: str, container: str, checkpoint: str) -> dict[str, Any]:
    """What is of one pod alone stays with it."""
    metadata = {key: value for key, value in manifest.get("metadata", {}).items() if key != "uid"}
    notes = {key: value for key, value in metadata.get("annotations", {}).items() if not key.startswith(NOTE)}
    metadata |= {"name": pod, "annotations": {**notes, NOTE + container: checkpoint}}
    return {**manifest, "metadata": metadata}

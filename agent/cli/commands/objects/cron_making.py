# SPDX-License-Identifier: Apache-2.0
"""`kepctl create cronjob`, and Jobs that are made at once of one."""

from typing import Any

import click

from agent.cli.client import connected
from agent.cli.commands.objects.objects import resolved
from agent.cli.objects.manifest_files import SERVICE
from agent.cli.objects.new_objects import Object, dry_run_option, make, new_object, output_option
from agent.cli.objects.words import parse_wanted
from agent.cli.session import CommandFailed, Session
from agent.config.strict_yaml import parse_documents, plain
from agent.kinds.parts import part
from agent.model.exit_codes import USAGE
from agent.wire.kepd.v1 import object_pb2

BY_HAND = {"cronjob.kubernetes.io/instantiate": "manual"}


@click.command()
@click.argument("name", metavar="NAME")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]")
@click.option("--image", required=True, help="The image.")
@click.option("--schedule", required=True, help='When: five fields of cron such as "30 4 * * *", or @daily.')
@click.option(
    "--restart",
    type=click.Choice(("OnFailure", "Never")),
    default="OnFailure",
    show_default=True,
    help="Whether a container that fails starts again in its pod.",
)
@dry_run_option
@output_option
@click.pass_obj
def cronjob(
    session: Session, name: str, *, command: tuple[str, ...], image: str, schedule: str, restart: str, dry_run: str,
    output: str | None,
) -> None:  # fmt: skip
    """Make a CronJob, that runs one container whenever its time comes."""
    container = {"name": name, "image": image} | ({"command": list(command)} if command else {})
    made = new_object("CronJob", name, session, "batch/v1")
    pod = {"containers": [container], "restartPolicy": restart}
    made["spec"] = {"schedule": schedule, "jobTemplate": {"spec": {"template": {"spec": pod}}}}
    make(session, made, dry_run, output)


def job_of(session: Session, name: str, words: str) -> Object:
    """A Job of its own with the template of CronJob `words`; it is in a file, and no limit takes it away."""
    wanted = [(one.kind, each) for one in parse_wanted([words]) for each in one.names]
    if len(wanted) != 1 or wanted[0][0].api != "CronJob":
        raise CommandFailed(f'--from: "{words}" is no CronJob; expected cronjob/NAME', USAGE)
    kind, called = wanted[0]
    with connected(session) as daemon:
        found = resolved(daemon, kind, called, session.namespace)
        request = object_pb2.GetManifestRequest(kind=kind.api, namespace=found.namespace, name=found.name)
        content = daemon.call(f"{SERVICE}/GetManifest", request, object_pb2.GetManifestResponse).content
    whole: Any = plain(parse_documents(content, "manifest")[0][0])
    template = part(whole, "spec", "jobTemplate")
    metadata = part(template, "metadata")
    made = new_object("Job", name, session, "batch/v1")
    made["metadata"] |= {"namespace": found.namespace, "annotations": part(metadata, "annotations") | BY_HAND}
    if labels := part(metadata, "labels"):
        made["metadata"]["labels"] = labels
    made["spec"] = part(template, "spec")
    return made

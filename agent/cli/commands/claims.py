# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain claim`: which devices a claim gets, and the reason for each that it does not.

Exit codes: 0 it gets its devices, 1 it does not, 2 wrong input.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from agent.cli.claim_text import explanation_blocks
from agent.cli.manifest_files import read_files
from agent.cli.render import output_option, print_blocks, print_data
from agent.cli.session import CommandFailed, Session
from agent.model.exit_codes import FAILURE, USAGE
from agent.model.finding import Finding, suggestion
from agent.model.pod import PodSpec

if TYPE_CHECKING:
    from agent.devices.plan.search import Question

CLAIM_EXITS = {"allocated": 0, "waits": 1, "error": 1}


@click.command()
@click.argument("name", metavar="NAMESPACE/NAME", default="")
@click.option("--pod", "pod", default="", metavar="NAMESPACE/NAME", help="All claims of this pod together.")
@click.option(
    "--from-files",
    "source",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="Manifests: claims, templates, classes, slices and pods.",
)
@click.option("--node", default="", help="Name of the node that is asked about; by default this one.")
@click.option("--trust-status", is_flag=True, help="Claims whose status has devices hold them.")
@output_option("table", "json", "yaml")
@click.pass_context
def claim(
    ctx: click.Context, *, name: str, pod: str, source: Path, node: str, trust_status: bool, output: str
) -> None:  # fmt: skip
    """Explain which devices a claim gets, and why not others. Exit code 0: it does, 1: it does not, 2: bad input."""
    from agent.devices.view.explained import explain

    session: Session = ctx.obj
    if bool(name) == bool(pod):
        raise CommandFailed("expected either the NAME of a claim or --pod", USAGE)
    node = node or socket.gethostname().lower()
    files = {one.path: one.content for one in read_files([str(source)])}
    what = "pod" if pod else "claim"
    subject = pod or name
    if "/" not in subject:
        subject = f"{session.namespace or 'default'}/{subject}"
    question = _question(files, node, subject, is_pod=bool(pod), trusts_status=trust_status)
    found = explain(question)
    if output == "table":
        print_blocks(explanation_blocks(f"{what.upper()} {subject}", found), session)
    else:
        print_data(msgspec.to_builtins(found), output)
    ctx.exit(CLAIM_EXITS[found.outcome])


def _question(files: Mapping[str, bytes], node: str, subject: str, *, is_pod: bool, trusts_status: bool) -> "Question":
    from agent.devices.manifest.documents import Reader
    from agent.devices.manifest.pod_claims import NotThere, claims_of_pod, with_uid
    from agent.devices.manifest.reading import read_device_objects
    from agent.devices.plan.pools import Node
    from agent.devices.plan.search import Question
    from agent.devices.view.explained import existing_in

    objects = read_device_objects(files, Reader(node, trusts_status=trusts_status))
    pods, findings = _pods(files)
    if findings := [*objects.findings, *findings]:
        raise CommandFailed("\n".join(map(str, dict.fromkeys(findings))), USAGE)
    made = {}
    for one in pods:
        try:
            made[one.key] = [entry.claim for entry in claims_of_pod(one, objects)]
        except NotThere as error:
            if is_pod and one.key == subject:
                raise CommandFailed(f"pod {subject} waits: {error}", FAILURE) from error
    known = {one.key: (one,) for claims in made.values() for one in claims}
    known |= {key: (with_uid(one),) for key, one in objects.claims.items()}
    choices = {key: tuple(one) for key, one in made.items()} if is_pod else known
    if subject not in choices:
        what = "pod" if is_pod else "claim"
        raise CommandFailed(f"no {what} {subject} is in these files{suggestion(subject, choices)}", USAGE)
    wanted = tuple(one for one in choices[subject] if one.status.allocation is None)
    existing = existing_in((one for one, *_ in known.values()), wanted)
    return Question(
        node=Node(name=node), slices=objects.slices, classes=objects.classes, existing=existing, claims=wanted
    )


def _pods(files: Mapping[str, bytes]) -> tuple[list[PodSpec], list[Finding]]:
    from agent.pods.manifest.objects import NodeIdentity, parse_objects

    pods: list[PodSpec] = []
    findings: list[Finding] = []
    for path, content in files.items():
        found = parse_objects(path, content, NodeIdentity("", has_name_suffix=False, gives_devices=True))
        pods += found.pods
        findings += found.findings
    return pods, findings

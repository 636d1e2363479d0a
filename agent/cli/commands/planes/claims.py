# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain claim`, `explain cdi`, `reset device`, `release claim`, `release hold`.

Exit codes of an explanation: 0 the claim gets its devices, 1 it does not, 2 wrong input.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from agent.cli.client import ask, connected
from agent.cli.objects.kind_group import KindGroup
from agent.cli.objects.manifest_files import read_files
from agent.cli.render import output_option, print_blocks, print_data, print_message
from agent.cli.session import CommandFailed, Session
from agent.cli.texts.claims import explanation_blocks
from agent.config.packages import is_installed, not_installed
from agent.model.exit_codes import FAILURE, NOT_FOUND, USAGE
from agent.model.finding import Finding, printable, suggestion
from agent.model.pods.pod import PodSpec
from agent.wire.kepd.v1 import device_pb2 as pb

if TYPE_CHECKING:
    from kepd_devices.plan.search import Question

SERVICE = "kepd.v1.DeviceService"
RELEASES = ("kepd.v1.CriProxyService/ReleaseHold", "kepd.v1.ImageService/ReleasePullHold")
CLAIM_EXITS = {"allocated": 0, "waits": 1, "error": 1}


@click.command()
@click.argument("name", metavar="NAMESPACE/NAME", default="")
@click.option("--pod", "pod", default="", metavar="NAMESPACE/NAME", help="All claims of this pod together.")
@click.option(
    "--from-files",
    "source",
    type=click.Path(exists=True, path_type=Path),
    help="Manifests to read, instead of asking the running daemon.",
)
@click.option("--node", default="", help="With --from-files: the node that is asked about; by default this one.")
@click.option("--trust-status", is_flag=True, help="With --from-files: claims whose status has devices hold them.")
@output_option("table", "json", "yaml")
@click.pass_context
def claim(
    ctx: click.Context, *, name: str, pod: str, source: Path | None, node: str, trust_status: bool, output: str
) -> None:  # fmt: skip
    """Explain which devices a claim gets, and why not others. Exit code 0: it does, 1: it does not, 2: bad input."""
    session: Session = ctx.obj
    if bool(name) == bool(pod):
        raise CommandFailed("expected either the NAME of a claim or --pod", USAGE)
    what = "pod" if pod else "claim"
    subject = pod or name
    if "/" not in subject:
        subject = f"{session.namespace or 'default'}/{subject}"
    title = f"{what.upper()} {subject}"
    if source is None:
        answer = _asked(session, subject, is_pod=bool(pod))
        if output == "table":
            print_blocks(explanation_blocks(title, answer), session)
        else:
            print_message(answer, output)
        ctx.exit(CLAIM_EXITS.get(answer.outcome, FAILURE))
    if not is_installed("devices"):
        raise CommandFailed(f"the devices plane is {not_installed('devices')}; --from-files needs it", USAGE)
    from kepd_devices.view.explained import explain
    from kepd_devices.view.listed import explanation_report

    files = {one.path: one.content for one in read_files([str(source)])}
    node = node or socket.gethostname().lower()
    question = _question(files, node, subject, is_pod=bool(pod), trusts_status=trust_status)
    report = explanation_report(explain(question))
    if output == "table":
        print_blocks(explanation_blocks(title, report), session)
    else:
        print_data(msgspec.to_builtins(report), output)
    ctx.exit(CLAIM_EXITS[report.outcome])


def _asked(session: Session, subject: str, *, is_pod: bool) -> pb.ExplainClaimResponse:
    namespace, _, name = subject.rpartition("/")
    request = pb.ExplainClaimRequest(namespace=namespace, name=name, is_pod=is_pod)
    return ask(session, f"{SERVICE}/ExplainClaim", request, pb.ExplainClaimResponse)


@click.command()
@click.argument("name", metavar="VENDOR/CLASS=NAME")
@click.option("--runtime", default="", metavar="'NAME VERSION'", help="Another runtime, such as 'containerd 1.6.20'.")
@output_option("table", "json", "yaml")
@click.pass_context
def cdi(ctx: click.Context, *, name: str, runtime: str, output: str) -> None:
    """Show what a CDI id stands for, and what a container gets of it. Exit code 1: the container would fail."""
    session: Session = ctx.obj
    request = pb.ExplainCdiRequest(id=name, runtime=runtime)
    answer = ask(session, f"{SERVICE}/ExplainCdi", request, pb.ExplainCdiResponse)
    if output != "table":
        print_message(answer, output)
        ctx.exit(FAILURE if answer.refusal else 0)
    click.echo(f"CDI {printable(answer.id)}  {printable(answer.file)}, version {printable(answer.cdi_version)}")
    for title, lines in (("has", answer.edits), (f"{answer.runtime} is given", answer.given)):
        for line in lines:
            click.echo(f"- {title}: {printable(line)}")
    if answer.refusal:
        click.echo(f"- {answer.runtime} is given nothing: {printable(answer.refusal)}")
    ctx.exit(FAILURE if answer.refusal else 0)


@click.group(cls=KindGroup)
def reset() -> None:
    """Reset a device that is in quarantine."""


@reset.command()
@click.argument("name", metavar="DRIVER/POOL/DEVICE")
@click.pass_obj
def device(session: Session, name: str) -> None:
    """Run the reset of a device in quarantine; when it succeeds the device is free."""
    ask(session, f"{SERVICE}/ResetDevice", pb.ResetDeviceRequest(name=name), pb.ResetDeviceResponse)
    click.echo(f"device {name} is reset")


@click.group(cls=KindGroup)
def release() -> None:
    """Let go on what is held, or forget the record of a claim that cannot be given back."""


@release.command("hold")
@click.argument("hold_id", metavar="ID")
@click.pass_obj
def release_held(session: Session, hold_id: str) -> None:
    """Let a call or the pulls of a registry go on that wait for something; `kepctl get holds` has the IDs."""
    from agent.wire.kepd.v1 import cri_proxy_pb2

    failed: list[CommandFailed] = []
    with connected(session) as daemon:
        # Whoever holds it.
        for method in RELEASES:
            try:
                daemon.call(method, cri_proxy_pb2.ReleaseHoldRequest(id=hold_id), cri_proxy_pb2.ReleaseHoldResponse)
            except CommandFailed as error:
                failed.append(error)
    if len(failed) == len(RELEASES):
        raise next((one for one in failed if one.exit_code == NOT_FOUND), failed[0])
    click.echo(f"hold {hold_id} is released")


@release.command("claim")
@click.argument("uid", metavar="UID")
@click.option("--force", is_flag=True, help="Also where kepd cannot tell what its drivers still hold.")
@click.pass_obj
def release_claim(session: Session, uid: str, *, force: bool) -> None:
    """Forget the record of a claim. Its devices count as free, whatever a driver has of them: make sure they are."""
    if not force:
        text = "its devices would be given to others; expected --force, once they are known to be free"
        raise CommandFailed(text, USAGE)
    ask(session, f"{SERVICE}/ReleaseClaim", pb.ReleaseClaimRequest(uid=uid), pb.ReleaseClaimResponse)
    click.echo(f"the record of claim {uid} is gone")


def _question(files: Mapping[str, bytes], node: str, subject: str, *, is_pod: bool, trusts_status: bool) -> "Question":
    from kepd_devices.manifest.documents import Reader
    from kepd_devices.manifest.pod_claims import NotThere, claims_of_pod, with_uid
    from kepd_devices.manifest.reading import read_device_objects
    from kepd_devices.plan.pools import PoolNode
    from kepd_devices.plan.search import Question
    from kepd_devices.view.explained import existing_in

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
        node=PoolNode(name=node), slices=objects.slices, classes=objects.classes, existing=existing, claims=wanted
    )


def _pods(files: Mapping[str, bytes]) -> tuple[list[PodSpec], list[Finding]]:
    from agent.pods.manifest.objects import NodeIdentity, parse_objects

    pods: list[PodSpec] = []
    findings: list[Finding] = []
    for path, content in files.items():
        found = parse_objects(path, content, NodeIdentity("", False, True, True))
        pods += found.pods
        findings += found.findings
    return pods, findings

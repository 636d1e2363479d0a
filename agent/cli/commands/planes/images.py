# SPDX-License-Identifier: Apache-2.0
"""`kepctl pull`, `cancel`, `set`, `retry`, `gc`, `prefetch`: what people do with images."""

from pathlib import Path

import click

from agent.cli.client import Client, ask, connected
from agent.cli.objects.kind_group import KindGroup
from agent.cli.objects.pod_names import find_pod, given_pod
from agent.cli.render import output_option, print_listing
from agent.cli.session import CommandFailed, Session
from agent.config.strict_yaml import Tree, documents_or_fault, plain
from agent.kinds.amounts import size
from agent.kinds.table import Column, Columns, Listing
from agent.model.exit_codes import CONFLICT, NOT_FOUND, USAGE
from agent.wire.kepd.v1 import image_pb2, pod_pb2

SERVICE = "kepd.v1.ImageService"
GONE_WRONG = frozenset({"failed", "cancelled", "refused"})


@click.command()
@click.argument("images", nargs=-1, required=True, metavar="REF…")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait for all pulls and show progress.")
@click.option("--policy", type=click.Choice(["Always", "IfNotPresent", "Never"]), help="Pull policy, as in a Pod.")
@click.option("--priority", type=int, default=0, help="Priority, as of a Pod.")
@click.pass_obj
def pull(session: Session, *, images: tuple[str, ...], wait: bool, policy: str | None, priority: int) -> None:
    """Pull images under the node's limit. Ctrl-C cancels."""
    request = image_pb2.PullImageRequest(images=images, policy=policy or "", priority=priority, detach=not wait)
    with connected(session) as daemon:
        outcomes = _follow(daemon, request, session)
    if not wait:
        click.echo("queued; kepctl get pulls -w shows them")
        return
    for outcome in outcomes:
        click.echo(f"{outcome.image}: {_outcome_line(outcome)}")
    failed = [outcome for outcome in outcomes if outcome.result in GONE_WRONG]
    if failed:
        raise CommandFailed(f"{len(failed)} of {len(images)} not pulled")


def _follow(daemon: Client, request: image_pb2.PullImageRequest, session: Session) -> list[image_pb2.PullOutcome]:
    from agent.cli.waits.progress import ProgressLines

    outcomes: list[image_pb2.PullOutcome] = []
    with ProgressLines(session) as progress:
        for answer in daemon.follow(f"{SERVICE}/PullImage", request, image_pb2.PullImageResponse):
            if answer.HasField("pull"):
                progress.show(answer.pull)
            if answer.HasField("outcome"):
                outcomes.append(answer.outcome)
    return outcomes


def _outcome_line(outcome: image_pb2.PullOutcome) -> str:
    if outcome.result in GONE_WRONG:
        return f"{outcome.result}: {outcome.reason}: {outcome.message}" if outcome.reason else outcome.result
    took = f" in {outcome.took_seconds:.1f} s" if outcome.took_seconds else ""
    waited = f", waited {outcome.waited_seconds:.1f} s" if outcome.waited_seconds >= 0.05 else ""
    return f"{outcome.result}{took}{waited}, {size(outcome.size_bytes)}"


@click.group(cls=KindGroup)
def cancel() -> None:
    """Cancel a pull."""


@cancel.command("pull")
@click.argument("pull_id", metavar="ID")
@click.pass_obj
def cancel_pull(session: Session, pull_id: str) -> None:
    """Cancel a pull, or the request of one pod, by its id from kepctl get pulls."""
    ask(session, f"{SERVICE}/CancelPull", image_pb2.CancelPullRequest(id=pull_id), image_pb2.CancelPullResponse)
    click.echo(f"{pull_id} cancelled")


@click.group("set", cls=KindGroup)
def set() -> None:  # noqa: A001  # the command is called so
    """Change limits until the daemon stops or reloads."""


@set.command("pull-limit")
@click.argument("limit", type=click.IntRange(0))
@click.option("--registry", default="", help="The limit of one registry instead of the node's.")
@click.pass_obj
def pull_limit(session: Session, limit: int, registry: str) -> None:
    """Set how many pulls may run at once; 0 = no limit."""
    request = image_pb2.SetPullLimitRequest(registry=registry, limit=limit)
    answer = ask(session, f"{SERVICE}/SetPullLimit", request, image_pb2.SetPullLimitResponse)
    for one in answer.limits:
        click.echo(f"{one.scope}: {one.limit or 'no limit'}, {one.running} running")


@click.command()
@click.argument("pod", metavar="POD")
@click.pass_obj
def retry(session: Session, pod: str) -> None:
    """Clear the back-off of a pod's images and containers, and retry at once."""
    with connected(session) as daemon:
        namespace, name = _known_or_given(daemon, pod)
        is_local = _retry_local(daemon, namespace, name)
        request = image_pb2.RetryPullsRequest(namespace=namespace, pod=name)
        try:
            forgotten = daemon.call(f"{SERVICE}/RetryPulls", request, image_pb2.RetryPullsResponse).forgotten
        except CommandFailed as error:
            # The images plane is off where only pods run.
            if not is_local or error.exit_code != CONFLICT:
                raise
            forgotten = 0
    if not forgotten and not is_local:
        raise CommandFailed(f"no image or container of {namespace}/{name} is in back-off", NOT_FOUND)
    click.echo(f"{forgotten} back-offs cleared" + (f"; {name} is retried at once" if is_local else ""))


def _known_or_given(daemon: Client, pod: str) -> tuple[str, str]:
    """A short name means a pod of this node; those of a kubelet, which only the images plane knows, have full ones."""
    try:
        return find_pod(daemon, pod, elsewhere=False)
    except CommandFailed as error:
        if error.exit_code not in (NOT_FOUND, CONFLICT):
            raise
        return given_pod(daemon, pod)


def _retry_local(daemon: Client, namespace: str, name: str) -> bool:
    """Of a pod that runs from a manifest of this node; others are their kubelet's."""
    request = pod_pb2.ClearBackoffRequest(namespace=namespace, name=name)
    try:
        daemon.call("kepd.v1.PodService/ClearBackoff", request, pod_pb2.ClearBackoffResponse)
    except CommandFailed as error:
        if error.exit_code in (NOT_FOUND, CONFLICT):
            return False
        raise
    return True


COLLECTED: Columns[image_pb2.CollectedImage] = (
    Column("IMAGE", lambda one: one.image.names[0] if one.image.names else one.image.id[:19]),
    Column("SIZE", lambda one: size(one.image.size_bytes)),
    Column("REMOVED", lambda one: "yes" if one.removed else "no"),
    Column("REASON", lambda one: one.error or one.reason),
)


@click.command()
@click.option("--dry-run", "mode", flag_value="dry-run", help="Only show what would be removed, and why.")
@click.option("--now", "mode", flag_value="now", help="Remove the images.")
@output_option()
@click.pass_obj
def gc(session: Session, mode: str | None, output: str) -> None:
    """Remove unused images, or show which would be removed."""
    if mode is None:
        raise click.UsageError("expected --dry-run or --now")
    request = image_pb2.CollectGarbageRequest(dry_run=mode == "dry-run")
    answer = ask(session, f"{SERVICE}/CollectGarbage", request, image_pb2.CollectGarbageResponse)
    freed = f"would free {size(answer.freed_bytes)}" if request.dry_run else f"{size(answer.freed_bytes)} freed"
    note = f"the image filesystem is {answer.usage_percent} % full; {freed}"
    listing = Listing(
        "CollectedImage", answer.images, COLLECTED, lambda one: f"image/{one.image.id}", "nothing to collect", (note,)
    )
    print_listing(listing, output, session)


@click.command()
@click.argument("images", nargs=-1, metavar="[REF…]")
@click.option(
    "-f", "--file", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A YAML list of names, or of {image, pin, unpack}.",
)  # fmt: skip
@click.pass_obj
def prefetch(session: Session, images: tuple[str, ...], source: Path | None) -> None:
    """Pull images in the background, before they are needed."""
    if source is None and not images:
        raise CommandFailed("no image is named; expected names, or -f with a list of them", USAGE)
    wanted = [image_pb2.PrefetchImage(image=one) for one in images]
    wanted += [_prefetch_image(item) for item in _prefetch_items(source)] if source is not None else []
    request = image_pb2.PrefetchRequest(images=wanted)
    answer = ask(session, f"{SERVICE}/Prefetch", request, image_pb2.PrefetchResponse)
    skipped = f", {answer.skipped} skipped" if answer.skipped else ""
    click.echo(f"{answer.queued} queued, {answer.present} present{skipped}")
    for one in answer.images:
        if one.why:
            click.echo(f"{one.image}: {one.state}: {one.why}")


def _prefetch_items(source: Path) -> list[Tree]:
    documents, findings = documents_or_fault(source.read_bytes(), str(source))
    if findings:
        raise CommandFailed("\n".join(map(str, findings)), USAGE)
    if len(documents) != 1 or documents[0].kind != "list":
        raise CommandFailed(f"{source}: is not a list of images", USAGE)
    return documents[0].items


def _prefetch_image(tree: Tree) -> image_pb2.PrefetchImage:
    if isinstance(tree.scalar, str):
        return image_pb2.PrefetchImage(image=tree.scalar)
    fields = {name: value.scalar for name, value in tree.entries.items()}
    image, pin, unpack = fields.get("image"), fields.get("pin"), fields.get("unpack")
    is_known = not fields.keys() - {"image", "pin", "unpack"}
    if not (is_known and isinstance(image, str) and pin in (None, True, False) and unpack in (None, True, False)):
        raise CommandFailed(
            f"{tree.where}: {plain(tree)} is neither an image name nor a map of image, pin and unpack", USAGE
        )
    return image_pb2.PrefetchImage(image=image, pin=bool(pin), content_only=unpack is False)

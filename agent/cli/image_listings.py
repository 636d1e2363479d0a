# SPDX-License-Identifier: Apache-2.0
"""What `kepctl get images`, `pulls` and `mirrors` list, and how sizes, rates and stages are written."""

from agent.cli.client import Client
from agent.cli.kinds import Named
from agent.cli.plain_rows import age
from agent.cli.table import Column, Columns, Listing
from agent.wire.kepd.v1 import image_pb2

SERVICE = "kepd.v1.ImageService"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    value = float(count)
    for unit in UNITS:
        if value < 1024 or unit == UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def rate(bytes_per_second: float) -> str:
    return f"{size(bytes_per_second)}/s" if bytes_per_second > 0 else ""


def span(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60:02d}s"


def stage_line(pull: image_pb2.Pull) -> str:
    if pull.stage == "queued":
        return f"waiting at {pull.position}: {pull.wait_text}" if pull.position else "waiting"
    if pull.stage == "unpacking" and pull.layers:
        return f"unpacking, {pull.layers_unpacked} of {len(pull.layers)} layers"
    if pull.stage == "lazy":
        return "lazy: bytes unknown, layers are fetched when they are read"
    if pull.stage == "failed":
        return f"failed: {pull.error}"
    if pull.stage == "skipped":
        return f"not fetched ahead: {pull.wait_text}"
    return pull.stage


IMAGE_COLUMNS: Columns[image_pb2.Image] = (
    Column("IMAGE", lambda one: one.names[0] if one.names else "<none>"),
    Column("ID", lambda one: one.id.removeprefix("sha256:")[:13]),
    Column("SIZE", lambda one: size(one.size_bytes)),
    Column("LAST USED", lambda one: age(one.last_used) or "never"),
    Column("USED BY", lambda one: ", ".join(one.used_by)),
    Column("PINNED", lambda one: "kepd" if one.is_pinned_by_kepd else "yes" if one.is_pinned else ""),
    Column("KEPT", lambda one: one.kept_because or "may go", wide=True),
    Column("SOURCE", lambda one: one.source, wide=True),
    Column("SEEN", lambda one: age(one.first_seen), wide=True),
)

PULL_COLUMNS: Columns[image_pb2.Pull] = (
    Column("ID", lambda pull: pull.id),
    Column("IMAGE", lambda pull: pull.image),
    Column("STAGE", stage_line),
    Column("DONE", lambda pull: f"{pull.percent}%" if pull.total_bytes else ""),
    Column("RATE", lambda pull: rate(pull.rate_bytes_per_second)),
    Column("FOR", lambda pull: ", ".join(sorted({f"{one.namespace}/{one.pod}" for one in pull.requesters if one.pod}))),
    Column("AGE", lambda pull: age(pull.queued_at)),
    Column(
        "SIZE",
        lambda pull: size(pull.total_bytes or pull.size_bytes) if pull.total_bytes or pull.size_bytes else "",
        wide=True,
    ),
    Column("CLASS", lambda pull: pull.pull_class, wide=True),
    Column("REGISTRY", lambda pull: pull.registry, wide=True),
)

MIRROR_COLUMNS: Columns[image_pb2.Mirror] = (
    Column("REGISTRY", lambda one: one.registry),
    Column("URL", lambda one: one.url),
    Column("CAPABILITIES", lambda one: ",".join(one.capabilities)),
    Column("SOURCE", lambda one: one.source),
    Column("PROBLEM", lambda one: one.problem),
)


def list_images(daemon: Client) -> Listing[image_pb2.Image]:
    answer = daemon.call(f"{SERVICE}/ListImages", image_pb2.ListImagesRequest(), image_pb2.ListImagesResponse)
    return Listing(
        "Image", answer.images, IMAGE_COLUMNS, lambda one: f"image/{one.id}", "no images",
        named=lambda one: Named("", one.id, one.names[0] if one.names else ""),
    )  # fmt: skip


def list_pulls(daemon: Client) -> Listing[image_pb2.Pull]:
    answer = daemon.call(f"{SERVICE}/ListPulls", image_pb2.ListPullsRequest(), image_pb2.ListPullsResponse)
    limits = [f"{one.scope}: {one.running} of {one.limit or 'any number'} running" for one in answer.limits]
    return Listing("Pull", answer.pulls, PULL_COLUMNS, pull_name, "no pulls", limits)


def pull_name(pull: image_pb2.Pull) -> str:
    return f"pull/{pull.id}"


def list_mirrors(daemon: Client) -> Listing[image_pb2.Mirror]:
    """The chain of hosts per registry, as containerd's configuration has it."""
    answer = daemon.call(f"{SERVICE}/ListMirrors", image_pb2.ListMirrorsRequest(), image_pb2.ListMirrorsResponse)
    return Listing("Mirror", answer.mirrors, MIRROR_COLUMNS, lambda one: f"mirror/{one.registry}", "no mirrors")

# SPDX-License-Identifier: Apache-2.0
"""Images of the node, whose they are and what keeps them."""

from agent.kinds.ages import age
from agent.kinds.amounts import size
from agent.kinds.registry import Named
from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import image_pb2 as pb

HUB = ("docker.io/library/", "docker.io/")


def _tags(one: pb.Image) -> list[str]:
    """All its names; a digest only where it has nothing else."""
    return [name for name in one.names if "@" not in name] or list(one.names)


def _called(one: pb.Image) -> dict[str, None]:
    """Also as people write it: without the registry that is the default, and without its default tag."""
    found = dict.fromkeys(_tags(one))
    for name in (*_tags(one), *one.names):
        begins = next((hub for hub in HUB if name.startswith(hub)), "")
        short = name.removeprefix(begins)
        found |= dict.fromkeys((name, short, name.removesuffix(":latest"), short.removesuffix(":latest")))
    return found


COLUMNS: Columns[pb.Image] = (
    Column("IMAGE", lambda one: ", ".join(_tags(one)) or "<none>"),
    Column("ID", lambda one: one.id.removeprefix("sha256:")[:13]),
    Column("SIZE", lambda one: size(one.size_bytes)),
    Column("LAST USED", lambda one: age(one.last_used) or "never"),
    Column("USED BY", lambda one: ", ".join(one.used_by)),
    Column("PINNED", lambda one: "kepd" if one.is_pinned_by_kepd else "yes" if one.is_pinned else ""),
    Column("KEPT", lambda one: one.kept_because or "may go", wide=True),
    Column("SOURCE", lambda one: one.source, wide=True),
    Column("SEEN", lambda one: age(one.first_seen), wide=True),
)


def _listing(answer: pb.ListImagesResponse) -> AnyListing:
    return Listing(
        "Image", answer.images, COLUMNS, lambda one: f"image/{one.id}", "no images",
        named=lambda one: Named("", one.id, " ".join(_called(one))),
    )  # fmt: skip


SHOWN = shown_by("kepd.v1.ImageService/ListImages", pb.ListImagesRequest(), pb.ListImagesResponse, _listing)

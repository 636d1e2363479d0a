# SPDX-License-Identifier: Apache-2.0
"""Images of the node, whose they are and what keeps them."""

from agent.kinds.ages import age
from agent.kinds.amounts import size
from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("images", "image", ("im", "img"), has_namespace=False)

HUB = ("docker.io/library/", "docker.io/")


def _tags(image: Object) -> list[str]:
    """All its names; a digest only where it has nothing else."""
    names: list[str] = image["status"]["names"]
    return [name for name in names if "@" not in name] or names


def _called(image: Object) -> dict[str, None]:
    """Also as people write it: without the registry that is the default, and without its default tag."""
    called = dict.fromkeys(_tags(image))
    for name in (*_tags(image), *image["status"]["names"]):
        begins = next((hub for hub in HUB if name.startswith(hub)), "")
        short = name.removeprefix(begins)
        called |= dict.fromkeys((name, short, name.removesuffix(":latest"), short.removesuffix(":latest")))
    return called


def _pinned(image: Object) -> str:
    return "kepd" if image["status"]["isPinnedByKepd"] else "yes" if image["status"]["isPinned"] else ""


COLUMNS: Columns[Object] = (
    Column("IMAGE", lambda image: ", ".join(_tags(image)) or "<none>"),
    Column("ID", lambda image: image["status"]["id"].removeprefix("sha256:")[:13]),
    Column("SIZE", lambda image: size(image["status"]["sizeBytes"])),
    Column("LAST USED", lambda image: age(image["status"].get("lastUsed", "")) or "never"),
    Column("USED BY", lambda image: ", ".join(image["status"]["usedBy"])),
    Column("PINNED", _pinned),
    Column("KEPT", lambda image: image["status"]["keptBecause"] or "may go", wide=True),
    Column("SOURCE", lambda image: image["status"]["source"], wide=True),
    Column("SEEN", lambda image: age(image["status"].get("firstSeen", "")), wide=True),
)


SHOWN = own_kind("ImageService", "Image", "no images", COLUMNS, short=lambda image: " ".join(_called(image)))

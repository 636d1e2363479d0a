# SPDX-License-Identifier: Apache-2.0
"""`--sort-by PATH`: a list in the order of what a path of each object leads to."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from agent.cli.objects.jsonpath import read_path, shown
from agent.cli.session import CommandFailed
from agent.kinds.table import Listing
from agent.model.exit_codes import USAGE

Item = TypeVar("Item", bound=Message)
Place = tuple[int, float, str]
UNSET: Place = (0, 0.0, "")


def ordered_by(listing: Listing[Item], path: str) -> Listing[Item]:
    """What has no such value comes first, then numbers, then words; equal ones stay as they were."""
    items = list(listing.items)
    objects: Sequence[object] = listing.objects(items) if listing.objects else [MessageToDict(one) for one in items]
    found = [read_path(path.removeprefix("{").removesuffix("}"), one) for one in objects]
    if items and not any(found):
        text = f'--sort-by: "{path}" leads to nothing in any of the {len(items)} objects; -o json shows their paths'
        raise CommandFailed(text, USAGE)
    order = sorted(range(len(items)), key=lambda index: _place(found[index]))
    return msgspec.structs.replace(listing, items=[items[index] for index in order])


def _place(values: Sequence[object]) -> Place:
    if not values or values[0] is None:
        return UNSET
    first = values[0]
    if isinstance(first, int | float):
        return (1, float(first), "")
    return (2, 0.0, shown(first))

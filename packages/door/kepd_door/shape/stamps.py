# SPDX-License-Identifier: Apache-2.0
"""What a server of Kubernetes writes into an object that clients write, and keeps over their changes: a name of its own
where only the beginning is given, a uid, when it was made, and how often what it asks for was changed."""

import random
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from kepd_door.shape.dressing import ADDED

Object = dict[str, Any]
# Letters and digits that make no words and cannot be taken for each other.
LETTERS, LONGEST_STEM = "bcdfghjklmnpqrstvwxz2456789", 58


def has_stem(metadata: Object) -> bool:
    stem = metadata.get("generateName")
    return isinstance(stem, str) and bool(stem)


def new(made: Object) -> Object:
    """Of an object without a name each time another."""
    metadata = made["metadata"]
    if not metadata.get("name"):
        end = "".join(random.choices(LETTERS, k=5))  # noqa: S311 - it has to be free, not secret
        metadata = {**metadata, "name": f"{metadata['generateName'][:LONGEST_STEM]}{end}"}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    stamps: Object = {"uid": str(uuid4()), "creationTimestamp": now} | ({"generation": 1} if "spec" in made else {})
    return {**made, "metadata": {**metadata, **stamps}}


def changed(made: Object, before: Object) -> Object:
    """What only a server writes stays as the manifest has it, such as a uid of its author."""
    own = {name: value for name, value in (before.get("metadata") or {}).items() if name in ADDED}
    if made.get("spec") != before.get("spec") and isinstance(count := own.get("generation"), int):
        own["generation"] = count + 1
    kept = {"status": before["status"]} if "status" in before else {}
    return {**made, **kept, "metadata": {**made["metadata"], **own}}

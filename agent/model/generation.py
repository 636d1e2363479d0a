# SPDX-License-Identifier: Apache-2.0
"""Which state of `spec` a status is about, so that whoever waits for a change sees whether it has been looked at.

A manifest that was written by the API has a number that grows with each change, as an API server counts. For any other
a number is made of what `spec` says: it is another after any change, and does not grow.
"""

import hashlib
from collections.abc import Mapping

import msgspec

MOST_BITS = 53
"""Programs that read JSON know no larger whole numbers."""


def spec_generation(spec: object) -> int:
    digest = hashlib.sha256(msgspec.json.encode(spec, order="deterministic")).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - MOST_BITS)


def generation_of(made: object) -> int:
    """Of a manifest."""
    given = made if isinstance(made, Mapping) else {}
    metadata = given.get("metadata")
    counted = metadata.get("generation") if isinstance(metadata, Mapping) else None
    return counted if isinstance(counted, int) and counted > 0 else spec_generation(given.get("spec"))

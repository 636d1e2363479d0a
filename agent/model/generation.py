# SPDX-License-Identifier: Apache-2.0
"""A number for what a manifest says, in the place of the one that an API server counts.

It is another after any change of `spec`, so that whoever waits for a change sees whether its status is about that one.
It does not grow.
"""

import hashlib

import msgspec

MOST_BITS = 53
"""Programs that read JSON know no larger whole numbers."""


def spec_generation(spec: object) -> int:
    digest = hashlib.sha256(msgspec.json.encode(spec, order="deterministic")).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - MOST_BITS)

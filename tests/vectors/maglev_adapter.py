# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of maglev.json: endpoints in, the owner of each slot out. SVN-40.

These are not recorded: they are what kepd made of them when it first did. A version that makes anything else of them
disagrees with the nodes that run an older one. `python -m tests.vectors.maglev_adapter` prints the file.
"""

import json
from hashlib import sha256
from typing import Any

from agent.services.routes.maglev import maglev_table

CASES: dict[str, tuple[list[str], list[int]]] = {
    "nobody": ([], []),
    "alone": (["10.1.0.1:8080"], []),
    "three": ([f"10.1.0.{n}:8080" for n in range(1, 4)], []),
    "in-any-order": ([f"10.1.0.{n}:8080" for n in (3, 1, 2)], []),
    "two-of-three": ([f"10.1.0.{n}:8080" for n in (1, 3)], []),
    "other-port": ([f"10.1.0.{n}:8081" for n in range(1, 4)], []),
    "ipv6": ([f"[fd00:1::{n:x}]:8080" for n in range(1, 12)], []),
    "twelve": ([f"10.1.0.{n}:80" for n in range(1, 13)], []),
    "thirteen": ([f"10.1.0.{n}:80" for n in range(1, 14)], []),
    "fifty": ([f"10.1.0.{n}:80" for n in range(1, 51)], []),
    "fifty-one": ([f"10.1.0.{n}:80" for n in range(1, 52)], []),
    "thousand": ([f"10.1.{n // 250}.{n % 250}:80" for n in range(1000)], []),
    "weighed": ([f"10.1.0.{n}:8080" for n in range(1, 4)], [5, 2, 1]),
    "weight-of-none": ([f"10.1.0.{n}:8080" for n in range(1, 4)], [0, 1, 1]),
}
SHOWN = 24


def made(endpoints: list[str], weights: list[int]) -> dict[str, Any]:
    """The first owners to read, and all of them as a digest."""
    table = maglev_table(tuple(endpoints), tuple(weights))
    owners = [endpoints[owner] for owner in table]
    return {"slots": len(table), "first": owners[:SHOWN], "sha256": sha256("\n".join(owners).encode()).hexdigest()}


def check(_kind: str, given: dict[str, Any], expect: dict[str, Any]) -> None:
    assert made(given["endpoints"], given["weights"]) == expect


def document() -> dict[str, Any]:
    cases = [
        {"id": name, "input": {"endpoints": endpoints, "weights": weights}, "expect": made(endpoints, weights)}
        for name, (endpoints, weights) in CASES.items()
    ]
    return {"schema": "kepd/maglev/v1", "cases": cases}


if __name__ == "__main__":
    print(json.dumps(document(), indent=1))

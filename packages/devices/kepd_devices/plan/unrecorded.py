# SPDX-License-Identifier: Apache-2.0
"""Claims of which a running container tells and no record does: somebody lost the records.

Which devices those containers have is not known any more, so none is given as long as they run.
"""

from collections.abc import Collection, Mapping

import msgspec

from agent.model.finding import printable


class Unrecorded(msgspec.Struct, frozen=True, order=True):
    """`claim` is its namespace and name."""

    claim: str
    uid: str
    pod: str

    def __str__(self) -> str:
        return (
            f"pod {self.pod} runs with devices of claim {printable(self.claim)}, of which no record is left;"
            f" no device is given until the pod ends, or `kepctl release claim {printable(self.uid)} --force`"
        )


def note_of(claim: str, uid: str) -> str:
    """As the annotation of a container has it."""
    return f"{claim}={uid}"


def unrecorded(noted: Mapping[str, Collection[str]], known: Collection[str]) -> list[Unrecorded]:
    """`noted` are annotations by pod, `known` the uids of claims that may be passed over. What does not read as an
    annotation of kepd is a claim too: something is held."""
    found: set[Unrecorded] = set()
    for pod, notes in noted.items():
        for part in (part for note in notes for part in note.split(",")):
            claim, _, uid = part.rpartition("=")
            if uid not in known:
                found.add(Unrecorded(claim, uid, pod))
    return sorted(found)

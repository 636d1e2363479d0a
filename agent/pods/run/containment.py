# SPDX-License-Identifier: Apache-2.0
"""Keeps a fault of one pod with that pod: whatever loops over pods does its work for each within `contained`."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

log = structlog.get_logger(plane="pods")

Kinds = tuple[type[Exception], ...]


@contextmanager
def contained(pod: str, doing: str, *, but: Kinds = ()) -> Iterator[list[Exception]]:
    """Log what fails inside and go on after the block; the list has it then. `but` is raised all the same."""
    faults: list[Exception] = []
    try:
        yield faults
    except but:
        raise
    except Exception as error:  # a fault of one pod ends no other's work
        faults.append(error)
        log.error("pod_fault_contained", pod=pod, doing=doing, error=repr(error), exc_info=error)


class Faults:
    """Pods for which kepd failed since the last look. What they have is unclear, so nothing begins in their place."""

    def __init__(self) -> None:
        # By uid.
        self.names: dict[str, str] = {}

    def concern(self, uid: str, name: str) -> bool:
        return uid in self.names or name in self.names.values()

    @contextmanager
    def contained(self, uid: str, name: str, doing: str, *, but: Kinds = ()) -> Iterator[None]:
        with contained(name, doing, but=but) as faults:
            yield
        if faults:
            self.names[uid] = name

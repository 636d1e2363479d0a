# SPDX-License-Identifier: Apache-2.0
"""Explains why an endpoint gets traffic of a service port, or gets none.

Never: selects, or looks at other endpoints than the one in question.
"""

from collections.abc import Iterator
from typing import NamedTuple

from agent.model.services.service import Backend
from agent.services.routes.frontends import PortPlan
from agent.services.routes.maglev import SIZES, slot_count
from agent.services.routes.selection import ANYWHERE, Place, Selection, is_local


class SelectionReason(NamedTuple):
    """A half-sentence."""

    text: str


def state_of(backend: Backend) -> str:
    if backend.is_ready:
        return "ready" if not backend.is_terminating else "ready, terminating"
    if backend.is_terminating:
        return "terminating, serving" if backend.is_serving else "terminating"
    return "not ready"


class Reasons:
    def __init__(self, selection: Selection, place: Place) -> None:
        self._selection = selection
        self._place = place
        self._cluster = frozenset(one.key for one in selection.cluster or ())
        self._local = frozenset(one.key for one in selection.local or ())

    def is_used(self, backend: Backend) -> bool:
        """By traffic that may go to any node."""
        return backend.key in self._cluster

    def is_used_locally(self, backend: Backend) -> bool:
        """By traffic that has to stay on this node."""
        return backend.key in self._local

    def of(self, backend: Backend) -> SelectionReason:
        """About the cluster list; if that is not in use, about the local one."""
        if self._selection.cluster is None:
            return self._local_reason(backend)
        if self.is_used(backend):
            return self._kept()
        if not backend.is_ready and not self._selection.last_resort:
            return SelectionReason(f"it is {state_of(backend)}, and others are ready")
        if not backend.is_ready:
            return SelectionReason(f"it is {state_of(backend)}: only endpoints that terminate but still serve are used")
        return self._passed_over(backend)

    def _kept(self) -> SelectionReason:
        if self._selection.last_resort == "unready":
            return SelectionReason("no endpoint is ready, and its Service uses all of them then")
        if self._selection.last_resort:
            return SelectionReason("no endpoint is ready, so terminating ones that still serve are used")
        match self._selection.mode:
            case "PreferSameNode":
                return SelectionReason("its hint names this node")
            case "PreferSameZone":
                return SelectionReason("its hint names this zone")
            case "Fallback":
                level = self._selection.level
                shared = f"it shares {level} with this node" if level != ANYWHERE else "no key before * matches"
                return SelectionReason(shared)
        return SelectionReason("it is ready")

    def _passed_over(self, backend: Backend) -> SelectionReason:
        match self._selection.mode:
            case "PreferSameNode":
                return SelectionReason(f"its hint names other nodes ({', '.join(backend.nodes)})")
            case "PreferSameZone":
                here = self._place.zone
                return SelectionReason(f"its hint names other zones ({', '.join(backend.zones)}), this is {here}")
        level = self._selection.level
        where = f"an endpoint shares {level} with this node" if level else "no key matches"
        return SelectionReason(f"{where}; it does not")

    def _local_reason(self, backend: Backend) -> SelectionReason:
        if self.is_used_locally(backend):
            return SelectionReason("it is on this node")
        if not is_local(backend, self._place):
            return SelectionReason(f"it is on node {backend.node or '(none)'}, the policy is Local")
        return SelectionReason(f"it is here, but {state_of(backend)}")


def explain_hints(selection: Selection, place: Place) -> Iterator[str]:
    """Why hints decide, or why they do not although there are some, or would not if there were."""
    if selection.mode in ("PreferSameNode", "PreferSameZone"):
        kind = selection.mode.removeprefix("PreferSame").lower()
        yield f"{selection.mode}: every ready endpoint has such a hint, and one names this {kind}"
    elif selection.mode == "Fallback":
        yield "hints do not count: the Service has topology keys"
    elif selection.cluster is None:
        yield "hints do not count: traffic stays on this node"
    for one in selection.ignored:
        own = place.zone if one.kind == "zone" else place.node
        if one.missing:
            yield f"{one.kind} hints are ignored: {one.missing} ready endpoints have none, for instance {one.example}"
        elif not own:
            yield f"{one.kind} hints are ignored: this node has no {one.kind}"
        else:
            yield f"{one.kind} hints are ignored: none names this {one.kind} ({own})"


def explain_hashing(port: PortPlan) -> Iterator[str]:
    """Of how many slots, how even, and what makes nodes differ."""
    cluster = port.selection.cluster or ()
    if not port.hashing or not cluster:
        return
    what = "addresses and ports" if port.hashing == "flow" else "the client's address"
    slots = slot_count(len(cluster))
    most = next(most for most, size in SIZES if size == slots)
    size = f"{slots} slots, up to {most} endpoints; more are hashed anew"
    yield f"chosen by a hash of {what}, alike on every node: {size}"
    if port.selection.mode:
        yield f"nodes may choose differently: {port.selection.mode} gives them different endpoints"

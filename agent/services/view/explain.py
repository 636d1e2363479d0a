# SPDX-License-Identifier: Apache-2.0
"""Explains why an endpoint gets traffic of a service port, or gets none.

Owns: the first rule that decided about each endpoint, in words; and which endpoint keeps the others from being chosen
by hints.
Never: selects; it gets the selection that was programmed and says what led to it.
Source of behaviour: SEL-24.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agent.model.service import Backend
from agent.services.routes.selection import Place, Selection, is_local

__all__ = ["Reason", "explain_backend", "explain_hints", "state_of"]


class Reason(NamedTuple):
    """A rule of docs/rules/ and a half-sentence."""

    rule: str
    text: str


def state_of(backend: Backend) -> str:
    """Its conditions in a word."""
    if backend.is_ready:
        return "ready" if not backend.is_terminating else "ready, terminating"
    if backend.is_terminating:
        return "terminating, serving" if backend.is_serving else "terminating"
    return "not ready"


def explain_backend(backend: Backend, backends: Sequence[Backend], selection: Selection, place: Place) -> Reason:
    """About the cluster list; if that is not in use, about the local one."""
    if selection.cluster is None:
        return _local_reason(backend, selection, place)
    if backend in selection.cluster:
        return _kept(backend, selection)
    if not backend.is_ready:
        if any(one.is_ready for one in backends):
            return Reason("SEL-3", f"it is {state_of(backend)}, and others are ready")
        return Reason("SEL-4", f"it is {state_of(backend)}: only endpoints that terminate but still serve are used")
    match selection.mode:
        case "PreferSameNode":
            return Reason("SEL-2", f"its hint names other nodes ({', '.join(backend.nodes)})")
        case "PreferSameZone":
            return Reason("SEL-2", f"its hint names other zones ({', '.join(backend.zones)}), this is {place.zone}")
        case "Fallback":
            where = f"an endpoint shares {selection.level} with this node" if selection.level else "no key matches"
            return Reason("SEL-20", f"{where}; it does not")
    return Reason("SEL-3", "it is not in the list")


def _kept(backend: Backend, selection: Selection) -> Reason:
    if not backend.is_ready:
        return Reason("SEL-4", "no endpoint is ready, so terminating ones that still serve are used")
    match selection.mode:
        case "PreferSameNode":
            return Reason("SEL-2", "its hint names this node")
        case "PreferSameZone":
            return Reason("SEL-2", "its hint names this zone")
        case "Fallback":
            return Reason("SEL-20", f"it shares {selection.level} with this node")
    return Reason("SEL-3", "it is ready")


def _local_reason(backend: Backend, selection: Selection, place: Place) -> Reason:
    if backend in (selection.local or ()):
        return Reason("SEL-6", "it is on this node")
    if not is_local(backend, place):
        return Reason("SEL-6", f"it is on node {backend.node or '(none)'}, the policy is Local")
    return Reason("SEL-6", f"it is here, but {state_of(backend)}")


def explain_hints(backends: Sequence[Backend], selection: Selection, place: Place) -> Iterator[str]:
    """Why hints decide, or why they do not although there are some."""
    ready = [one for one in backends if one.is_ready]
    if selection.mode in ("PreferSameNode", "PreferSameZone"):
        kind = selection.mode.removeprefix("PreferSame").lower()
        yield f"{selection.mode}: every ready endpoint has such a hint, and one names this {kind}"
        return
    for kind, own, hints in (
        ("zone", place.zone, [one.zones for one in ready]),
        ("node", place.node, [one.nodes for one in ready]),
    ):
        if not any(hints):
            continue
        missing = [one.key for one, found in zip(ready, hints, strict=True) if not found]
        if missing:
            yield f"{kind} hints are ignored: {len(missing)} ready endpoints have none, for instance {missing[0]}"
        elif not own:
            yield f"{kind} hints are ignored: this node has no {kind}"
        elif not any(own in found for found in hints):
            yield f"{kind} hints are ignored: none names this {kind} ({own})"

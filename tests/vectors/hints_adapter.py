# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of hints.json against agent.topology and compares what comes out.

Owns: the translation between the JSON of the vectors and the value types, for all seven kinds.
Never: computes anything that a case expects. `upstreamVaries` marks cases for the reader; with `upstreamPerZone` the
expected outcome has to be among those upstream was seen to choose.
Rules of which only recorded cases are a test: TOP-13, TOP-15, TOP-16, TOP-19, TOP-25, TOP-26, TOP-29, TOP-30, TOP-38,
TOP-39, TOP-40, TOP-41, TOP-43, TOP-45,
TOP-1, TOP-2, TOP-6, TOP-7, TOP-46, TOP-53, NUM-1, NUM-2.
"""

import msgspec

from agent.model.nodes.node import Node
from agent.model.quantity import parse_quantity
from agent.topology.hints.assign_document import DISABLED, ENABLED, EventDocument, assign_document
from agent.topology.hints.by_cpu import Assignment, assign_hints, is_overloaded
from agent.topology.hints.capacity import ZoneCapacity, read_capacity, read_zone_quantities
from agent.topology.hints.distribution import distribute_hints
from agent.topology.hints.mode import choose_mode
from agent.topology.hints.slices import Endpoint, Hints, Slice, SliceLists
from agent.topology.hints.zones import plan_zones
from tests.services.routes.hint_choice import select_hinted
from tests.vectors.comparison import compare

KINDS = frozenset({"assign", "overload", "steps", "distribution", "mode", "proxy", "plan"})


def check(kind: str, given: dict, expect: dict) -> None:
    """Raises AssertionError with one line per difference."""
    possible = expect.get("upstreamPerZone")
    wanted = {name: value for name, value in expect.items() if name not in ("upstreamVaries", "upstreamPerZone")}
    actual = RUNNERS[kind](given)
    differences = list(compare(wanted, actual, "expect"))

    assert not differences, "\n".join(differences)
    assert possible is None or actual["perZone"] in possible, f"{actual['perZone']} is none of {possible}"


def _nodes(given: list[dict]) -> list[Node]:
    return [
        Node(
            name=node["name"],
            labels=node["labels"],
            ready=node["ready"],
            cpu=None if node["cpu"] is None else parse_quantity(node["cpu"]),
        )
        for node in given
    ]


def _endpoint(given: dict) -> Endpoint:
    hints = None
    if given.get("hints") is not None or given.get("nodeHints") is not None:
        hints = Hints(tuple(given.get("hints") or ()), tuple(given.get("nodeHints") or ()))
    return Endpoint(
        addresses=(given["addr"],), zone=given["zone"], node=given.get("node"), ready=given["ready"], hints=hints
    )


def _lists(given: dict) -> SliceLists:
    def read(name: str) -> tuple[Slice, ...]:
        return tuple(Slice(piece["name"], tuple(map(_endpoint, piece["endpoints"]))) for piece in given.get(name) or ())

    return SliceLists(read("toCreate"), read("toUpdate"), read("unchanged"))


def _event(event: EventDocument | None) -> dict | None:
    return None if event is None else {"type": event.type, "reason": event.reason}


class ServiceMemory:
    """TOP-5, TOP-28, TOP-31, TOP-33: what a control plane remembers of a Service between syncs; kepd computes anew."""

    def __init__(self) -> None:
        self.per_zone: dict[str, dict[str, int]] = {}
        self.is_active = False

    def take(self, family: str, assignment: Assignment) -> EventDocument | None:
        """TOP-21: every refusal is an event, a success only one that makes hints active."""
        was_active, self.is_active = self.is_active, assignment.is_active
        self.per_zone.pop(family, None)
        if assignment.per_zone is None:
            return DISABLED
        self.per_zone[family] = assignment.per_zone
        return None if was_active else ENABLED

    def drop(self, family: str) -> EventDocument | None:
        was_active, self.is_active = self.is_active, False
        self.per_zone.pop(family, None)
        return DISABLED if was_active else None

    def is_overloaded(self, capacity: ZoneCapacity | None) -> bool:
        return any(is_overloaded(counts, capacity) for counts in self.per_zone.values())


def _zone_hints(lists: SliceLists) -> dict:
    return {
        endpoint.address: None if endpoint.hints is None else list(endpoint.hints.zones)
        for piece in lists.all
        for endpoint in piece.endpoints
    }


def _sync_result(assignment: Assignment, event: EventDocument | None) -> dict:
    return {
        "active": assignment.is_active,
        "reason": assignment.refusal,
        "event": _event(event),
        "kept": [piece.name for piece in assignment.slices.unchanged],
        "rewritten": [piece.name for piece in assignment.slices.to_update],
        "hints": _zone_hints(assignment.slices),
        "perZone": assignment.per_zone,
    }


def _assign(given: dict) -> dict:
    capacity = read_capacity(_nodes(given["nodes"])).capacity
    document = assign_document(assign_hints(_lists(given), capacity), capacity)
    return msgspec.json.decode(msgspec.json.encode(document))


def _overload(given: dict) -> dict:
    return {"overloaded": is_overloaded(given["perZone"], read_capacity(_nodes(given["nodes"])).capacity)}


def _steps(given: dict) -> dict:
    capacity = None
    memory: dict[str, ServiceMemory] = {}
    results: list[dict] = []
    for step in given["ops"]:
        if step["op"] == "nodes":
            capacity = read_capacity(_nodes(step["nodes"])).capacity
            results.append({})
        elif step["op"] == "overloaded":
            results.append({"services": sorted(name for name, one in memory.items() if one.is_overloaded(capacity))})
        else:
            known = memory.setdefault(step["service"], ServiceMemory())
            if step["op"] == "drop":
                results.append({"event": _event(known.drop(step["addressType"]))})
            else:
                assignment = assign_hints(_lists(step), capacity)
                results.append(_sync_result(assignment, known.take(step["addressType"], assignment)))
    return {"results": results}


def _distribution(given: dict) -> dict:
    after = distribute_hints(_lists(given), given["trafficDistribution"])
    return {
        "rewritten": [piece.name for piece in after.to_update],
        "kept": [piece.name for piece in after.unchanged],
        "hints": {
            endpoint.address: None
            if endpoint.hints is None
            else {"zones": list(endpoint.hints.zones), "nodes": list(endpoint.hints.nodes)}
            for piece in after.all
            for endpoint in piece.endpoints
        },
    }


def _mode(given: dict) -> dict:
    return {"mode": choose_mode(given["annotations"] or {}, given["trafficDistribution"]).mode}


def _proxy(given: dict) -> dict:
    endpoints = [
        Endpoint(
            addresses=(endpoint["addr"],),
            ready=endpoint["ready"],
            serving=endpoint["serving"],
            terminating=endpoint["terminating"],
            hints=Hints(tuple(endpoint["zoneHints"] or ()), tuple(endpoint["nodeHints"] or ())),
        )
        for endpoint in given["endpoints"]
    ]
    found = select_hinted(endpoints, given["nodeName"], given["zone"])
    return {"endpoints": [one.address for one in found.cluster or ()]}


def _plan(given: dict) -> dict:
    zones = {zone: parse_quantity(cpu) for zone, cpu in given["zones"].items()}
    plan = plan_zones(read_zone_quantities(zones), given["from"], given["to"], placement=sorted(zones))
    return {
        "rows": [
            {
                "n": row.n,
                "active": row.refusal is None,
                "reason": row.refusal,
                "min": row.least,
                "minTotal": row.least_total,
                "placed": row.placed,
                "perZone": row.per_zone,
                "donated": row.donated,
            }
            for row in plan.rows
        ],
        "alwaysFrom": plan.always_from,
    }


RUNNERS = {
    "assign": _assign,
    "overload": _overload,
    "steps": _steps,
    "distribution": _distribution,
    "mode": _mode,
    "proxy": _proxy,
    "plan": _plan,
}

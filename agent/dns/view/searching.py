# SPDX-License-Identifier: Apache-2.0
"""Which questions a resolver asks for a name, in order, and what the process knows of each (DNS-101)."""

from collections.abc import Iterator, Sequence

from agent.dns.handover.status import Cached, Explanation
from agent.dns.wire.records_text import CODES
from agent.model.dns_report import NameStep

NDOTS = 5


def cluster_searches(namespace: str, zone: str) -> tuple[str, ...]:
    """Of a pod with ClusterFirst."""
    return f"{namespace}.svc.{zone}", f"svc.{zone}", zone


def questions(name: str, searches: Sequence[str] = (), ndots: int = NDOTS) -> tuple[str, ...]:
    """A dot at the end ends the search before it begins."""
    if name.endswith("."):
        return (name.rstrip("."),)
    searched = tuple(f"{name}.{one}" for one in searches)
    return (name, *searched) if name.count(".") >= ndots else (*searched, name)


def step_of(found: Explanation, type_: str) -> NameStep:
    mine = [one for one in found.cached if one.type in (type_.upper(), "all types")]
    code, records = (CODES.get(found.code, "") if found.code is not None else ""), found.records
    if found.code is None and mine and not mine[0].is_stale and mine[0].left_s > 0:
        code, records = CODES.get(mine[0].code, str(mine[0].code)), mine[0].records
    return NameStep(
        name=found.name, zone=found.zone, kind=found.kind, code=code, records=records,
        sentences=tuple(_sentences(found, mine)),
    )  # fmt: skip


def _sentences(found: Explanation, cached: Sequence[Cached]) -> Iterator[str]:
    if found.kind == "own":
        yield f"kepd answers {found.zone} itself, from the Services it knows"
        if found.target:
            yield f"the chain goes on at {found.target}, which is asked for elsewhere"
    for one in cached:
        if one.is_stale:
            yield f"an answer for {one.type} came {one.age_s:.0f} s ago and has ended; it is given if no server answers"
        elif one.left_s > 0:
            yield f"kept for {one.type}: {one.age_s:.0f} s old, {one.left_s:.0f} s left, given {one.hits} times"
    if found.kind != "own":
        asked = "; ".join(found.upstreams)
        yield f"asked for {found.zone} are: {asked}" if asked else f"there is no server for {found.zone}: SERVFAIL"

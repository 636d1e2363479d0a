# SPDX-License-Identifier: Apache-2.0
"""Which questions a resolver asks for a name, in order, and what the process knows of each."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from agent.model.services.dns_report import NameStep
from kepd_dns.handover.status import Cached, Explanation
from kepd_dns.wire.records_text import CODES

NDOTS, MOST_NDOTS = 5, 15


class Search(NamedTuple):
    """Of a pod: where its resolver looks, and how many dots make it ask for a name as it stands first."""

    domains: tuple[str, ...] = ()
    ndots: int = 1


def cluster_search(namespace: str, zone: str) -> Search:
    """Of a pod with ClusterFirst."""
    return Search((f"{namespace}.svc.{zone}", f"svc.{zone}", zone), NDOTS)


def search_of(domains: Iterable[str], options: Iterable[str]) -> Search:
    """By the lines of a resolver file; the last ndots counts."""
    found = [one.partition(":")[2] for one in options if one.startswith("ndots:")]
    ndots = int(found[-1]) if found and found[-1].isdigit() else 1
    return Search(tuple(domains), min(ndots, MOST_NDOTS))


def questions(name: str, search: Search) -> tuple[str, ...]:
    """A dot at the end ends the search before it begins."""
    if name.endswith("."):
        return (name.rstrip("."),)
    searched = tuple(f"{name}.{one}" for one in search.domains)
    return (name, *searched) if name.count(".") >= search.ndots else (*searched, name)


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
        if found.meant:
            yield f"no Service has this name; there is {found.meant}"
        if found.target:
            yield f"the chain goes on at {found.target}, which is asked for elsewhere"
    if found.kind == "denied":
        yield "no Service has a name with so many labels, and dns.searchShortcut denies those without asking"
    for one in cached:
        if one.is_stale:
            yield f"an answer for {one.type} came {one.age_s:.0f} s ago and has ended; it is given if no server answers"
        elif one.left_s > 0:
            yield f"kept for {one.type}: {one.age_s:.0f} s old, {one.left_s:.0f} s left, given {one.hits} times"
    if found.kind not in ("own", "denied"):
        asked = "; ".join(found.upstreams)
        yield f"asked for {found.zone} are: {asked}" if asked else f"there is no server for {found.zone}: SERVFAIL"

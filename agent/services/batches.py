# SPDX-License-Identifier: Apache-2.0
"""Divides Services into portions, each of which is one transaction.

Invariant: after each portion, and after a refusal or a death at any of them, every Service has what it had before or
what it should have, and nothing between.

Why it holds:

- A Service is in one portion, whole; so no packet meets half of a change.
- Services that hand a way in to each other are in one portion: the address would lead nowhere between two.
- What catches packets that no way in took is no part of it: a ruleset adds that after the last portion and takes it
  away before the first, so that no address is dropped whose Service is still to come.
- A refused portion is halved until a Service stands alone; whoever was refused before comes last.

Owns: the measure of a portion. Never: knows what a Service becomes in the kernel.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from agent.model.services.service import ServiceKey
from agent.services.routes.frontends import Claim, PortPlan, ServicePlan, claim_of
from agent.services.routes.maglev import slot_count

MOST_ELEMENTS = 16_384
"""While anybody listens for changes of rules, the kernel keeps 8 KiB for every element until the commit."""
MOST_SERVICES = 1000

Plans = Mapping[ServiceKey, ServicePlan | None]


def size_of(plan: ServicePlan | None) -> int:
    """About how many elements or rules it becomes."""
    if plan is None:
        return 0
    return sum([(2 + _slots(port)) * len(port.frontends) for port in plan.ports])


def _slots(port: PortPlan) -> int:
    count = len(port.selection.everyone)
    return max(count, slot_count(count)) if port.hashing else count


def portions(
    after: Plans, before: Plans, most: int, suspects: Collection[ServiceKey] = ()
) -> Iterator[list[ServiceKey]]:
    """At least one, even of nothing, of at most so many elements if a Service alone has not more. `before` has the
    plans that are in force, as far as there are."""
    portion: list[ServiceKey] = []
    elements = 0
    groups = _groups(after, before)
    for group in sorted(groups, key=lambda group: any(key in suspects for key in group)) if suspects else groups:
        size = sum(size_of(after[key]) + size_of(before.get(key)) for key in group)
        if portion and (elements + size > most or len(portion) + len(group) > MOST_SERVICES):
            yield portion
            portion, elements = [], 0
        portion += group
        elements += size
    yield portion


def halves(portion: Sequence[ServiceKey]) -> tuple[Sequence[ServiceKey], Sequence[ServiceKey]]:
    middle = len(portion) // 2
    return portion[:middle], portion[middle:]


def _groups(after: Plans, before: Plans) -> Iterable[list[ServiceKey]]:
    """Services that belong together, in the order in which they came."""
    leavers: dict[Claim, ServiceKey] = {}
    for key in after:
        if key in before:
            leavers.update(dict.fromkeys(_claims(before[key]), key))
    if not leavers:
        return [[key] for key in after]
    group_of: dict[ServiceKey, list[ServiceKey]] = {key: [key] for key in after}
    for key, plan in after.items():
        for claim in _claims(plan):
            other = leavers.get(claim, key)
            if group_of[other] is not group_of[key]:
                group_of[other] += group_of[key]
                for one in group_of[key]:
                    group_of[one] = group_of[other]
    return {id(group): group for group in group_of.values()}.values()


def _claims(plan: ServicePlan | None) -> Iterator[Claim]:
    for port in plan.ports if plan is not None else ():
        yield from map(claim_of, port.frontends)

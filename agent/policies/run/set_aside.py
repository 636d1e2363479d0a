# SPDX-License-Identifier: Apache-2.0
"""Policies that the kernel does not take, so that those of others come into force without them.

One that was in force stays so in its last version. Of one that never was, only its selection holds: its pods are
isolated, and do not start. It is tried again after pauses that grow, and at once when its manifest changes.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec
import structlog
from msgspec.structs import replace

from agent.model.clock import Clock
from agent.policies.manifest.bounds import size_of
from agent.policies.manifest.objects import DIRECTIONS, Policy

log = structlog.get_logger(plane="policies")

PAUSES_S = (60.0, 300.0, 900.0, 3600.0)
MOST_TRIES = 24
MOST_SIFT_S = 20.0
"""Then what is left is set aside untried; nothing else changes in the kernel meanwhile."""
Attempt = Callable[[Mapping[str, Policy]], Awaitable[str]]
"""Brings policies into force, or says why not."""


class Aside(msgspec.Struct, frozen=True):
    policy: Policy
    reason: str
    tries: int
    again_s: float


class SetAside:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asides: dict[str, Aside] = {}
        self._wanted: Mapping[str, Policy] = {}
        self._in_force: Mapping[str, Policy] = {}

    @property
    def again_s(self) -> float | None:
        """When one of them is to be tried again."""
        return min((one.again_s for one in self._asides.values()), default=None)

    def without(self, policies: Mapping[str, Policy]) -> Mapping[str, Policy]:
        """What is brought into force first. Forgets those that have changed or gone."""
        self._wanted = policies
        self._asides = {key: one for key, one in self._asides.items() if policies.get(key) == one.policy}
        return {**policies, **self._in_place_of(self._asides)} if self._asides else policies

    def due(self) -> list[str]:
        return [key for key, one in self._asides.items() if one.again_s <= self._clock.now_s()]

    def newcomers(self, policies: Mapping[str, Policy]) -> list[str]:
        """Those that are not in force; the smallest first, as most of them are good."""
        found = (key for key, one in policies.items() if self._in_force.get(key) != one and key not in self._asides)
        return sorted(found, key=lambda key: size_of(policies[key]).total())

    def are_in_force(self, given: Mapping[str, Policy]) -> None:
        """The kernel has them; what stands for one that is set aside is none."""
        before, wanted = self._in_force, self._wanted
        self._in_force = {key: one for key, one in given.items() if one in (wanted.get(key), before.get(key))}

    def why(self, keys: Iterable[str]) -> str:
        """Why a pod that these policies select may not start."""
        lacking = [key for key in keys if key in self._asides and key not in self._in_force]
        return (
            f"the kernel does not take network policy {lacking[0]}: {self._asides[lacking[0]].reason}"
            if lacking
            else ""
        )

    def sentences(self) -> Mapping[str, str]:
        """By policy."""
        left = {True: "its last version stays in force", False: "its pods are isolated, and new ones wait"}
        return {
            key: f"is set aside: {one.reason}; {left[key in self._in_force]}; kepd tries it again within an hour"
            for key, one in self._asides.items()
        }

    async def sift(self, candidates: Sequence[str], attempt: Attempt, reason: str) -> str:
        """Bring all into force but what the kernel does not take of the candidates, which it did not take together, for
        that reason; the answer says what is in the way of the rest, too."""
        wanted, until_s, tries = self._wanted, self._clock.now_s() + MOST_SIFT_S, 0
        good: Mapping[str, Policy] = {**self.without(wanted), **self._in_place_of(candidates)}
        if failed := await attempt(good):
            return failed
        parts = _halves(candidates)
        while parts:
            part = parts.pop(0)
            if tries == MOST_TRIES or self._clock.now_s() > until_s:
                self._put(part, reason)
                continue
            more, tries = {**good, **{key: wanted[key] for key in part}}, tries + 1
            failed = await attempt(more)
            if not failed:
                good = more
                self._asides = {key: one for key, one in self._asides.items() if key not in part}
            elif len(part) > 1:
                parts[:0] = _halves(part)
            else:
                self._put(part, failed)
            reason = failed or reason
        return await attempt(good) if failed else ""

    def _put(self, keys: Sequence[str], reason: str) -> None:
        for key in keys:
            tries = self._asides[key].tries + 1 if key in self._asides else 0
            pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
            self._asides[key] = Aside(self._wanted[key], reason, tries, self._clock.now_s() + pause_s)
            log.warning("policy_set_aside", policy=key, error=reason, retry_s=pause_s)

    def _in_place_of(self, keys: Iterable[str]) -> dict[str, Policy]:
        return {key: self._in_force.get(key) or _isolating(self._wanted[key]) for key in keys}


def _halves(keys: Sequence[str]) -> list[Sequence[str]]:
    middle = len(keys) // 2
    return [part for part in (keys[:middle], keys[middle:]) if part]


def _isolating(policy: Policy) -> Policy:
    """The same pods, and nothing that is allowed."""
    limited = tuple(one.capitalize() for one in DIRECTIONS if policy.limits(one))
    if not policy.spec.ingress and not policy.spec.egress:
        return policy
    return replace(policy, spec=replace(policy.spec, ingress=(), egress=(), policy_types=limited))

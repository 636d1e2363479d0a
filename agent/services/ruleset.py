# SPDX-License-Identifier: Apache-2.0
"""What a family's sync and the views need from a backend, what a sync reports, and what leads packets beside the rules.

The rulesets of nftables and iptables and their views fulfil these protocols by shape. Failures are those of
agent/model/services/nft_error.py, for both. A relay on localhost, flows that skip the rules and the guard of a boot
answer for themselves what `explain route`, `trace`, `rules` and `diff` show of them.
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from agent.model.placed import Walk
from agent.model.services.iptables_rules import Table
from agent.model.services.nft_error import NftFailed
from agent.model.services.nft_table import Family
from agent.model.services.report import RuleChange, RuleReport
from agent.model.services.service import ServiceKey
from agent.services.nftables.trace import Outcome, Packet
from agent.services.objects.node_state import FamilyFacts
from agent.services.routes.frontends import Claim, PortPlan, ServicePlan

Plans = Mapping[ServiceKey, ServicePlan | None]
"""New or different plans; None: that Service goes."""
NO_PLANS: Plans = MappingProxyType({})


class Beside(Protocol):
    """Who has nothing to say inherits the bodies."""

    def findings(self, key: ServiceKey) -> Iterable[str]:  # noqa: ARG002
        """What of a Service does not work."""
        return ()

    def told(self, family: Family, port: PortPlan) -> Iterable[str]:  # noqa: ARG002
        """Lines of `explain route` about one port."""
        return ()

    def rows(self, key: ServiceKey | None = None, *, is_standing: bool) -> Iterable[RuleReport]:  # noqa: ARG002
        """As it is, or as it should be; of one Service, or all. One that belongs to no Service is among all."""
        return ()

    def instead(self, packet: Packet, *, is_standing: bool) -> Outcome | None:  # noqa: ARG002
        """What becomes of a packet that no rule sees; None: rules do."""
        return None

    def afterwards(self, packet: Packet, outcome: Outcome) -> Outcome:  # noqa: ARG002
        """With what happens to the connection later on."""
        return outcome


class RuleCounts(msgspec.Struct, frozen=True):
    """Rules by table: how many there are, and how many the last change had."""

    owned: Mapping[Table, int]
    last: Mapping[Table, int]


class Reconciled(msgspec.Struct, frozen=True):
    """How much was written, and ways in that an earlier process left and that no Service has any more."""

    written: int
    gone: Collection[Claim] = ()


class Ruleset(Protocol):
    """One family's rules, in the kernel and as they were last written."""

    def __len__(self) -> int:
        """How many Services are written."""

    def rule_counts(self) -> RuleCounts | None:
        """None where there are elements instead, and the number of rules says nothing."""

    async def check(self) -> None:
        """Whether this node can have them at all."""

    async def rivals(self) -> Sequence[str]:
        """What else programs Services here."""

    async def forward_drops(self) -> Sequence[str]:
        """What drops forwarded packets of Services, and rules of this kind cannot prevent it."""

    async def has_rules(self) -> bool:
        """Whether the kernel has Services that kepd wrote, this process or an earlier one."""

    def changes(self) -> AsyncGenerator[str, None]:
        """What others did to our rules: a sentence for the log. Never ends."""

    async def prepare(self, facts: FamilyFacts, *, is_wanted: bool) -> bool:
        """Read what there is and make what all Services need. False: no rules exist or are needed."""

    async def reconcile(self, plans: Plans, facts: FamilyFacts, spared: Plans = NO_PLANS) -> Reconciled:
        """After `prepare`: write the difference to these plans and all that are known. `spared` are Services of which
        nothing is known: what an earlier process wrote for them stays."""

    async def write_over(self, plans: Plans) -> int:
        """After `prepare`: these plans in place of what their Services have; all else stays. Atomic."""

    async def write(self, plans: Plans, facts: FamilyFacts | None = None) -> int:
        """These plans on top of what is known to be there, and the node if it changed. Atomic."""

    def release_dump(self) -> None:
        """The full sync is over; what was read for it may go."""


class RulesView(Protocol):
    """One family's rules for whoever wants to see them. The places of all begin with the family."""

    def desired(self, key: ServiceKey | None = None, after: str = "") -> Walk[RuleReport]:
        """Of one Service or of all, as they were written last."""

    def standing(self, key: ServiceKey | None = None, after: str = "") -> Walk[RuleReport]:
        """As the kernel has them, those of a Service or all."""

    def differences(self, after: str = "") -> Walk[RuleChange]:
        """Between what was written last and what the kernel has."""

    async def connections(self) -> Mapping[Claim, int]:
        """New connections by the way they came in, as far as the backend counts them."""

    async def race_drops(self) -> int:
        """Packets that were dropped because their endpoint went between two lookups."""

    async def trace(self, packet: Packet, facts: FamilyFacts, *, in_kernel: bool) -> Outcome:
        """What becomes of the packet, by what was written or by what the kernel has."""


class SyncReport(msgspec.Struct, frozen=True):
    """One sync that worked. `changed` are the Services that were looked at; with `is_full`, everything was."""

    changed: Mapping[ServiceKey, ServicePlan | None]
    elements: int
    duration_s: float
    is_full: bool
    looked: Collection[ServiceKey] = ()
    """Services of which anything changed, whether their plan did or not."""
    gone: Collection[Claim] = ()
    """Ways in that an earlier process left."""


class SyncWatcher(Protocol):
    def synced(self, family: str, report: SyncReport) -> None: ...
    def sync_failed(self, family: str, error: NftFailed, *, retry_s: float, is_full: bool) -> None: ...
    def quarantined(self, family: str, key: ServiceKey, error: NftFailed) -> None: ...
    def repaired(self, family: str, sentence: str, elements: int) -> None: ...
    def forwarding_dropped(self, family: str, chains: Sequence[str]) -> None: ...

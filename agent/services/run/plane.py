# SPDX-License-Identifier: Apache-2.0
"""The services plane: keeps two families in step with what sources report. One unit of the task tree.

What follows a sync, in this order: times, health ports, stale flows.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.event import Event
from agent.model.feed import Feed
from agent.model.finding import Finding
from agent.model.services.nft_error import NftFailed, RivalFound
from agent.model.services.nft_table import Family
from agent.model.services.report import ProgrammedService
from agent.model.services.service import ServiceKey
from agent.services.routes.desired import Desired
from agent.services.routes.frontends import Frontend
from agent.services.ruleset import Ruleset, SyncReport
from agent.services.run.family_sync import FamilySync
from agent.services.run.intake import ServiceInputs
from agent.services.run.measures import Measures
from agent.services.run.pace import Periods
from agent.services.view.health import FamilyHealth

log = structlog.get_logger(plane="services")

Follower = Callable[[Family, SyncReport], None]
"""Hears of each sync that worked; must not wait."""


class ServicesPlane:
    """`followers` are called after every sync, in their order."""

    def __init__(
        self,
        intake: ServiceInputs,
        rulesets: Mapping[Family, Ruleset],
        *,
        clock: Clock,
        tell: Callable[[Event], None],
        periods: Callable[[], Periods] = Periods,
        repairs: Callable[[], bool] = lambda: True,
        may_share: Callable[[], bool] = lambda: False,
    ) -> None:
        self.intake = intake
        self.measures = Measures()
        self.followers: list[Follower] = []
        self.gives_way: Callable[[Family], None] = lambda _: None
        """Called where another program has its Services in a family."""
        self.feed: Feed[ProgrammedService] = Feed()
        self.stands = False
        """An earlier process left rules, which work on while the first lists are awaited."""
        self._remark = ""
        self._syncs = 0
        self._clock = clock
        self._tell = tell
        self._failures: dict[str, str] = {}
        """Family → why its last sync failed."""
        self.failing_s: dict[str, float] = {}
        """Family → since when its syncs fail, other than for another program that has its Services here."""
        self._conflicts: dict[tuple[Family, ServiceKey], tuple[Frontend, ...]] = {}
        self._refused: set[tuple[Family, str, ServiceKey]] = set()
        self._short: set[Family] = set()
        self._node_findings: dict[Family, tuple[Finding, ...]] = {}
        self._report: Report | None = None
        self.families: dict[Family, FamilySync] = {
            family: FamilySync(
                Desired(family, intake.facts(family).node, intake.fold),
                intake.facts(family),
                rules,
                self,
                clock=clock,
                periods=periods,
                repairs=repairs,
                may_share=may_share,
            )
            for family, rules in rulesets.items()
        }
        intake.follow(self, rulesets)

    def objects_changed(self) -> None:
        for one in self.families.values():
            one.wake()

    def node_changed(self) -> None:
        for family, one in self.families.items():
            facts = self.intake.facts(family)
            one.set_facts(facts)
            # Until the Node object has arrived, what it would say is missing at every start.
            if "node" not in self.intake.missing and facts.findings != self._node_findings.get(family, ()):
                self._node_findings[family] = facts.findings
                for finding in facts.findings:
                    log.warning("service_node_incomplete", family=family, problem=str(finding))

    async def run(self, report: Report) -> None:
        """The unit: nothing is written before everything has arrived."""
        self._report = report
        self._tell(Event(is_warning=False, reason="Starting", message="services", plane="services"))
        report.starting(f"waiting for {', '.join(self.intake.missing)}")
        self.stands = await self.has_rules()
        await self.intake.arrived.wait()
        self.node_changed()
        for one in self.families.values():
            # What waited for the lists did not wait for us.
            one.pending_since_s = None
            one.wake()
        log.info("service_lists_arrived", services=len(self.intake.fold.services), v=1)
        async with asyncio.TaskGroup() as group:
            for family, one in self.families.items():
                group.create_task(one.run(), name=f"services-{family}")

    async def has_rules(self) -> bool:
        """Whether kepd's rules are in the kernel, this process's or an earlier one's."""
        return any([await self._has_rules(family) for family in self.families])

    async def _has_rules(self, family: Family) -> bool:
        try:
            return await self.families[family].rules.has_rules()
        except NftFailed as error:
            log.warning("service_rules_unknown", family=family, error=str(error))
            return False

    def synced(self, family: str, report: SyncReport) -> None:
        key: Family = "IPv4" if family == "IPv4" else "IPv6"
        self.measures.synced(key, report, self._clock.wall_s())
        now_s = self._clock.wall_s()
        self.measures.programmed(key, [now_s - when for when in self.intake.take_triggers(key, report.looked)])
        self._tell_conflicts(key, report)
        self._tell_refusals(key, report)
        self._tell_shortage(key)
        log.info(
            "service_sync_finished",
            family=family,
            services=len(report.changed),
            elements=report.elements,
            full=report.is_full,
            duration_s=round(report.duration_s, 4),
            v=2 if report.elements or self.measures.transactions[family, "ok"] == 1 else 4,
        )
        self.failing_s.pop(family, None)
        if self._failures.pop(family, None) is not None:
            log.info("service_sync_recovered", family=family, v=0)
        self._syncs += 1
        for service in report.changed:
            if service in self.intake.fold.services:
                self.feed.put(str(service), ProgrammedService(service, self._syncs))
            else:
                self.feed.remove(str(service))
        for follower in self.followers:
            follower(key, report)
        self._tell_state()

    def _tell_conflicts(self, family: Family, report: SyncReport) -> None:
        """Once for each set of addresses that a Service does not get."""
        desired = self.families[family].desired
        for key in report.changed:
            lost = desired.lost.get(key, ())
            if lost != self._conflicts.get((family, key), ()):
                self._conflicts[family, key] = lost
                if not lost:
                    del self._conflicts[family, key]
                hidden = desired.conflicts(key, hides_others=True)
                for finding, public in zip(desired.conflicts(key), hidden, strict=True):
                    text = f"{finding.path}: {finding.text}"
                    self._warn("AddressConflict", text, key, f"{public.path}: {public.text}")

    def _tell_refusals(self, family: Family, report: SyncReport) -> None:
        """Once for each time that a Service becomes too large, or gets no map for its clients,
        or not an address."""
        desired = self.families[family].desired
        for reason, why in (
            ("ServiceTooLarge", desired.refused.get),
            ("AffinityCrowded", desired.own_maps.refusals),
            ("ExternalIPRefused", desired.outside.findings.get),
        ):
            for key in report.looked:
                refusals, known = why(key) or (), (family, reason, key)
                if not refusals and known not in self._refused:
                    continue
                for finding in refusals if known not in self._refused else ():
                    log.warning("service_bounded", family=family, reason=reason, problem=str(finding))
                    self._warn(reason, f"{family}: {finding.text}", key)
                (self._refused.add if refusals else self._refused.discard)(known)

    def _tell_shortage(self, family: Family) -> None:
        """Once, while there is room for more."""
        text = self.families[family].desired.room.shortage()
        if text and family not in self._short:
            log.warning("service_room_short", family=family, problem=text)
            effect = "above it the newest are not programmed; raise services.elementsMax or divide them among nodes"
            self._warn("ServiceRoomShort", f"{family}: {text}; {effect}")
        (self._short.add if text else self._short.discard)(family)

    def crowded(self, family: Family, key: ServiceKey, text: str) -> None:
        """What a port loses that has too many clients."""
        log.warning("affinity_crowded", family=family, service=str(key), effect=text)
        self._warn("AffinityCrowded", f"{family}: {text}", key)

    def ending_capped(self, family: Family, most: int) -> None:
        log.warning("connection_endings_capped", family=family, most_per_min=most, effect="the rest waits a minute")
        self._warn("TerminationCapped", f"{family}: more than {most} connections were to end; the rest waits a minute")

    def ending_refused(self, text: str) -> None:
        log.warning("connection_endings_refused", problem=text, effect="connections to endpoints that are gone stay")
        self._warn("TerminationRefused", f"connections to endpoints that are gone stay: {text}")

    def sync_failed(self, family: str, error: NftFailed, *, retry_s: float, is_full: bool) -> None:
        self.measures.failed(family, is_full=is_full)
        text = str(error)
        if self._failures.get(family) != text:
            log.error("service_sync_failed", family=family, error=text, retry_s=round(retry_s, 2))
            if isinstance(error, RivalFound):
                self._warn("BackendConflict", text)
        if isinstance(error, RivalFound):
            self.failing_s.pop(family, None)
            self.gives_way("IPv4" if family == "IPv4" else "IPv6")
        else:
            self.failing_s.setdefault(family, self._clock.now_s())
        self._failures[family] = text
        self._tell_state()

    def quarantined(self, family: str, key: ServiceKey, error: NftFailed) -> None:
        text = f"the {family} rules were refused: {error}; all others are programmed; tried again in 5 min or on change"
        log.error("service_quarantined", family=family, service=str(key), error=str(error))
        self._warn("ServiceQuarantined", text, key)

    def repaired(self, family: str, sentence: str, elements: int) -> None:
        self.measures.repaired(family)
        log.warning("service_rules_repaired", family=family, cause=sentence, elements=elements)
        self._warn("RulesRepaired", f"{family}: {sentence}; kepd wrote {elements} elements again")

    def forwarding_dropped(self, family: str, chains: Sequence[str]) -> None:
        log.warning("service_forwarding_dropped", family=family, chains=chains)
        what = f"{', '.join(chains)} drops what this node forwards, unless a rule there accepts it"
        self._warn(
            "ForwardingDropped", f"{family}: {what}; kepd cannot accept it there: packets to and from pods need one"
        )

    def _warn(self, reason: str, text: str, key: ServiceKey | None = None, public: str = "") -> None:
        namespace, name = key or ("", "")
        facts = self.intake.fold.services.get(key) if key is not None else None
        self._tell(
            Event(
                is_warning=True,
                reason=reason,
                message=text,
                plane="services",
                namespace=namespace,
                object_name=name,
                object_uid=facts.uid if facts is not None else "",
                public=public,
            )
        )

    async def lacking(self, longest_s: float) -> Sequence[Family]:
        """Families without any rules although there should be some: each Service is refused, or the rules are gone and
        could not be written for that time. A kernel that does not say so is no reason."""
        found = []
        for family, one in self.families.items():
            is_late = self._clock.now_s() - self.failing_s.get(family, float("inf")) >= longest_s
            try:
                is_gone = is_late and not await one.rules.has_rules()
            except NftFailed:
                is_gone = False
            if is_gone or (one.quarantine and not len(one.rules)):
                found.append(family)
        return found

    def _tell_state(self) -> None:
        if self._report is None:
            return
        waiting = [family for family, one in self.families.items() if not one.is_synced]
        if self._failures:
            text = "; ".join(f"{family}: {text}" for family, text in sorted(self._failures.items()))
            self._report.degraded(text)
        elif waiting:
            self._report.starting(f"first sync of {', '.join(waiting)}")
        else:
            self._report.ready(self._summary())

    def _summary(self) -> str:
        count = len(self.intake.fold.services)
        set_aside = (len(one.quarantine) + len(one.desired.refused) for one in self.families.values())
        problems = len(self.intake.findings) + sum(set_aside)
        found = f"{count} Services" + (f", {problems} with findings" if problems else "")
        return f"{found}; {self._remark}" if self._remark else found

    def remark(self, text: str) -> None:
        """What its state says beside the number of Services."""
        self._remark = text
        self._tell_state()

    def own_addresses(self, family: Family) -> frozenset[bytes]:
        """Of this host, as far as they are followed."""
        node = self.families[family].facts.node
        known = (*self.intake.interfaces, *node.node_port_addresses)
        return frozenset(one.packed for one in known if one.family == family)

    @property
    def is_answering(self) -> bool:
        """Whether every family was written and the kernel takes what comes."""
        return not self._failures and all(one.is_synced for one in self.families.values())

    @property
    def now_s(self) -> float:
        return self._clock.wall_s()

    def health(self) -> Mapping[Family, FamilyHealth]:
        """Before the first lists there is nothing that could be late."""
        has_lists = self.intake.arrived.is_set()
        return {
            family: FamilyHealth(one.updated_s, one.pending_since_s if has_lists else None)
            for family, one in self.families.items()
        }

    def overdue_s(self, family: Family) -> float:
        """How long the oldest change has been waiting."""
        since_s = self.families[family].pending_since_s
        return 0.0 if since_s is None else self._clock.wall_s() - since_s

    def quarantine(self) -> Sequence[tuple[Family, ServiceKey, str]]:
        return [(family, key, text) for family, one in self.families.items() for key, text in one.quarantine.items()]

# SPDX-License-Identifier: Apache-2.0
"""Shows what the services plane knows: Services, endpoints with reasons, elements, differences, a packet's way.

The reports are made from the same plans that are programmed. A RulesView knows what rules look like. The kernel has no
cursor that outlives a call, so one reading of a kind is kept for the pages of a list, until it has ended or a while has
passed; a page that comes later reads anew.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import cast

from msgspec.structs import replace

from agent.model.feed import Feed
from agent.model.finding import shown, told_faults
from agent.model.placed import SEPARATOR, Walk, begins, is_over, to_come, within
from agent.model.reason import Reason
from agent.model.refused import Refused
from agent.model.services.check import Asked
from agent.model.services.ended_connections import EndedConnections
from agent.model.services.nft_table import Family
from agent.model.services.report import (
    EndpointReport,
    PortReport,
    ProgrammedService,
    RuleChange,
    RuleReport,
    ServiceReport,
    TraceReport,
)
from agent.model.services.service import NEVER, Backend, Protocol, ServiceKey
from agent.services.nftables.elements import PORT
from agent.services.nftables.trace import Outcome, Packet, told_endpoint
from agent.services.objects.addresses import read_address
from agent.services.objects.reading_service import HIGHEST_PORT, PROXY_LABEL
from agent.services.routes.frontends import Claim, Frontend, PortPlan, ServicePlan, claim_of
from agent.services.routes.maglev import MOST_ENDPOINTS
from agent.services.routes.selection import Place
from agent.services.ruleset import Beside, RulesView
from agent.services.run.connection_ender import ConnectionEnder
from agent.services.run.family_sync import FamilySync
from agent.services.run.intake import MANIFEST
from agent.services.run.kept import Kept
from agent.services.run.plane import ServicesPlane
from agent.services.view.explain import Reasons, explain_hashing, explain_hints, state_of
from agent.services.view.reasons import (
    PortSituation,
    SelectedPods,
    ServiceSituation,
    meant,
    offered_ports,
    service_reasons,
)

_BACKEND = attrgetter("key")
MOST_DIGITS = 5
MASQUERADES = {True: "yes", False: "no", None: "only if it comes back to itself"}
_SNATS = {
    "off-cluster": "kept for pods, else the node's",
    "always": "always the node's",
    "local-host": "kept, but the node's for itself",
}


class ServicesView:
    def __init__(
        self,
        plane: ServicesPlane,
        rules: Mapping[Family, RulesView],
        addresses: Callable[[], Awaitable[Iterable[bytes]]],
        ender: ConnectionEnder | None = None,
        beside: Sequence[Beside] = (),
        *,
        chosen: Callable[[ServiceKey], SelectedPods | None] = lambda _key: None,
        why_dead: Callable[[Asked], str] = lambda _asked: "",
    ) -> None:
        """`addresses`: those that this host has now. Without an `ender` no connections are ended. `chosen`: the pods of
        this node that a Service chooses by their labels. `why_dead`: of an endpoint that a check found so."""
        self._chosen = chosen
        self._why_dead = why_dead
        self._beside = tuple(beside)
        self._ender = ender
        self._plane = plane
        self.must_know = plane.intake.must_have_arrived
        self._addresses = addresses
        self._rules = rules
        self._connections = Kept(self._count)
        self._sorted: tuple[int, list[ServiceKey]] = (-1, [])

    @property
    def changes(self) -> Feed[ProgrammedService]:
        return self._plane.feed

    async def services(self, after: str = "") -> Walk[ServiceReport]:
        keys = self._ordered
        counted = await self._connections.get(is_first=not after)
        for key in keys[bisect_right(keys, after, key=_place) :]:
            yield _place(key), replace(self.service(key), connections=self._counted(key, counted))
        self._connections.forget()

    @property
    def _ordered(self) -> list[ServiceKey]:
        """All there are, sorted again only after something was told."""
        fold = self._plane.intake.fold
        if self._sorted[0] != fold.service_changes:
            self._sorted = fold.service_changes, sorted({*fold.services, *fold.refused})
        return self._sorted[1]

    async def _count(self) -> dict[Family, Mapping[Claim, int]]:
        return {family: await view.connections() for family, view in self._rules.items()}

    def _counted(self, key: ServiceKey, counted: Mapping[Family, Mapping[Claim, int]]) -> int:
        return sum(
            counted[sync.desired.family].get(claim_of(one), 0)
            for sync, _, port in self._ports(key)
            for one in port.frontends
        )

    def service(self, key: ServiceKey) -> ServiceReport:
        facts = self._plane.intake.fold.services.get(key)
        plans = [plan for sync in self._plane.families.values() if (plan := sync.desired.plan_of(key)) is not None]
        findings = tuple(self._findings(key))
        cause = next((one.line for one in service_reasons(self._situation(key, findings))), "")
        if facts is None:
            return ServiceReport(
                namespace=key.namespace, name=key.name, type="", findings=findings, cause=cause, is_programmed=False
            )
        parts = [part for part in (facts.v4, facts.v6) if part is not None]
        policies = [
            text
            for is_on, text in ((facts.is_internal_local, "internal"), (facts.is_external_local, "external"))
            if is_on
        ]
        return ServiceReport(
            namespace=key.namespace,
            name=key.name,
            type=facts.type,
            cluster_ips=tuple(part.cluster_ip.text for part in parts),
            external_ips=tuple(ip.text for part in parts for ip in (*part.external_ips, *part.balancer_ips)),
            ports=tuple(self._port(sync, plan, port) for sync, plan, port in self._ports(key)),
            affinity_s=facts.affinity_s,
            policies=f"{' and '.join(policies)} traffic stays local" if policies else "",
            findings=findings,
            cause=cause,
            is_programmed=bool(plans) and not any(key in sync.quarantine for sync in self._plane.families.values()),
        )

    def reasons(self, key: ServiceKey) -> tuple[Reason, ...]:
        """Why traffic does not arrive, or not everywhere. Empty where all is well."""
        return tuple(service_reasons(self._situation(key, tuple(self._findings(key)))))

    def _situation(self, key: ServiceKey, findings: Sequence[str]) -> ServiceSituation:
        ports = [
            PortSituation(
                family=sync.desired.family,
                plan=port,
                backends=self._backends(sync, key, port),
                offered=offered_ports(self._plane.intake.fold.slices(key, sync.desired.family)),
            )
            for sync, _, port in self._ports(key)
        ]
        is_without = any(not one.plan.selection.has_any for one in ports)
        place = next((sync.facts.node.place for sync in self._plane.families.values()), Place(""))
        return ServiceSituation(
            key=key,
            place=place,
            findings=findings,
            whose=self._plane.intake.fold.others.get(key, ""),
            ports=ports,
            pods=self._chosen(key) if is_without else None,
        )

    def _findings(self, key: ServiceKey) -> Iterator[str]:
        for other in self._beside:
            yield from other.findings(key)
        for finding in self._plane.intake.findings.get(("Service", *key), ()):
            yield ": ".join(filter(None, (finding.path, finding.text)))
        for family, sync in self._plane.families.items():
            desired = sync.desired
            bounded = (*desired.refused.get(key, ()), *desired.own_maps.refusals(key))
            bounded += desired.hash_tables.refusals(key)
            for finding in (*bounded, *desired.outside.findings.get(key, ()), *desired.conflicts(key)):
                yield f"{finding.path}: {finding.text}"
            if (most := sync.desired.unhashed(key)) is not None:
                text = f"{most} endpoints have no table of slots; expected at most {MOST_ENDPOINTS}; drawn at random"
                yield f"metadata.annotations[kepd.dev/balance]: {text}"
            if key in sync.quarantine:
                yield f"{family}: {sync.quarantine[key]}"
            node, plan = sync.facts.node, sync.desired.plan_of(key)
            ports = [one.port.node_port for one in (plan.ports if plan is not None else ()) if one.port.node_port]
            is_open = node.is_open_everywhere or node.node_port_addresses or node.has_localhost
            if ports and not is_open:
                text = "answers on no address of this node; set node.addresses or services.nodePortAddresses"
                yield f"{family}: node port {', '.join(map(str, ports))} {text}"

    def _ports(self, key: ServiceKey) -> Iterator[tuple[FamilySync, ServicePlan, PortPlan]]:
        for sync in self._plane.families.values():
            plan = sync.desired.plan_of(key)
            for port in plan.ports if plan is not None else ():
                yield sync, plan, port  # type: ignore[misc]

    def _backends(self, sync: FamilySync, key: ServiceKey, port: PortPlan) -> tuple[Backend, ...]:
        return sync.desired.fold.backends(key, sync.desired.family, port.port.key)

    def _port(self, sync: FamilySync, plan: ServicePlan, port: PortPlan) -> PortReport:
        verdicts = {one.verdict for one in port.frontends if one.verdict}
        return PortReport(
            family=sync.desired.family,
            name=port.port.name,
            protocol=port.port.protocol,
            port=port.port.port,
            node_port=port.port.node_port,
            total=len(self._backends(sync, plan.key, port)),
            used=len(port.selection.everyone),
            mode=port.selection.mode,
            verdict="/".join(sorted(verdicts)),
        )

    async def endpoints(
        self, key: ServiceKey | None = None, after: str = "", port_name: str | None = None
    ) -> Walk[EndpointReport]:
        for one in to_come(self._ordered if key is None else [key], lambda one: begins(*one), after):
            for begin, sync, port in sorted(self._begins(one), key=itemgetter(0)):
                if is_over(begin, after) or port_name not in (None, port.port.name):
                    continue
                backends, rest = self._backends(sync, one, port), within(begin, after)
                reasons = Reasons(port.selection, sync.facts.node.place)
                for at in range(bisect_right(backends, rest, key=_BACKEND) if rest else 0, len(backends)):
                    place = f"{begin}{backends[at].key}"
                    found = _endpoint(one, port, sync.desired.family, backends[at], reasons)
                    yield place, self._judged(found, Asked(port.port.protocol, backends[at].data))

    def _judged(self, found: EndpointReport, asked: Asked) -> EndpointReport:
        if not (why := self._why_dead(asked)):
            return found
        effect = "; no other lives, so all get traffic" if found.is_used else ""
        return replace(found, state="dead", reason=f"no API server answers, and {why}{effect}")

    def _begins(self, key: ServiceKey) -> Iterator[tuple[str, FamilySync, PortPlan]]:
        for sync, _, port in self._ports(key):
            yield begins(*key, port.port.name, port.port.protocol, sync.desired.family), sync, port

    def route(self, key: ServiceKey, port_name: str | None = None) -> list[str]:
        """Raises KeyError for a Service that is not there, with the faults of manifests: it may be in one of them."""
        fold = self._plane.intake.fold
        if key not in fold.services and key not in fold.refused and key not in fold.others:
            known = sorted(self._plane.intake.findings.items())
            faults = told_faults((one for (kind, *_), found in known if kind == MANIFEST for one in found), key.name)
            others = f"; one with the label {PROXY_LABEL} is another proxy's, and not seen here"
            raise KeyError(f"{key}{meant(key, {*fold.services, *fold.refused, *fold.others})}{faults or others}")
        lines: list[str] = []
        for sync, _, port in self._ports(key):
            if port_name is not None and port.port.name != port_name:
                continue
            name = f"{port.port.name or '(no name)'} {port.port.port}/{port.port.protocol}"
            count = len(port.selection.everyone)
            lines.append(f"{sync.desired.family} port {name}: {count} endpoints in use")
            lines += [f"  {_told_frontend(one)}" for one in port.frontends]
            for other in self._beside:
                lines += [f"  {line}" for line in other.told(sync.desired.family, port)]
            lines += [f"  {line}" for line in explain_hints(port.selection, sync.facts.node.place)]
            lines += [f"  {line}" for line in explain_hashing(port)]
            if port.affinity_s:
                where = f"a map of its own for {own}" if (own := port.own_clients) else "the map that Services share"
                lines.append(f"  clients come back for {port.affinity_s} s, remembered in {where}")
        lines += self._told_ending(key) if port_name is None else ()
        return lines + [f"finding: {text}" for text in self._findings(key)]

    def _told_ending(self, key: ServiceKey) -> Iterator[str]:
        if self._ender is None:
            return
        wait_s, is_own = self._ender.wait_of(key)
        if wait_s != NEVER:
            whose = "its annotation" if is_own else "services.terminateEstablished"
            effect = f"refused: {self._ender.refusal}" if self._ender.refusal else f"after {wait_s} s"
            yield f"connections to endpoints that no slice has are ended ({whose}), {effect}"

    async def end_connections(self, key: ServiceKey, to: str, *, dry_run: bool) -> EndedConnections:
        """Raises KeyError for a Service that is not there, ValueError for what is no endpoint, Refused."""
        address, port = None, 0
        if to:
            text, _, number = to.rpartition(":")
            address = read_address(text.removeprefix("[").removesuffix("]"))
            port = int(number) if number.isascii() and number.isdecimal() and len(number) <= MOST_DIGITS else 0
            is_open = ":" in text and not (text.startswith("[") and text.endswith("]"))
            if address is None or is_open or not 0 < port <= HIGHEST_PORT:
                raise ValueError(f"{shown(to)} is no endpoint; expected IP:PORT, such as 10.1.0.1:8080 or [fd00::1]:80")
        if self._ender is None:
            raise Refused("tracking", "nobody ends connections here")
        return await self._ender.end_connections(key, address, port, dry_run=dry_run)

    async def desired_rules(self, key: ServiceKey | None = None, after: str = "") -> Walk[RuleReport]:
        for _, view in sorted(self._rules.items()):
            async for placed in view.desired(key, after):
                yield placed
        for report in self._rows(key, after, is_standing=False):
            yield _beside_place(report), report

    async def rules(self, key: ServiceKey | None = None, after: str = "") -> Walk[RuleReport]:
        for _, view in sorted(self._rules.items()):
            async for placed in view.standing(key, after):
                yield placed
        for report in self._rows(key, after, is_standing=True):
            yield _beside_place(report), replace(report, service="")

    async def differences(self, after: str = "") -> Walk[RuleChange]:
        for _, view in sorted(self._rules.items()):
            async for placed in view.differences(after):
                yield placed
        want, have = (
            {_beside_place(one): one for one in self._rows(None, after, is_standing=now)} for now in (False, True)
        )
        for place in sorted(want.keys() ^ have.keys()):
            one = want.get(place) or have[place]
            desired, actual = (one.data, "") if place in want else ("", one.data)
            yield place, RuleChange(family=one.family, map=one.map, key=one.key, desired=desired, actual=actual)

    def _rows(self, key: ServiceKey | None, after: str, *, is_standing: bool) -> list[RuleReport]:
        """Of what stands beside the rules, which come before."""
        found = (one for other in self._beside for one in other.rows(key, is_standing=is_standing))
        return sorted((one for one in found if _beside_place(one) > after), key=_beside_place)

    async def trace(self, source: str, target: str, protocol: str, port: int, *, in_kernel: bool) -> TraceReport:
        """Raises ValueError where an address is none, or the family is off."""
        start, end = read_address(source), read_address(target)
        if start is None or end is None or start.family != end.family:
            raise ValueError(f"{source} and {target}: expected two addresses of one family")
        sync = self._plane.families.get(end.family)
        if sync is None:
            raise ValueError(f"{target}: {end.family} is off on this node")
        own = {*await self._addresses(), *(one.packed for one in sync.facts.node.addresses)}
        packet = Packet(start, end, cast("Protocol", protocol), port, start.packed in own, end.packed in own)
        others = (other.instead(packet, is_standing=in_kernel) for other in self._beside)
        outcome = next((one for one in others if one is not None), None)
        is_to_node = packet.is_to_host or (outcome is not None and outcome.verdict == "relay")
        if outcome is None:
            outcome = await self._rules[end.family].trace(packet, sync.facts, in_kernel=in_kernel)
        for other in self._beside:
            outcome = other.afterwards(packet, outcome)
        claims = [(end.packed, protocol, port), *([(b"", protocol, port)] if is_to_node else [])]
        owner = next(filter(None, map(sync.desired.owner_of, claims)), None)
        return replace(_trace_report(outcome), service=str(owner) if owner is not None else "")


def _place(key: ServiceKey) -> str:
    return SEPARATOR.join(key)


def _beside_place(one: RuleReport) -> str:
    """Behind all of the backends, which begin with a family."""
    return f"{begins(one.map, one.family)}{one.key}"


def _endpoint(key: ServiceKey, port: PortPlan, family: Family, one: Backend, reasons: Reasons) -> EndpointReport:
    reason = reasons.of(one)
    return EndpointReport(
        namespace=key.namespace,
        service=key.name,
        port=port.port.name,
        protocol=port.port.protocol,
        family=family,
        endpoint=one.key,
        node=one.node,
        state=state_of(one),
        zones=one.zones,
        nodes=one.nodes,
        is_used=reasons.is_used(one),
        is_used_locally=reasons.is_used_locally(one),
        reason=reason.text,
    )


def _told_frontend(one: Frontend) -> str:
    where = f"{one.ip.text}" if one.ip is not None else "node addresses"
    ends = {
        "": "",
        "reject": ", rejected: no endpoint serves",
        "drop": ", dropped: no endpoint on this node serves",
        "pass": ", let pass",
    }
    policy = "Local" if one.is_local_policy else "Cluster"
    ranges = f", only from {', '.join(item.text for item in one.ranges)}" if one.ranges else ""
    if one.is_restricted and not one.ranges:
        ranges = ", closed: none of its source ranges can be used"
    return (
        f"{one.kind} {where}:{one.port}, policy {policy}, source address {_SNATS[one.snat]}{ranges}{ends[one.verdict]}"
    )


def _trace_report(outcome: Outcome) -> TraceReport:
    targets = dict.fromkeys(told_endpoint(address + PORT.pack(port, 0)) for address, port in outcome.targets)
    return TraceReport(
        verdict=outcome.verdict,
        targets=tuple(targets),
        masquerade=MASQUERADES[outcome.is_masqueraded] if outcome.verdict == "dnat" else "",
        steps=outcome.steps,
    )

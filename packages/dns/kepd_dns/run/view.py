# SPDX-License-Identifier: Apache-2.0
"""What people ask about names, answered by the plane and by the process."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from agent.model.refused import Refused
from agent.model.services.dns_report import DnsLine, DnsReport, NameExplanation, NameStep
from kepd_dns.handover.status import Reply, Status, StatusRequest, UpstreamStatus
from kepd_dns.run.client import ProcessUnavailable
from kepd_dns.run.inquiry import WAIT_S, Inquirer, inquire
from kepd_dns.run.plane import DnsPlane
from kepd_dns.view.searching import Search, cluster_search, questions, step_of
from kepd_dns.wire.names import to_wire
from kepd_dns.wire.records_text import type_number

MOST_SHOWN = 5
FOUND = "NOERROR"


class DnsView:
    """`pods` says the namespace of a pod of this node by its address, for the list of those who ask most; `search` what
    the resolver of a pod looks through, by namespace and name."""

    def __init__(
        self,
        plane: DnsPlane,
        pods: Callable[[], dict[str, str]] = dict,
        search: Callable[[str, str], Search | None] = lambda _namespace, _name: None,
        *,
        inquire: Inquirer = inquire,
    ) -> None:
        self._plane, self._inquire = plane, inquire
        self.pods = pods
        self.search = search
        self._last: Status | None = None

    async def report(self) -> DnsReport:
        status = await self._plane.look()
        lines = [*self._addresses(status), *(map(_upstream, status.upstreams) if status is not None else ())]
        self._last = status
        return DnsReport(tuple(lines), self._plane.problem)

    def _addresses(self, status: Status | None) -> Iterator[DnsLine]:
        names = self.pods()
        for address, one in sorted(self._plane.live.items()):
            probed = self._plane.probed.get(address)
            family = "ipv6" if ":" in address else "ipv4"
            total, hits, rate = _counts(status, self._last, family)
            yield DnsLine(
                kind="address",
                name=address,
                state="answering" if one.is_live else "not answering",
                why=probed.problem if probed is not None else "not asked yet",
                questions_per_second=rate,
                hit_percent=100.0 * hits / total if total else 0.0,
                milliseconds=_p99_ms(status),
                asked=total,
                top_names=_top(status.top_names if status else ()),
                top_sources=_top(
                    [(names.get(source, source), count) for source, count in status.top_sources] if status else ()
                ),
                memory_bytes=status.memory_bytes if status else 0,
                entries=status.entries if status else 0,
            )

    async def explain(self, name: str, type_: str, pod: str, *, is_traced: bool = False) -> NameExplanation:
        """`pod` is who asks; empty: the name is asked for as it stands. `is_traced`: what is not known is asked for.
        Raises Refused."""
        steps: list[NameStep] = []
        for one in questions(name, self._search(pod)):
            reply = await self._ask(StatusRequest(do="explain", name=one, type=type_))
            if reply.explanation is None:
                raise Refused("invalid", reply.error)
            step = step_of(reply.explanation, type_)
            steps.append(await self._traced(step, one, type_) if is_traced else step)
            if steps[-1].code == FOUND and (steps[-1].records or type_ not in ("A", "AAAA")):
                break
        return NameExplanation(tuple(steps), bool(steps[-1].records))

    def _search(self, pod: str) -> Search:
        if not pod:
            return Search()
        namespace, _, name = pod.partition("/")
        return self.search(namespace, name) or cluster_search(namespace, self._plane.writer.settings.zone)

    async def _traced(self, step: NameStep, name: str, type_: str) -> NameStep:
        """What the process answers, as this host is answered, and in what time."""
        address = next((one for one, live in sorted(self._plane.live.items()) if live.is_live), "")
        kind = type_number(type_)
        if not address or kind is None:
            return replace(step, sentences=(*step.sentences, "no address answers, so nothing was asked"))
        begun_s = self._plane.now_s()
        heard = await self._inquire(address, to_wire(name), kind)
        took_ms = 1000 * (self._plane.now_s() - begun_s)
        if heard is None:
            sentence = f"asked at {address}: no answer within {WAIT_S:.0f} s"
            return replace(step, sentences=(*step.sentences, sentence))
        sentence = f"asked at {address}: {heard.code} in {took_ms:.1f} ms"
        return replace(step, code=heard.code, records=heard.records, sentences=(*step.sentences, sentence))

    async def flush(self, name: str, zone: str) -> int:
        reply = await self._ask(StatusRequest(do="flush", name=name, zone=zone))
        if reply.error:
            raise Refused("invalid", reply.error)
        return reply.flushed

    async def _ask(self, request: StatusRequest) -> Reply:
        try:
            return await self._plane.client.ask(request)
        except ProcessUnavailable as error:
            raise Refused("unavailable", str(error)) from error


def _upstream(one: UpstreamStatus) -> DnsLine:
    state = "loop" if one.is_loop else "up" if one.is_up else "out"
    return DnsLine(
        kind="upstream",
        name=f"{one.address}/{one.protocol}",
        zone=one.zone,
        state=state,
        why=one.why,
        milliseconds=one.round_trip_s * 1000,
        asked=one.asked,
    )


def _counts(status: Status | None, last: Status | None, family: str) -> tuple[int, int, float]:
    """Answers, those from memory, and answers a second since the report before, or since the start."""
    if status is None:
        return 0, 0, 0.0
    by_source: Counter[str] = Counter()
    for one in status.answers:
        if one.family == family:
            by_source[one.source] += one.count
    total = by_source.total()
    before, since_s = 0, status.uptime_s
    if last is not None and last.instance == status.instance and status.uptime_s > last.uptime_s:
        before = sum(one.count for one in last.answers if one.family == family)
        since_s = status.uptime_s - last.uptime_s
    hits = by_source["own"] + by_source["cache"] + by_source["stale"]
    return total, hits, (total - before) / since_s if since_s > 0 else 0.0


def _p99_ms(status: Status | None) -> float:
    """The bound of the bucket that has it."""
    if status is None:
        return 0.0
    counts = [sum(column) for column in zip(*(one.counts for one in status.durations.values()), strict=True)]
    wanted, seen = 0.99 * sum(counts), 0
    for bound_s, count in zip(status.bounds_s, counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound_s * 1000 if sum(counts) else 0.0
    return status.bounds_s[-1] * 1000 if counts else 0.0


def _top(counts: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(f"{name}={count}" for name, count in counts[:MOST_SHOWN])

# SPDX-License-Identifier: Apache-2.0
"""What kepd-dns says of itself: figures for the daemon's metrics, and why a question is answered as it is."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kepd_dns.cache.entry import Entry
from kepd_dns.handover.status import AnswerCount, Cached, Durations, Explanation, Status, UpstreamStatus
from kepd_dns.run.counters import BUCKETS_S, Histogram
from kepd_dns.run.sockets import drops
from kepd_dns.upstreams.addresses import Server
from kepd_dns.view.explained import own_explanation
from kepd_dns.wire.answer import plain_data, read_answer
from kepd_dns.wire.names import to_text, to_wire
from kepd_dns.wire.question import IN, NXDOMAIN, Question, key_of
from kepd_dns.wire.records_text import data_text, type_number, type_text

if TYPE_CHECKING:
    from kepd_dns.run.process import Process

MOST_TOP = 20
ALL_TYPES = 0


class Reporter:
    def __init__(self, process: "Process") -> None:
        self._process = process

    def status(self) -> Status:
        process, counters, cache = self._process, self._process.counters, self._process.cache
        now_s = process.now_s()
        return Status(
            instance=process.instance,
            pid=os.getpid(),
            started_s=process.started_s,
            uptime_s=time.time() - process.started_s,
            number=process.files.number,
            state_age_s=process.state_age_s(),
            error=process.files.error,
            addresses=tuple(sorted(process.udp)),
            answers=tuple(AnswerCount(*key, count) for key, count in counters.all_answers().items()),
            durations={source: _durations(one) for source, one in counters.durations.items()},
            upstreams=tuple(self._upstreams(now_s)),
            cache_bytes=cache.bytes,
            negative_bytes=cache.negative_bytes,
            entries=len(cache.entries),
            negative_entries=cache.negatives,
            evictions=cache.counts.evictions,
            negative_evictions=cache.counts.negative_evictions,
            prefetches=counters.prefetches,
            merged=counters.merged,
            spoofed=counters.spoofed,
            limited=counters.limited,
            all_out=process.flights.healths.all_out,
            in_flight=len(process.flights.flights),
            overload=dict(counters.overload),
            malformed=dict(counters.malformed),
            receive_drops=drops(self._inodes()),
            memory_bytes=_memory(),
            own_services=process.files.own.services if process.files.own is not None else 0,
            top_names=tuple((to_text(name), count) for name, count in counters.names.most(MOST_TOP)),  # type: ignore[arg-type]
            top_sources=tuple((str(source), count) for source, count in counters.sources.most(MOST_TOP)),
            faults=(*process.binding_faults, *process.files.faults),
            bounds_s=BUCKETS_S,
        )

    def _inodes(self) -> set[int]:
        found = set()
        for one in self._process.opened:
            with suppress(OSError):
                found.add(os.fstat(one.fileno()).st_ino)
        return found

    def _upstreams(self, now_s: float) -> Iterator[UpstreamStatus]:
        servers = self._process.servers
        for zone in self._process.answering.zones.all:
            listed = servers.cluster if zone.kind == "cluster" else zone.servers if zone.kind == "stub" else ()
            if zone.kind == "other":
                servers.of(zone)
                listed = servers.node
            for one in listed:
                yield self._upstream(zone.label, one, now_s)

    def _upstream(self, zone: str, server: Server, now_s: float) -> UpstreamStatus:
        counters, health = self._process.counters, self._process.flights.healths.of(server)
        times = counters.upstream_times.get(str(server))
        return UpstreamStatus(
            zone=zone,
            address=str(server),
            protocol=server.protocol,
            why=self._process.servers.why.get(server, ""),
            round_trip_s=health.smoothed_s,
            is_up=not health.is_out(now_s),
            is_loop=server in self._process.servers.looping,
            asked=health.asked,
            failures={reason: count for (one, reason), count in counters.failures.items() if one == str(server)},
            durations=_durations(times) if times is not None else None,
        )

    def explain(self, name: str, type_: str) -> Explanation:
        """Raises Malformed or ValueError where it is no question."""
        process = self._process
        wire, kind = to_wire(name), type_number(type_)
        if kind is None:
            raise ValueError(f"{type_!r} is no type of records; expected one such as A, AAAA, SRV or TYPE65")
        now_s = process.now_s()
        zone = process.answering.zones.of(wire)
        cached = tuple(_cached(one, wire, now_s) for one in process.cache.about(wire) if one.key[-1] == 0)
        own = process.files.own
        if own is not None and own.is_own(wire):
            return own_explanation(own, wire, kind, zone.label, cached)
        if process.answering.is_cut(wire, zone):
            return Explanation(name=to_text(wire), zone=zone.label, kind="denied", code=NXDOMAIN, cached=cached)
        upstreams = tuple(_said(one, process.servers.why.get(one, "")) for one in process.servers.of(zone))
        return Explanation(name=to_text(wire), zone=zone.label, kind=zone.kind, cached=cached, upstreams=upstreams)


def _said(server: Server, why: str) -> str:
    return f"{server} by {server.protocol}" + (f" ({why})" if why else "")


def _durations(one: Histogram) -> Durations:
    one.settle()
    return Durations(tuple(one.counts), one.sum_s)


def _cached(entry: Entry, name: bytes, now_s: float) -> Cached:
    kind = entry.key[-5] << 8 | entry.key[-4]
    section = entry.key[:-5] + entry.key[-5:-1]
    question = Question(0, 0, name, section, key_of(name, kind), kind, IN)
    return Cached(
        type=type_text(kind) if kind != ALL_TYPES else "all types",
        code=entry.code,
        age_s=now_s - entry.stored_s,
        left_s=max(0.0, entry.until_s - now_s),
        hits=entry.hits,
        is_stale=entry.until_s <= now_s < entry.keep_s,
        records=tuple(_records(entry.answer(question, now_s))),
    )


def _records(text: bytes) -> Iterable[str]:
    for one in read_answer(text).answers:
        yield f"{to_text(one.owner)} {one.ttl} {type_text(one.type)} {data_text(one.type, plain_data(text, one))}"


def _memory() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0

# SPDX-License-Identifier: Apache-2.0
"""Addresses at which names are answered, and servers that are asked."""

from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import dns_pb2 as pb

COLUMNS: Columns[pb.DnsLine] = (
    Column("KIND", lambda one: one.kind),
    Column("NAME", lambda one: one.name),
    Column("ZONE", lambda one: one.zone),
    Column("STATE", lambda one: one.state),
    Column("RATE", lambda one: f"{one.questions_per_second:.1f}/s" if one.kind == "address" else ""),
    Column("HITS", lambda one: f"{one.hit_percent:.0f}%" if one.kind == "address" else ""),
    Column("TIME", lambda one: f"{one.milliseconds:.2f}ms" if one.milliseconds else ""),
    Column("ASKED", lambda one: str(one.asked)),
    Column("WHY", lambda one: one.why),
    Column("TOP NAMES", lambda one: ", ".join(one.top_names), wide=True),
    Column("TOP SOURCES", lambda one: ", ".join(one.top_sources), wide=True),
    Column("MEMORY", lambda one: f"{one.memory_bytes >> 20}MiB" if one.memory_bytes else "", wide=True),
    Column("ENTRIES", lambda one: str(one.entries) if one.kind == "address" else "", wide=True),
)


def _listing(answer: pb.GetDnsResponse) -> AnyListing:
    none = answer.problem or "no address is answered at"
    return Listing("Dns", answer.lines, COLUMNS, lambda one: f"dns/{one.name}", none)


SHOWN = shown_by("kepd.v1.DnsService/GetDns", pb.GetDnsRequest(), pb.GetDnsResponse, _listing)

# SPDX-License-Identifier: Apache-2.0
"""Addresses at which names are answered, and servers that are asked."""

from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("dns", "name", has_namespace=False)


def _of_address(line: Object, text: str) -> str:
    return text if line["status"]["kind"] == "address" else ""


COLUMNS: Columns[Object] = (
    Column("KIND", lambda line: line["status"]["kind"]),
    Column("NAME", lambda line: line["status"]["name"]),
    Column("ZONE", lambda line: line["status"]["zone"]),
    Column("STATE", lambda line: line["status"]["state"]),
    Column("RATE", lambda line: _of_address(line, f"{line['status']['questionsPerSecond']:.1f}/s")),
    Column("HITS", lambda line: _of_address(line, f"{line['status']['hitPercent']:.0f}%")),
    Column("TIME", lambda line: f"{line['status']['milliseconds']:.2f}ms" if line["status"]["milliseconds"] else ""),
    Column("ASKED", lambda line: str(line["status"]["asked"])),
    Column("WHY", lambda line: line["status"]["why"]),
    Column("TOP NAMES", lambda line: ", ".join(line["status"]["topNames"]), wide=True),
    Column("TOP SOURCES", lambda line: ", ".join(line["status"]["topSources"]), wide=True),
    Column("MEMORY", lambda line: f"{memory >> 20}MiB" if (memory := line["status"]["memoryBytes"]) else "", wide=True),
    Column("ENTRIES", lambda line: _of_address(line, str(line["status"]["entries"])), wide=True),
)


SHOWN = own_kind("DnsService", "Dns", "no address is answered at", COLUMNS)

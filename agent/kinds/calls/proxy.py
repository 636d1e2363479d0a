# SPDX-License-Identifier: Apache-2.0
"""Calls through the CRI proxy, by method, with what it added."""

from agent.kinds.calls.holds import seconds_text
from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("proxy", "method", has_namespace=False)


def _ms(seconds: float) -> str:
    return f"≤ {seconds * 1e3:g} ms"


COLUMNS: Columns[Object] = (
    Column("METHOD", lambda method: method["metadata"]["name"]),
    Column("CALLS", lambda method: str(method["status"]["calls"])),
    Column("FAILED", lambda method: str(method["status"]["failures"])),
    Column("ADDED P50", lambda method: _ms(method["status"]["addedP50Seconds"])),
    Column("ADDED P99", lambda method: _ms(method["status"]["addedP99Seconds"])),
    Column("HOLDS", lambda method: str(method["status"]["holds"])),
    Column("HELD", lambda method: seconds_text(method["status"]["heldSeconds"])),
)


SHOWN = own_kind("CriProxyService", "ProxyMethod", "no calls yet", COLUMNS)

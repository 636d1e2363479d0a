# SPDX-License-Identifier: Apache-2.0
"""What is in the kernel for Services."""

from agent.kinds.kind import Kind
from agent.kinds.shown import own_kind
from agent.kinds.table import Column, Columns, Object

KIND = Kind("rules", "rule", has_namespace=False)

COLUMNS: Columns[Object] = (
    Column("FAMILY", lambda rule: rule["status"]["family"]),
    Column("MAP", lambda rule: rule["status"]["map"]),
    Column("KEY", lambda rule: rule["status"]["key"]),
    Column("LEADS TO", lambda rule: rule["status"]["data"]),
    Column("SERVICE", lambda rule: rule["status"]["service"]),
)


SHOWN = own_kind(
    "ServiceProxyService",
    "Rule",
    "no rules",
    COLUMNS,
    called=lambda rule: f"rule/{rule['status']['map']}/{rule['status']['key']}",
)

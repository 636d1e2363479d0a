# SPDX-License-Identifier: Apache-2.0
"""Where logs of the node meet the programs and files that they are read from."""

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

from agent.config.document import Configuration
from agent.drivers.node_logs.files import LogFiles
from agent.drivers.node_logs.programs import Programs
from agent.observe.run.node_logs import JOURNALCTL, LogRules, NodeLogs

LOCAL = Path("/etc/localtime")


def has_journalctl() -> bool:
    return Programs().has(JOURNALCTL)


def wire_node_logs(configuration: Callable[[], Configuration]) -> NodeLogs:
    def rules() -> LogRules:
        given = configuration().telemetry.node_logs
        return LogRules(
            is_on=given.enabled,
            units=given.units,
            directories=given.directories,
            journal=given.journal,
            most_bytes=given.max_bytes,
        )

    return NodeLogs(LogFiles, Programs(), rules, lambda: datetime.now(_zone()))


@cache
def _zone() -> tzinfo:
    """That of the node, which times in log files are of."""
    try:
        with LOCAL.open("rb") as content:
            return ZoneInfo.from_file(content)
    except (OSError, ValueError):
        return UTC

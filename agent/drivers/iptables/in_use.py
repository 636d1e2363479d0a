# SPDX-License-Identifier: Apache-2.0
"""Which legacy tables the kernel has, without making any by asking."""

from collections.abc import Mapping
from pathlib import Path

import structlog

from agent.model.nft_table import Family

__all__ = ["legacy_names"]

log = structlog.get_logger(plane="services")

NAMES: Mapping[Family, Path] = {"IPv4": Path("/proc/net/ip_tables_names"), "IPv6": Path("/proc/net/ip6_tables_names")}


def legacy_names(family: Family, names: Mapping[Family, Path] = NAMES) -> str:
    """As the kernel writes them. It tells root only; who is not root could not look into one either."""
    try:
        return names[family].read_text()
    except FileNotFoundError:
        return ""
    except PermissionError as error:
        log.warning("legacy_tables_unread", family=family, error=str(error))
        return ""

# SPDX-License-Identifier: Apache-2.0
"""What a node's control groups are like, as far as pods need it."""

import msgspec


class GroupShape(msgspec.Struct, frozen=True, kw_only=True):
    """`controllers` are those that limits can be given to; `hugepage_bytes` the sizes of pages that can be counted."""

    version: int = 1
    controllers: frozenset[str] = frozenset({"cpu", "memory", "pids"})
    hugepage_bytes: tuple[int, ...] = ()
    has_swap_limit: bool = False
    swap_bytes: int = 0
    has_cpu_burst: bool = False

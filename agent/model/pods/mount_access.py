# SPDX-License-Identifier: Apache-2.0
"""Who may use what is mounted. Pure."""

import msgspec


class Access(msgspec.Struct, frozen=True):
    """Of the top of a file system. Without a group it is root's."""

    mode: int
    group: int | None = None

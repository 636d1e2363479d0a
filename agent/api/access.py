# SPDX-License-Identifier: Apache-2.0
"""Who may call what: levels by uid and group.

Root may everything, and so may the user the daemon runs as, who could end or trace it anyway. A group that does not
exist admits no caller. Never: looks at what a caller says about itself, only at what the kernel says (peer.py).
"""

import grp

import msgspec

from agent.api.errors import ApiError, not_permitted
from agent.api.peer import Peer
from agent.wire.kepd.v1 import access_pb2

LEVEL_NAMES: dict[int, str] = {
    access_pb2.LEVEL_READ: "read",
    access_pb2.LEVEL_OPERATE: "operate",
    access_pb2.LEVEL_ADMIN: "admin",
}


def find_gid(group: str) -> int | None:
    if group.isdecimal():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid if group else None
    except KeyError:
        return None


class AccessRule(msgspec.Struct, frozen=True):
    read_gid: int | None
    operate_gid: int | None
    read_group: str = ""
    own_uid: int = 0

    @property
    def gids(self) -> list[int]:
        """Groups that have a level and so must be able to connect."""
        return list(dict.fromkeys(gid for gid in (self.read_gid, self.operate_gid) if gid is not None))

    def level_of(self, peer: Peer) -> access_pb2.Level:
        """The highest level that a caller may use; unspecified for none."""
        if peer.uid in {0, self.own_uid}:
            return access_pb2.LEVEL_ADMIN
        groups = peer.groups | {peer.gid}
        if self.operate_gid is not None and self.operate_gid in groups:
            return access_pb2.LEVEL_OPERATE
        return (
            access_pb2.LEVEL_READ
            if self.read_gid is not None and self.read_gid in groups
            else access_pb2.LEVEL_UNSPECIFIED
        )

    def check(self, method: str, level: int, peer: Peer | None) -> ApiError | None:
        """The refusal, or None if the peer may call a method of that level."""
        needed = LEVEL_NAMES.get(level, "admin")
        if peer is None:
            return not_permitted(method, needed, "an unknown process", "connect through the API socket")
        # A level without a name is a newer one than this table knows.
        asked = level if level in LEVEL_NAMES else access_pb2.LEVEL_ADMIN
        if asked <= self.level_of(peer):
            return None
        remedy = f"join group {self.read_group}" if needed == "read" and self.read_group else "call it as root"
        return not_permitted(method, needed, str(peer), remedy)

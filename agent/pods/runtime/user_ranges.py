# SPDX-License-Identifier: Apache-2.0
"""Users of their own for pods: which ids of the node a pod's ids are (KEP-127).

A range of 65536 per pod, beginning at a multiple of that and never among the node's own, from what /etc/subuid and
/etc/subgid leave to us.
"""

from collections.abc import Iterable, Sequence

import msgspec

from agent.model.text.json_text import decode_json

RANGE_LENGTH = 1 << 16
HIGHEST_ID = (1 << 32) - 1


class IdSource(msgspec.Struct, frozen=True):
    first: int = RANGE_LENGTH
    count: int = HIGHEST_ID + 1 - RANGE_LENGTH


class _Mapping(msgspec.Struct, frozen=True, rename="camel"):
    """As a kubelet writes it, so that either finds the other's."""

    host_id: int
    container_id: int
    length: int


class _Stored(msgspec.Struct, frozen=True, rename="camel"):
    uid_mappings: tuple[_Mapping, ...]
    gid_mappings: tuple[_Mapping, ...]


def encode_range(first: int) -> bytes:
    mapping = (_Mapping(first, 0, RANGE_LENGTH),)
    return msgspec.json.encode(_Stored(mapping, mapping))


def decode_range(content: bytes) -> int:
    """The first id of the node. Raises ValueError for what is no range of ours."""
    stored = decode_json(content, _Stored)
    if len(stored.uid_mappings) != 1 or stored.uid_mappings != stored.gid_mappings:
        raise ValueError("users and groups must have one and the same mapping")
    (one,) = stored.uid_mappings
    is_ours = one.host_id >= RANGE_LENGTH and not one.host_id % RANGE_LENGTH and one.host_id < HIGHEST_ID
    if not is_ours or (one.container_id, one.length) != (0, RANGE_LENGTH):
        text = f"must map 0 and {RANGE_LENGTH} ids to a multiple of that"
        raise ValueError(f"{one.container_id} and {one.length} ids to {one.host_id}: {text}")
    return one.host_id


def free_range(taken: Iterable[int], source: IdSource) -> int | None:
    used = set(taken)
    lowest = -(-max(source.first, RANGE_LENGTH) // RANGE_LENGTH) * RANGE_LENGTH
    past = min(source.first + source.count, HIGHEST_ID + 1)
    ranges = range(lowest, past - RANGE_LENGTH + 1, RANGE_LENGTH)
    return next((first for first in ranges if first not in used), None)


def id_source(user_ids: str, group_ids: str, user: str) -> IdSource:
    """What both files give to our user; everything above the node's own if neither names it. Raises ValueError."""
    users, groups = _given(user_ids, user), _given(group_ids, user)
    if not users and not groups:
        return IdSource()
    if users != groups or len(users) != 1:
        text = f"/etc/subuid and /etc/subgid must give one and the same range to {user}"
        raise ValueError(f"{text}; they give {_told(users)} and {_told(groups)}")
    first, count = users[0]
    return IdSource(first, count)


def _given(text: str, user: str) -> list[tuple[int, int]]:
    found = []
    for line in text.splitlines():
        words = line.strip().split(":")
        if len(words) == 3 and words[0] == user and words[1].isdecimal() and words[2].isdecimal():
            found.append((int(words[1]), int(words[2])))
    return found


def _told(ranges: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{first}+{count}" for first, count in ranges) or "none"

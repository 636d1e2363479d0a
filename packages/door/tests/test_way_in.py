# SPDX-License-Identifier: Apache-2.0
"""How one comes to a door: by setup, and with a kubeconfig for what one may."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.api.access import AccessRule
from agent.api.errors import ApiError
from agent.api.peer import CALLER, Peer
from agent.api.way_in import WayIn
from agent.host.setup.contents import DOOR_LINE
from agent.host.setup.plan import DROP_IN, SetupFindings, plan_setup
from kepd_door.run.keys import DoorKeys
from tests.host.setup.test_plan import BARE, written


def test_setup_opens_the_door_where_it_is_asked_for_and_keeps_it_open() -> None:
    opened = written(plan_setup(replace(BARE, is_with_door=True)))[DROP_IN].content
    there = replace(BARE, found={**BARE.found, DROP_IN: SetupFindings(kind="file", content=opened)})
    given = replace(BARE, is_with_door=True, given={"api.door.address": ""})

    assert DOOR_LINE in opened.decode()
    assert DROP_IN not in written(plan_setup(there))
    assert DOOR_LINE not in written(plan_setup(BARE))[DROP_IN].content.decode()
    assert DOOR_LINE not in written(plan_setup(given))[DROP_IN].content.decode()


@pytest.mark.parametrize(
    ("groups", "uid", "levels"),
    [
        ({7}, 1000, ["read"]),
        ({7, 8}, 1000, ["read", "operate"]),
        (set(), 0, ["read", "operate", "admin"]),
        (set(), 9, []),
    ],
)
def test_nobody_gets_more_than_they_have(groups: set[int], uid: int, levels: list[str]) -> None:
    way = WayIn(lambda: AccessRule(7, 8), lambda level: level)
    token = CALLER.set(Peer(1, uid, 99, frozenset(groups)))
    given = []
    try:
        for level in ("read", "operate", "admin", "root"):
            try:
                given.append(way.kubeconfig(level))
            except ApiError:
                continue
    finally:
        CALLER.reset(token)

    assert given == levels


async def test_keys_are_kept_and_what_is_removed_is_made_anew(tmp_path: Path) -> None:
    first = DoorKeys(tmp_path / "door", "127.0.0.1:1", "")
    await first.open()
    again = DoorKeys(tmp_path / "door", "127.0.0.1:1", "")
    await again.open()
    assert (first.token("read"), first.authority) == (again.token("read"), again.authority)
    (tmp_path / "door" / "authority.key").unlink()
    (tmp_path / "door" / "tokens.json").write_bytes(b"{")
    other = DoorKeys(tmp_path / "door", "127.0.0.1:1", "")
    await other.open()

    assert other.token("read") != first.token("read")
    assert other.authority != first.authority
    assert (tmp_path / "door" / "tokens.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "door").stat().st_mode & 0o777 == 0o700

# SPDX-License-Identifier: Apache-2.0
import pytest
from google.rpc import error_details_pb2

from agent.api.access import AccessRule, find_gid
from agent.api.peer import Peer
from agent.api.service import level_of
from agent.wire.kepd.v1 import access_pb2, node_pb2, pod_pb2

RULE = AccessRule(read_gid=100, operate_gid=200, read_group="kepd")
READ, OPERATE, ADMIN = access_pb2.LEVEL_READ, access_pb2.LEVEL_OPERATE, access_pb2.LEVEL_ADMIN


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        (Peer(1, 0, 0), {READ, OPERATE, ADMIN}),
        (Peer(1, 5, 100), {READ}),
        (Peer(1, 5, 7, frozenset({100})), {READ}),
        (Peer(1, 5, 7, frozenset({200})), {READ, OPERATE}),
        (Peer(1, 5, 7), set()),
        (None, set()),
    ],
)
def test_levels_by_uid_and_group(peer: Peer | None, allowed: set[int]) -> None:
    """API-05."""
    assert allowed == {level for level in (READ, OPERATE, ADMIN) if RULE.check("/m", level, peer) is None}


def test_the_user_the_daemon_runs_as_may_everything_and_no_other_user() -> None:
    rule = AccessRule(None, None, own_uid=5)
    assert rule.check("/m", ADMIN, Peer(1, 5, 7)) is None
    assert rule.check("/m", READ, Peer(1, 6, 7)) is not None


def test_an_rpc_without_a_level_is_for_root_alone() -> None:
    assert RULE.check("/m", access_pb2.LEVEL_UNSPECIFIED, Peer(1, 5, 200, frozenset({100, 200}))) is not None
    assert RULE.check("/m", access_pb2.LEVEL_UNSPECIFIED, Peer(1, 0, 0)) is None


def test_every_rpc_of_ours_has_a_level() -> None:
    for module in (node_pb2, pod_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert level_of(method) != access_pb2.LEVEL_UNSPECIFIED, method.full_name


def test_a_refusal_says_what_is_needed_and_how_to_get_it() -> None:
    """API-03."""
    refusal = RULE.check("/kepd.v1.NodeService/GetNode", READ, Peer(1, 5, 7))
    assert refusal is not None
    info = error_details_pb2.ErrorInfo()
    assert refusal.status().details[0].Unpack(info)

    assert "needs level read" in refusal.text
    assert "join group kepd" in refusal.text
    assert (info.reason, info.domain, info.metadata["level"]) == ("NOT_PERMITTED", "kepd.dev", "read")


def test_groups_are_found_by_name_and_number() -> None:
    assert find_gid("root") == 0
    assert find_gid("1234") == 1234
    assert find_gid("no-such-group") is None
    assert find_gid("") is None

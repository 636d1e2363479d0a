# SPDX-License-Identifier: Apache-2.0
"""The plane as a whole: what it says of its node."""

import msgspec
from structlog.testing import capture_logs

from agent.drivers.clock.fake import FakeClock
from agent.drivers.nft.fake import FakeKernel, FakeNft
from agent.model.kube_objects import Node
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import Intake
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane


def test_a_node_that_has_not_arrived_yet_is_not_called_incomplete() -> None:
    """IN-17, TY-3: its addresses are missing only once it is here without them."""
    waits_for = ("services", "slices", "node", "interfaces")
    intake = Intake(NodeSettings(node="n1"), tell=lambda _event: None, started_s=0.0, waits_for=waits_for)
    ServicesPlane(
        intake, {"IPv4": NftRuleset(FakeNft("IPv4", FakeKernel()))}, clock=FakeClock(), tell=lambda _event: None
    )
    with capture_logs() as before:
        intake.set_service_ranges(["10.96.0.0/16"])
    with capture_logs() as after:
        intake.set_node(msgspec.json.decode(b'{"metadata": {"name": "n1"}}', type=Node))

    assert before == []
    assert [line["event"] for line in after] == ["service_node_incomplete"]

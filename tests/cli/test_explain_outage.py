# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain outage`."""

from google.protobuf.timestamp_pb2 import Timestamp

from agent.cli.commands.planes.services import outage_lines
from agent.wire.kepd.v1 import service_proxy_pb2 as pb


def test_it_says_since_when_and_what_is_done() -> None:
    """SVN-125."""
    answer = pb.ExplainOutageResponse(
        mode="judge",
        phase="alone",
        since=Timestamp(seconds=1000),
        snapshot=Timestamp(seconds=400),
        lines=["Services and endpoints stay as they were last told"],
        checked=40,
        dead_total=3,
    )

    assert list(outage_lines(answer, 1061.0)) == [
        "OUTAGE alone for 61s, services.outage: judge",
        "- Services and endpoints stay as they were last told",
        "- this kepd began with a snapshot that a server vouched for 11m ago",
        "- 3 of 40 endpoints are dead",
    ]


def test_switched_off_it_says_what_that_means() -> None:
    (line,) = outage_lines(pb.ExplainOutageResponse(mode="off"), 0.0)

    assert "services.outage is off" in line

# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain eviction`."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from agent.cli.commands.pods.eviction import eviction_lines
from agent.wire.kepd.v1 import node_pb2 as pb

MI = 1 << 20


def test_what_is_left_and_who_would_go_first() -> None:
    """EVN-12."""
    answer = pb.ExplainEvictionResponse(
        on=True,
        conditions=["MemoryPressure"],
        signals=[
            pb.EvictionSignal(
                signal="memory.available", kind="soft", available=150 * MI, capacity=4096 * MI, line=200 * MI,
                met_since=Timestamp(seconds=1), grace=Duration(seconds=90),
            ),
            pb.EvictionSignal(signal="nodefs.inodesFree", kind="hard", available=900, capacity=1000, line=50),
            pb.EvictionSignal(signal="imagefs.available", kind="hard", message="cannot be seen from here"),
        ],
        candidates=[
            pb.EvictionCandidate(
                signal="memory.available", namespace="d", name="a", rank=1, used=812 * MI, requested=MI
            ),
            pb.EvictionCandidate(signal="memory.available", namespace="d", name="b", why="critical pods stay"),
        ],
    )  # fmt: skip
    lines = [" ".join(line.split()) for line in eviction_lines(answer)]

    assert lines[0] == "CONDITIONS MemoryPressure"
    assert "memory.available soft 150.0Mi of 4.0Gi 200.0Mi -50.0Mi met, acted on after 90 s" in lines
    assert "nodefs.inodesFree hard 900 of 1000 50 850 ok" in lines
    assert "imagefs.available hard - 0 - cannot be seen from here" in lines
    assert "1 d/a 812.0Mi 1.0Mi 0" in lines
    assert "- d/b 0 0 0 critical pods stay" in lines


def test_where_nobody_is_evicted_it_says_so() -> None:
    assert list(eviction_lines(pb.ExplainEvictionResponse(message="off here"))) == ["off here"]

# SPDX-License-Identifier: Apache-2.0
"""The CRI proxy under a memory limit while a client of its socket does its worst: the kubelet beside it is answered.

Whoever reaches that socket is root, so that this is about accidents and about what a mistake may cost.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Lab
from tests.lab.limited import Limited, limited
from tests.node.attacked import attacked
from tests.node.hostile_clients import CLIENTS

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

LIMIT_MIB = 256
"""Of kepd-cri.service half of MemoryMax."""
ROUNDS = 10


class Node:
    def __init__(self, kepd: Kepd, group: Limited) -> None:
        self.kepd, self.group = kepd, group
        self.link = kepd.folder / "run" / "cri" / "kubelet.sock"
        options = [("grpc.default_authority", "localhost")]
        self.channel = grpc.insecure_channel(f"unix:{self.link}", options=options)

    def honest(self) -> float:
        """The slowest of some calls as a kubelet makes them, over the connection that it has."""
        calls = [
            ("Version", pb.VersionRequest(), pb.VersionResponse),
            ("ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse),
        ]
        took_s = []
        for _ in range(ROUNDS):
            for name, request, answer in calls:
                invoke = self.channel.unary_unary(
                    f"/runtime.v1.RuntimeService/{name}",
                    request_serializer=lambda one: one.SerializeToString(),
                    response_deserializer=answer.FromString,  # type: ignore[attr-defined]
                )
                began_s = time.monotonic()
                invoke(request, timeout=30)
                took_s.append(time.monotonic() - began_s)
            time.sleep(0.05)
        return max(took_s)


@pytest.fixture
def node(lab: Lab, short_path: Path, free_port: int) -> Iterator[Node]:
    config = short_path / "kubelet.yaml"
    config.write_text("serializeImagePulls: false\nregistryPullQPS: 0\n")
    extra = f"proxy: {{kubeletConfig: {config}}}\n"
    with (
        limited(LIMIT_MIB << 20) as group,
        Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra, prefix=group.prefix()) as kepd,
    ):
        kepd.start("--planes", "proxy,images").wait_ready()
        found = Node(kepd, group)
        yield found
        found.channel.close()
        assert "Traceback" not in kepd.log.read_text(), kepd.log.read_text()[-4000:]


def test_a_hostile_client_of_the_proxy_is_alone_with_what_it_does(node: Node) -> None:
    """FX-2: HPACK and CONTINUATION floods, rapid resets, 10 000 connections, slow readers, requests without an end."""
    print(f"at the start: honest calls in {node.honest():.2f} s")
    for attack in CLIENTS:
        attacked(node.kepd, node.group, attack, str(node.link), node.honest, as_nobody=False)
    print(f"afterwards: honest calls in {node.honest():.2f} s")

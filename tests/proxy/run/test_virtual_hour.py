# SPDX-License-Identifier: Apache-2.0
"""An hour of a kubelet whose strict pod is refused every ten seconds, on a virtual clock and one connection.

How long a call takes is counted in turns of both ends, for a call that finds its windows gone needs more of them.
"""

import statistics
from math import inf

from agent.proxy.frames.layout import framed
from agent.proxy.run.link import ProxyConnection
from agent.proxy.run.link_limits import BufferBudget
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.proxy.frames.streams import WINDOW, End, Network
from tests.proxy.run.test_held_calls import House

HOUR_S = 3600
RETRY_S = 10
STRICT = {"kepd.dev/sidecars": "side", "kepd.dev/mains": "main", "kepd.dev/start-policy": "strict"}
SERVICE = "/runtime.v1.RuntimeService/"
CREATE, LIST, STATUS = (SERVICE + name for name in ("CreateContainer", "ListPodSandbox", "Status"))
LISTED = framed(b"x" * 70_000)


class OneByOne(Network):
    """A network with the real judge; what arrives comes whole."""

    def __init__(self, house: House) -> None:
        super().__init__()
        self.link = ProxyConnection(house.judge, lambda _link: None, lambda _link: None, BufferBudget(inf))
        self.client = End(self.link.front, is_client=True, random=self.random)
        self.runtime = End(self.link.back, is_client=False, random=self.random)
        for end in (self.client, self.runtime):
            end._pieces = lambda data: [data] if data else []  # type: ignore[method-assign]
        self.link.front.connection_made(self.client.pipe)
        self.link.back.connection_made(self.runtime.pipe)
        self.settle()

    def call(self, path: str, request: bytes, answer: bytes = b"") -> int:
        """The turns that it took until the client had its status."""
        stream, turns, is_asked = self.ask(path), 0, False
        to_send, to_answer = request, answer
        while stream not in self.client.status:
            turns += 1
            assert turns < 1000, f"{path} never ends"
            to_send = self.send(self.client, stream, to_send, ends=True)
            self.client.exchange()
            self.runtime.exchange()
            if self.runtime.ended[stream] and not is_asked:
                is_asked = True
                headers = [(":status", "200"), ("content-type", "application/grpc")]
                self.runtime.http.send_headers(stream, headers)
            if is_asked and to_answer:
                to_answer = self.send(self.runtime, stream, to_answer, ends=False)
            if is_asked and not to_answer and stream not in self.client.status:
                self.runtime.http.send_headers(stream, [("grpc-status", "0")], end_stream=True)
                is_asked = False
                self.runtime.ended[stream] = 0
            self.runtime.exchange()
            self.client.exchange()
        self.settle()
        return turns

    def send(self, end: End, stream: int, content: bytes, *, ends: bool) -> bytes:
        """What finds no room yet."""
        while content and stream not in end.reset and stream not in self.client.status:
            size = min(end.http.local_flow_control_window(stream), 16_384, len(content))
            if size <= 0:
                return content
            end.http.send_data(stream, content[:size], end_stream=ends and size == len(content))
            content = content[size:]
        return b""


async def test_an_hour_of_refusals_slows_no_other_call() -> None:
    """FI-1: 360 refusals of up to 200 KB and 7 200 calls of a kubelet beside them."""
    house = House()
    net = OneByOne(house)
    refused: list[int] = []
    turns: dict[str, list[int]] = {LIST: [], STATUS: []}
    for second in range(HOUR_S):
        if second % RETRY_S == 0:
            padding = (10, 8_000, 60_000, 200_000)[second // RETRY_S % 4]
            refused.append(net.call(CREATE, framed(create(padding))))
            assert net.client.status[net.client.http.highest_outbound_stream_id] == "14"
        turns[LIST].append(net.call(LIST, framed(b""), LISTED))
        turns[STATUS].append(net.call(STATUS, framed(b"")))
        await house.clock.advance(1.0)

    assert len(refused) == HOUR_S // RETRY_S
    for taken in turns.values():
        assert max(taken) <= 2 * statistics.median(taken)
    assert (net.client.window, net.runtime.window) == (WINDOW, WINDOW)
    assert not net.link.calls
    assert not house.state.holds


def create(padding: int) -> bytes:
    pod = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name="strict", uid="u", namespace="default"), annotations=STRICT
    )
    main = pb.ContainerConfig(metadata=pb.ContainerMetadata(name="main"), labels={"pad": "x" * padding})
    request = pb.CreateContainerRequest(pod_sandbox_id="f" * 64, config=main, sandbox_config=pod)
    return request.SerializeToString()

# SPDX-License-Identifier: Apache-2.0
"""FX-2: near its limit kepd gives up history and lists, and says so."""

import asyncio
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from agent.api.access import AccessRule
from agent.api.peer import Peer
from agent.api.service import MethodTable
from agent.host.memory_relief import GroupMemory, MemoryRelief, MemoryUsage
from agent.kit.event_ring import EventRing
from agent.model.component import Board, State
from agent.model.event import Event
from agent.wire.kepd.v1 import object_pb2

MIB = 1 << 20


class Over(Exception):
    """Nothing more to look at."""


class Clock:
    """Turns over when a test lets it."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        self.at_s += seconds
        await asyncio.sleep(0)


def event(number: int) -> Event:
    return Event(is_warning=False, reason=f"R{number}", message="m", plane="pods", object_name=f"web{number}")


async def test_short_memory_costs_history_once_in_a_while_and_ends_with_a_margin(tmp_path: Path) -> None:
    parts = [0.5, *[0.86] * 40, 0.8, 0.8, 0.7, 0.8]
    sizes = iter([MemoryUsage(int(part * 1000) * MIB, 1000 * MIB) for part in parts])
    ring = EventRing(tmp_path, 1000, lambda: 0.0)
    for number in range(100):
        ring.tell(event(number))
    shed: list[float] = []
    short: list[bool] = []
    clock = Clock()

    def look() -> MemoryUsage:
        short.append(relief.is_short)
        size = next(sizes, None)
        if size is None:
            raise Over
        return size

    given_back: list[float] = []
    sheds = [ring.shed, lambda: shed.append(clock.at_s)]
    relief = MemoryRelief(look, sheds, ring.tell, clock, lambda: given_back.append(clock.at_s))  # type: ignore[arg-type]
    advice = []
    with pytest.raises(Over):
        await relief.run(Board(lambda: 0.0).add("memory", State.STARTING))
    relief._judge(MemoryUsage(900 * MIB, 1000 * MIB))
    relief._usage = MemoryUsage(900 * MIB, 1000 * MIB)
    advice = await relief.advice()
    told = [one for one in ring.events.items.values() if one.reason == "MemoryShort"]

    assert shed[:3] == [2.0, 32.0, 62.0]
    assert given_back == [60.0]
    assert short[1:4] == [False, True, True]
    assert short[-5:] == [True, True, True, False, False], "between the two bounds it stays as it is"
    assert len(ring.events.items) < 30
    assert "860 of 1000 MiB" in told[0].message
    assert (advice[0].found, advice[0].wanted) == ("900 MiB", "below 850 MiB")


@pytest.mark.parametrize(
    ("membership", "files", "usage"),
    [
        (
            "3:cpu,cpuacct:/x\n5:memory:/kepd\n",
            {
                "memory/kepd/memory.usage_in_bytes": "500", "memory/kepd/memory.limit_in_bytes": "1000",
                "memory/kepd/memory.stat": "cache 400\ntotal_inactive_file 100\n",
            },
            MemoryUsage(400, 1000),
        ),
        (
            "0::/system.slice/kepd.service\n",
            {
                "cgroup.controllers": "memory", "system.slice/kepd.service/memory.current": "700",
                "system.slice/kepd.service/memory.high": "800", "system.slice/kepd.service/memory.max": "1000",
                "system.slice/kepd.service/memory.stat": "anon 1\ninactive_file 50\n",
            },
            MemoryUsage(650, 800),
        ),
        (
            "0::/kubepods/pod1/c1\n",
            {
                "cgroup.controllers": "memory", "memory.current": "7", "memory.high": "max", "memory.max": "9",
                "memory.stat": "inactive_file 0\n",
            },
            MemoryUsage(7, 9),
        ),
        (
            "5:memory:/kepd\n",
            {"memory/kepd/memory.usage_in_bytes": "5", "memory/kepd/memory.limit_in_bytes": str(2**63 - 4096)},
            None,
        ),
        ("5:memory:/kepd\n", {}, None),
        ("nonsense", {}, None),
    ],
)  # fmt: skip
def test_the_limit_is_that_of_our_control_group(
    tmp_path: Path, membership: str, files: dict[str, str], usage: MemoryUsage | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert GroupMemory(tmp_path).look() == usage


class Ended(Exception):
    """What gRPC's context raises."""


class Call:
    def __init__(self, peer: str) -> None:
        self.who = peer
        self.code: grpc.StatusCode | None = None

    def peer(self) -> str:
        return self.who

    def set_trailing_metadata(self, metadata: object) -> None:
        del metadata

    def add_done_callback(self, callback: object) -> None:
        del callback

    async def abort(self, code: grpc.StatusCode, _details: str) -> None:
        self.code = code
        raise Ended


class Objects:
    async def list(self, _request: object) -> object_pb2.ListResponse:
        return object_pb2.ListResponse()

    async def table(self, _request: object) -> object_pb2.TableResponse:
        return object_pb2.TableResponse()

    async def get(self, _request: object) -> object_pb2.GetResponse:
        return object_pb2.GetResponse()

    def __getattr__(self, name: str) -> object:
        return None


@pytest.mark.parametrize(
    ("method", "who", "code"),
    [
        ("List", "reader", grpc.StatusCode.RESOURCE_EXHAUSTED), ("List", "root", None),
        ("Table", "reader", grpc.StatusCode.RESOURCE_EXHAUSTED), ("Get", "reader", None),
    ],
)  # fmt: skip
async def test_meanwhile_only_root_gets_lists(method: str, who: str, code: grpc.StatusCode | None) -> None:
    peers = {"root": Peer(1, 0, 0), "reader": Peer(2, 4000, 4001)}
    table = MethodTable(lambda: AccessRule(4001, None, "kepd"), lambda: peers, lambda *_: None, lambda: True)
    table.add(object_pb2.DESCRIPTOR.services_by_name["ObjectService"], Objects())
    call = Call(who)
    with suppress(Ended):
        await table._handlers[f"/kepd.v1.ObjectService/{method}"].unary_unary(b"", call)

    assert call.code is code

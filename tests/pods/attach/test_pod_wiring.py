# SPDX-License-Identifier: Apache-2.0
"""What the pods plane takes from the configuration and the machine, and when it learns about the runtime."""

import asyncio
import ipaddress
from dataclasses import replace
from pathlib import Path

from agent.config.document import Configuration
from agent.config.effective import HostFacts, fill_defaults
from agent.config.sections.pods import PodReserve
from agent.drivers.interfaces.default_route import default_addresses
from agent.kit.runtime import RuntimeWatch
from agent.model.component import Board, State
from agent.model.nodes.control_group import GroupShape
from agent.model.runtime.error import RuntimeCallFailed
from agent.model.runtime.features import RuntimeFeatures
from agent.pods.attach.settings import disk_bytes, node_facts, pod_settings
from agent.pods.plan.admit import Capacity
from agent.pods.settings import PodNodeFacts
from kepd_dns.attach.settings import pod_servers
from tests.fakes.cri import FakeCri


def configured() -> Configuration:
    return fill_defaults(Configuration(), HostFacts(host_name="n", state_directory="/state"))


def test_settings_of_pods_reach_the_plane() -> None:
    """RES-05, SEC-03, FP-20."""
    plain = configured()
    other = replace(
        plain,
        pods=replace(
            plain.pods,
            pod_pids_limit=50,
            swap="LimitedSwap",
            memory_qos=True,
            single_process_oom_kill=True,
            max_pods=7,
            reserved=PodReserve(cpu=0.5, memory=1 << 20),
        ),
    )
    before, after = (pod_settings(one, PodNodeFacts(), "me", pod_servers) for one in (plain, other))

    assert before.pods == plain.pods
    assert after.pods == other.pods
    assert before.capacity == Capacity(milli_cpus=1000, memory_bytes=1 << 30, pods=110)
    assert after.capacity == Capacity(milli_cpus=500, memory_bytes=(1 << 30) - (1 << 20), pods=7)
    assert before.seccomp_root == "/state/seccomp"
    assert before.pods.directory == "/state/pods"


def test_a_node_that_nobody_describes_describes_itself() -> None:
    """ENV-03, ENV-04: what is configured counts; else what this machine sends from."""
    facts = node_facts(configured(), GroupShape(version=2))
    named = configured()
    named = replace(named, node=replace(named.node, addresses=("192.0.2.7",)))

    assert facts.addresses == tuple(str(ipaddress.ip_address(one)) for one in default_addresses())
    assert all(not ipaddress.ip_address(one).is_loopback for one in facts.addresses)
    assert node_facts(named, GroupShape()).addresses == ("192.0.2.7",)
    assert facts.groups.version == 2
    assert min(facts.cpus, facts.memory_bytes, facts.disk_bytes) > 0
    assert all(one.endswith("thermal_throttle") for one in facts.masked)


def test_the_disk_of_a_directory_that_is_not_there_yet_is_known(tmp_path: Path) -> None:
    assert disk_bytes(tmp_path / "a" / "b") == disk_bytes(tmp_path) > 0


class Changing(FakeCri):
    """A runtime that is replaced by another version."""

    can: RuntimeFeatures = RuntimeFeatures(name="one")
    asked = 0

    async def features(self, deadline_s: float | None = None) -> RuntimeFeatures:
        self.asked += 1
        return self.can


async def test_what_a_runtime_can_do_is_learnt_when_it_comes_and_when_a_stream_broke() -> None:
    """A containerd that was upgraded answers the next look as if nothing had been; its broken stream tells."""
    cri, board = Changing(), Board(lambda: 0.0)
    watch = RuntimeWatch(cri, "fake", lambda: 0.0)
    cri.reachable = False
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch.run(board.add("runtime", State.STARTING)))
        waiting = group.create_task(watch.features())
        await asyncio.sleep(0)
        assert not waiting.done(), "nobody knows yet"
        cri.reachable = True
        watch.look_again()
        assert (await waiting).name == "one"
        cri.can = RuntimeFeatures(name="two")
        watch.look_again()
        while cri.asked < 2:
            await asyncio.sleep(0)
        assert (await watch.features()).name == "two"
        task.cancel()


async def test_a_runtime_that_does_not_say_what_it_can_do_is_there_all_the_same() -> None:
    class Silent(FakeCri):
        async def features(self, deadline_s: float | None = None) -> RuntimeFeatures:
            raise RuntimeCallFailed("Status", "no such flag")

    board = Board(lambda: 0.0)
    watch = RuntimeWatch(Silent(), "fake", lambda: 0.0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch.run(board.add("runtime", State.STARTING)))
        assert await watch.features() == RuntimeFeatures()
        assert watch.connected.is_set()
        task.cancel()

# SPDX-License-Identifier: Apache-2.0
"""A shutdown of the node is held up until real pods have ended in their order.

The bus is a real one; logind on it is a double, because the real one needs systemd as PID 1 (tests/logind.py).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.logind import LogindDouble
from tests.node.pods import Actor, Stage, pods_daemon, uptime_s

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

GROUPS = "[{priority: 0, period: 20s}, {priority: 1000, period: 10s}]"


@pytest.fixture
def logind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogindDouble]:
    with LogindDouble(tmp_path_factory.mktemp("b"), longest_s=60) as double:
        yield double


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int, logind: LogindDouble) -> Iterator[Kepd]:
    bus = {"DBUS_SYSTEM_BUS_ADDRESS": logind.address}
    with pods_daemon(
        lab, short_path, free_port, f"logLinkDirectory: '', shutdown: {{groups: {GROUPS}}}", **bus
    ) as daemon:
        yield daemon


def states(kepd: Kepd) -> dict[str, tuple[str, str]]:
    return {pod["name"]: (pod["phase"], pod.get("reason", "")) for pod in kepd.pods()}


def test_the_node_waits_for_its_pods_and_takes_them_again_when_it_stays(
    kepd: Kepd, lab: Lab, logind: LogindDouble
) -> None:
    """NSD-01 to NSD-03."""
    image = lab.push(Image(name="node/shutdown"))
    low, high, late = (Stage(kepd, image, name) for name in ("low", "high", "late"))
    low.begin([Actor("app", 1)], [Actor("net", 0.2)])
    high.begin([Actor("app", 0.3)], priority=1000)
    kepd.wait(lambda: logind.is_locked, "the lock")
    logind.announce(is_preparing=True)
    kepd.wait(lambda: "node_shutdown_announced" in kepd.log.read_text(), "the announcement arrives")
    late.write([Actor("app", 0.1)])
    kepd.wait(lambda: states(kepd).get("late-n1") == ("Failed", "NodeShutdown"), "new pods are refused")
    kepd.wait(lambda: not logind.is_locked, "the lock goes", within_s=30)
    gone_s = uptime_s()

    ends = {name: dict(stage.lines("app")) for name, stage in (("low", low), ("high", high))}
    net = dict(low.lines("net"))
    assert ends["low"]["exit"] <= net["term"]
    assert net["exit"] <= ends["high"]["term"]
    assert ends["high"]["exit"] <= gone_s + 0.01
    assert late.lines("app") == []
    assert states(kepd) == {
        "low-n1": ("Failed", "Terminated"), "high-n1": ("Failed", "Terminated"), "late-n1": ("Failed", "NodeShutdown"),
    }  # fmt: skip

    logind.announce(is_preparing=False)
    kepd.wait(lambda: late.lines("app"), "what was refused runs", within_s=30)
    kepd.wait(lambda: logind.is_locked, "the next shutdown is held up as well")

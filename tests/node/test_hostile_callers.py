# SPDX-License-Identifier: Apache-2.0
"""A whole kepd under a memory limit while callers without rights do their worst: it lives, answers and works on."""

import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml

from tests.host.other_user import passable
from tests.host.process import Kepd
from tests.lab.limited import Limited, limited
from tests.lab.namespace import Namespace
from tests.node import hostile_callers
from tests.node.attacked import attacked
from tests.node.programmed import Programmed

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

LIMIT_MIB = 224
"""Less than the smallest MemoryHigh of the units, and than the limit of the DaemonSet."""
READERS = "nogroup"
SERVICES, ENDPOINTS = 100, 100


class Node:
    def __init__(self, kepd: Kepd, group: Limited) -> None:
        self.kepd, self.group = kepd, group
        self.kernel = Programmed()
        self.turn = 0

    def honest(self) -> float:
        """Another endpoint of a Service, until the kernel has it: seconds."""
        self.turn += 1
        address = f"10.2.0.{self.turn}"
        began_s = time.monotonic()
        hidden = self.kepd.manifests / ".next"
        hidden.write_text(service("honest", 1, [address]))
        hidden.rename(self.kepd.manifests / "honest.yaml")
        self.kepd.wait(lambda: ip_address(address).packed in self.kernel.endpoint("10.96.0.1"), address, 30.0)
        return time.monotonic() - began_s

    def attacked(self, attack: Callable[..., None], argument: object, *, as_nobody: bool = True) -> None:
        attacked(self.kepd, self.group, attack, argument, self.honest, as_nobody=as_nobody)


def service(name: str, number: int, addresses: list[str]) -> str:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    return yaml.safe_dump_all(
        [
            {
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {"clusterIP": f"10.96.{number >> 8}.{number & 255}", "ports": ports},
            },
            {
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": ports,
                "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
                "endpoints": [{"addresses": [one], "conditions": {"ready": True}} for one in addresses],
            },
        ],
    )  # fmt: skip


def scenario(kepd: Kepd, group: Limited) -> None:
    with kepd:
        kepd.start("--planes", "services")
        node = Node(kepd, group)
        kepd.wait(lambda: "s7" in kepd.ctl("get", "services").stdout, "Services")
        print(f"at the start: honest work in {max(node.honest() for _ in range(3)):.2f} s")
        for caller in hostile_callers.CALLERS:
            node.attacked(caller, str(kepd.socket))
        for browser in hostile_callers.BROWSERS:
            node.attacked(browser, kepd.port)
        node.attacked(hostile_callers.expanding_files, kepd.manifests, as_nobody=False)
        print(f"afterwards: honest work in {node.honest():.2f} s")
        node.kernel.close()
        assert len(kepd.json("get", "services")["items"]) == SERVICES + 1
    assert "Traceback" not in kepd.log.read_text()


def test_callers_without_rights_neither_end_nor_stop_kepd(short_path: Path, free_port: int) -> None:
    """FX-2, FX-8, FX-9."""
    passable(short_path)
    extra = "services: {source: manifests, healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
    with Namespace() as space, limited(LIMIT_MIB << 20) as group:
        kepd = Kepd(short_path, free_port, extra=extra, prefix=group.prefix(*space.command()))
        kepd.config.write_text(kepd.config.read_text().replace("readGroup: ''", f"readGroup: {READERS}"))
        for number in range(SERVICES):
            addresses = [f"10.1.{number & 255}.{one}" for one in range(1, ENDPOINTS + 1)]
            (kepd.manifests / f"s{number}.yaml").write_text(service(f"s{number}", number + 2, addresses))
        space.call(lambda: scenario(kepd, group))

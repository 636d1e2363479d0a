# SPDX-License-Identifier: Apache-2.0
"""A whole kepd under a memory limit while callers without rights do their worst: it lives, answers and works on."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.daemon.other_user import NOBODY, passable
from tests.daemon.process import Kepd
from tests.lab.limited import Limited, limited
from tests.lab.namespace import Namespace
from tests.node import hostile_callers

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

LIMIT_MIB = 224
"""Less than the smallest MemoryHigh of the units, and than the limit of the DaemonSet."""
READERS = "nogroup"
SERVICES, ENDPOINTS = 100, 100
ANSWERS_WITHIN_S = 1.0
HTTP_ANSWERS_WITHIN_S = 3.0
"""Under a flood of the port itself the kernel may let a connection try again, a second later."""


class Watcher(threading.Thread):
    """Asks /livez all the time."""

    def __init__(self, kepd: Kepd) -> None:
        super().__init__(daemon=True)
        self.kepd = kepd
        self.took_s: list[float] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.1):
            began_s = time.monotonic()
            status, _ = self.kepd.get("/livez")
            self.took_s.append(time.monotonic() - began_s if status == 200 else float("inf"))


class Node:
    def __init__(self, kepd: Kepd, group: Limited) -> None:
        self.kepd, self.group = kepd, group
        self.turn = 0

    def honest(self) -> float:
        """Another endpoint of a Service, until kepd has it: seconds."""
        self.turn += 1
        address = f"10.2.0.{self.turn}"
        began_s = time.monotonic()
        hidden = self.kepd.manifests / ".next"
        hidden.write_text(service("honest", 1, [address]))
        hidden.rename(self.kepd.manifests / "honest.yaml")
        self.kepd.wait(lambda: address in self.kepd.ctl("explain", "route", "honest").stdout, address, 30.0)
        return time.monotonic() - began_s

    def attacked(self, attack: Callable[..., None], argument: object, within_s: float) -> None:
        watcher = Watcher(self.kepd)
        watcher.start()
        attacker = multiprocessing.get_context("fork").Process(target=as_reader, args=(attack, argument))
        attacker.start()
        time.sleep(0.5)
        took_s = self.honest()
        attacker.join(60.0)
        attacker.kill()
        attacker.join()
        watcher.is_over.set()
        watcher.join()
        answers = sorted(watcher.took_s)
        print(
            f"{attack.__name__}: honest work in {took_s:.2f} s, /livez in {answers[-1]:.3f} s at most of"
            f" {len(answers)}, {self.group.peak_bytes() >> 20} MiB at most"
        )
        assert self.kepd.process is not None
        assert self.kepd.process.poll() is None, self.kepd.log.read_text()[-2000:]
        assert not self.group.was_killed(), attack.__name__
        late = [one for one in answers if one > within_s]
        assert len(late) <= len(answers) // 10, (attack.__name__, late)


def as_reader(attack: Callable[..., None], argument: object) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    attack(argument)


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
        print(f"at the start: honest work in {node.honest():.2f} s")
        for caller in hostile_callers.CALLERS:
            node.attacked(caller, str(kepd.socket), ANSWERS_WITHIN_S)
        for browser in hostile_callers.BROWSERS:
            node.attacked(browser, kepd.port, HTTP_ANSWERS_WITHIN_S)
        print(f"afterwards: honest work in {node.honest():.2f} s")
        assert len(kepd.json("get", "services")["items"]) == SERVICES + 1
    assert "Traceback" not in kepd.log.read_text()


def test_callers_without_rights_neither_end_nor_stop_kepd(short_path: Path, free_port: int) -> None:
    """FX-2, FX-8."""
    passable(short_path)
    extra = "services: {source: manifests, healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
    with Namespace() as space, limited(LIMIT_MIB << 20) as group:
        kepd = Kepd(short_path, free_port, extra=extra, prefix=group.prefix(*space.command()))
        kepd.config.write_text(kepd.config.read_text().replace("readGroup: ''", f"readGroup: {READERS}"))
        for number in range(SERVICES):
            addresses = [f"10.1.{number & 255}.{one}" for one in range(1, ENDPOINTS + 1)]
            (kepd.manifests / f"s{number}.yaml").write_text(service(f"s{number}", number + 2, addresses))
        space.call(lambda: scenario(kepd, group))

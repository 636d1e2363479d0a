# SPDX-License-Identifier: Apache-2.0
"""A machine that boots while its API server is away: Services answer from what it kept, without the endpoints that
died, and the server's word counts again when it is back.

Ten endpoints stand in a network namespace of the machine, as if on other nodes, so they outlive kepd, not the machine.
The server runs here; a port of the machine leads to it while it is there.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.api_cluster import served
from tests.drivers.kube.certificates import make_certificates
from tests.drivers.kube.following import service
from tests.vm.drop_in import SETTINGS, settle
from tests.vm.extent import IS_WHOLE
from tests.vm.machine import Machine
from tests.vm.node import API_PORT, give_kubeconfig
from tests.vm.pods import until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

VIPS = {"IPv4": "10.96.0.90", "IPv6": "fd00:96::90"}
ALL = range(11, 21)
LOST = (20, 12, 13)
"""The first has no address any more, the others refuse."""
NEW = 21
ALONE = (
    "Environment=KEPD_SERVICES__SOURCE=kubernetes",
    "Environment=KEPD_KUBERNETES__KUBECONFIG=/etc/kepd/outage.kubeconfig",
    "Environment=KEPD_SERVICES__OUTAGE=judge",
    "Environment=KEPD_SERVICES__OUTAGE_AFTER=3s",
)
PLACE = "/usr/local/lib/far"
# A boot makes all of it anew: those with a line in `gone` get no address, those in `closed` do not listen.
SETUP = f"""
ip netns add far
ip link add far0 type veth peer name eth0 netns far
ip addr add 10.77.0.1/24 dev far0
ip addr add fd00:77::1/64 dev far0 nodad
ip link set far0 up
ip -n far link set lo up
ip -n far link set eth0 up
for one in $(seq {ALL[0]} {NEW}); do
    grep -qx $one {PLACE}/gone && continue
    ip -n far addr add 10.77.0.$one/24 dev eth0
    ip -n far addr add fd00:77::$one/64 dev eth0 nodad
done
ip -n far route add default via 10.77.0.1
ip -n far route add default via fd00:77::1
ip -6 route add fd00:96::/112 dev far0
"""
SERVER = f"""
import asyncio, signal
open_ones = {{}}
async def answer(reader, writer):
    writer.write(writer.get_extra_info("sockname")[0].replace("::", ".").split(".")[-1].encode() + b"\\n")
    while line := await reader.readline():
        writer.write(line)
    writer.close()
def close():
    for one in open("{PLACE}/closed").read().split():
        for server in open_ones.pop(one, ()):
            server.close()
async def main():
    for one in range({ALL[0]}, {NEW + 1}):
        try:
            hosts = (f"10.77.0.{{one}}", f"fd00:77::{{one}}")
            open_ones[str(one)] = [await asyncio.start_server(answer, host, 80) for host in hosts]
        except OSError:
            pass
    close()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, close)
    await asyncio.Event().wait()
asyncio.run(main())
"""
# Until a hundred rounds in a row have answers: who answered those, and when the last that failed had begun, and why. An
# emulated machine may take seconds for a connection while it boots, so only what is refused or unreachable has failed.
ROUNDS = f"""
import json, socket, time
began, last, row, seen = time.monotonic(), [0.0, ""], 0, {{}}
while row < 100:
    for vip in {list(VIPS.values())}:
        at = time.monotonic() - began
        try:
            with socket.create_connection((vip, 80), 10) as one:
                seen.setdefault(vip, set()).add(int(one.makefile().readline()))
        except OSError as error:
            last, row, seen = [round(at, 1), str(error)], -1, {{}}
    row += 1
print(json.dumps([last, {{vip: sorted(found) for vip, found in seen.items()}}]))
"""
HOLD = f"""
import os, socket, time
flows = [socket.create_connection((vip, 80), 60) for vip in {list(VIPS.values())} for _ in range(10)]
files = [one.makefile("rw") for one in flows]
owners = [one.readline() for one in files]
open("/run/held", "w").write(str(len(owners)))
while not os.path.exists("/run/go"):
    time.sleep(0.5)
for one in files:
    one.write("still there\\n")
    one.flush()
print([one.readline() for one in files].count("still there\\n"))
"""
FIRST = (
    "journalctl -b -o cat -u kepd -u containerd | "
    "grep -m 1 -E 'service_sync_finished.*family=IPv4|StartContainer for .* returns successfully'"
)
FAR_UNIT = f"""
[Unit]
Before=kepd.service
[Service]
ExecStartPre=sh {PLACE}/setup.sh
ExecStart=ip netns exec far python3 {PLACE}/server.py
ExecReload=kill -HUP $MAINPID
ExecStopPost=ip netns del far
[Install]
WantedBy=multi-user.target
"""
CLIENT_UNIT = f"""
[Unit]
After=kepd.service
[Service]
ExecStart=sh -c 'python3 {PLACE}/rounds.py >/var/log/rounds'
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture
def beside(tuned: Machine) -> Iterator[Machine]:
    for name, text in {"setup.sh": SETUP, "server.py": SERVER, "rounds.py": ROUNDS, "hold.py": HOLD}.items():
        tuned.write(f"{PLACE}/{name}", text)
    tuned.write("/etc/systemd/system/far.service", FAR_UNIT)
    tuned.write("/etc/systemd/system/far-client.service", CLIENT_UNIT)
    tuned.run(f": >{PLACE}/gone; : >{PLACE}/closed; systemctl daemon-reload; systemctl enable --now far")
    yield tuned
    tuned.run("systemctl disable --now far far-client; rm /etc/systemd/system/far*.service /etc/kepd/outage.kubeconfig")
    settle(tuned, *SETTINGS)
    tuned.run("systemctl daemon-reload; systemctl restart kepd")
    until_ready(tuned, "web")


def test_a_machine_that_boots_without_its_server_serves_on(beside: Machine, tmp_path: Path) -> None:
    """SVN-120, SVN-122, SVN-125, SVN-126."""
    certificates = make_certificates(tmp_path)
    living = [one for one in ALL if one not in LOST]
    with served(certificates, items(ALL)) as server:
        beside.lead_back(API_PORT, f"127.0.0.1:{server.port}")
        give_kubeconfig(beside, server, tmp_path, "outage")
        settle(beside, *SETTINGS, *ALONE)
        beside.run("systemctl daemon-reload; systemctl restart kepd")
        beside.until("the server is followed", lambda: report(beside).get("phase") == "with server")
        assert answers(beside) == list(ALL)
        beside.until_prints("ls /var/lib/kepd/services", "changes.bin")
        server.call(server.refuse())

        beside.until("it is alone", lambda: report(beside).get("phase") == "alone")
        lose(beside)
        beside.until("they are dead", lambda: report(beside).get("deadTotal") == 2 * len(LOST))
        assert answers(beside) == living
        beside.run("systemctl enable far-client")

        for reboot in (cut, Machine.reboot) if IS_WHOLE else (cut,):
            # What follows may be a power cut.
            beside.run("rm -f /var/log/rounds; sync")
            reboot(beside)
            beside.until_prints("cat /var/log/rounds", "]", within_s=600)
            last, seen = json.loads(beside.run("cat /var/log/rounds"))
            print(f"{reboot.__name__}: the last that failed began {last[0]} s after kepd was ready {last[1]}")
            assert list(seen.values()) == [living, living]
            told = report(beside)
            assert (told["phase"], told["deadTotal"]) == ("alone", 2 * len(LOST))
            until_ready(beside, "web")
            assert "service_sync_finished" in beside.run(FIRST), "no pod starts before its Services are there"

        beside.run(f"rm -f /run/held /run/go; nohup python3 {PLACE}/hold.py >/run/kept 2>&1 </dev/null &")
        beside.until_prints("cat /run/held", "20")
        for kind, one in objects([*living, NEW]):
            server.objects.put(kind, one)
        server.call(server.accept())
        beside.lead_back(API_PORT, f"127.0.0.1:{server.port}")
        beside.until("the server is back", lambda: report(beside).get("phase") == "with server")
        beside.until("its word counts", lambda: answers(beside) == [*living, NEW])
        beside.run("touch /run/go")
        beside.until_prints("cat /run/kept", "20")
        assert beside.run("kepctl --timeout 60 diff") == ""


def cut(machine: Machine) -> None:
    machine.cut_power()
    machine.start()


def lose(machine: Machine) -> None:
    gone, *closed = LOST
    machine.run(
        f"echo {gone} >{PLACE}/gone; echo {' '.join(map(str, closed))} >{PLACE}/closed; sync; systemctl reload far;"
        f" ip -n far addr del 10.77.0.{gone}/24 dev eth0; ip -n far addr del fd00:77::{gone}/64 dev eth0"
    )


def answers(machine: Machine) -> list[int]:
    """Of a hundred rounds in a row, the same for both families."""
    _, seen = json.loads(machine.run(f"python3 {PLACE}/rounds.py"))
    first, second = seen.values()
    return first if first == second else [*first, *second]


def report(machine: Machine) -> dict[str, Any]:
    done = machine.kepctl("explain", "outage", "-o", "json")
    return json.loads(done.stdout) if done.returncode == 0 else {}


def items(names: "range | list[int]") -> list[dict[str, Any]]:
    kinds = {"nodes": "Node", "services": "Service", "endpointslices": "EndpointSlice"}
    return [{"kind": kinds[kind], **one} for kind, one in objects(names)]


def objects(names: "range | list[int]") -> Iterator[tuple[str, dict[str, Any]]]:
    yield "nodes", {"metadata": {"name": "kepd-vm"}}
    port = {"name": "http", "protocol": "TCP", "port": 80}
    addresses = list(VIPS.values())
    yield "services", service("far", clusterIP=addresses[0], clusterIPs=addresses, ports=[port])
    for family, start in {"IPv4": "10.77.0.", "IPv6": "fd00:77::"}.items():
        labels = {"kubernetes.io/service-name": "far"}
        yield (
            "endpointslices",
            {
                "metadata": {"name": f"far-{family.lower()}", "namespace": "default", "labels": labels},
                "addressType": family,
                "ports": [port],
                "endpoints": [
                    {"addresses": [f"{start}{one}"], "nodeName": "elsewhere", "conditions": {"ready": True}}
                    for one in names
                ],
            },
        )

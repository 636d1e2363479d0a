# SPDX-License-Identifier: Apache-2.0
"""Services of SCTP, on a kernel that has it: an association to their address reaches an endpoint beside the node, and
the answer comes back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.vm.extent import only_whole
from tests.vm.machine import Machine
from tests.vm.pods import MANIFESTS, until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

VIP, PORT, ENDPOINT = "10.96.0.78", 9, "198.51.100.2"
DROP_IN = "/etc/systemd/system/kepd.service.d/zzz-sctp.conf"
BESIDE = f"""
ip netns add sctp
ip link add sctp0 type veth peer name eth0 netns sctp
ip addr add 198.51.100.1/24 dev sctp0
ip link set sctp0 up
ip -n sctp addr add {ENDPOINT}/24 dev eth0
ip -n sctp link set eth0 up
ip -n sctp route add default via 198.51.100.1
"""
SERVER = f"""
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
one.bind(("{ENDPOINT}", 5000))
one.listen()
while True:
    peer = one.accept()[0]
    peer.sendall(b"from " + ":".join(map(str, peer.getsockname())).encode())
    peer.close()
"""
CLIENT = f"""
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
one.settimeout(5)
one.connect(("{VIP}", {PORT}))
print(one.recv(100).decode())
"""


@pytest.fixture(scope="module")
def served(bare: Machine) -> Iterator[Machine]:
    service: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "calls"},
        "spec": {"clusterIP": VIP, "ports": [{"name": "m3ua", "port": PORT, "protocol": "SCTP"}]},
    }  # fmt: skip
    pieces: dict[str, Any] = {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "calls-1", "labels": {"kubernetes.io/service-name": "calls"}},
        "ports": [{"name": "m3ua", "port": 5000, "protocol": "SCTP"}], "endpoints": [{"addresses": [ENDPOINT]}],
    }  # fmt: skip
    bare.run(BESIDE)
    bare.write("/tmp/sctp-server.py", SERVER)
    bare.write("/tmp/sctp-client.py", CLIENT)
    bare.run("systemd-run --unit sctp-server ip netns exec sctp python3 /tmp/sctp-server.py")
    bare.write(f"{MANIFESTS}/calls.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": [service, pieces]}))
    yield bare
    bare.run(f"rm {MANIFESTS}/calls.json; systemctl stop sctp-server; ip netns del sctp")


def test_an_association_reaches_its_endpoint_and_is_answered(served: Machine) -> None:
    served.until_prints("python3 /tmp/sctp-client.py", f"from {ENDPOINT}:5000")


@pytest.fixture
def by_iptables(served: Machine) -> Iterator[Machine]:
    """Which leaves no flow that skips the rules."""
    flows = "Environment='KEPD_SERVICES__FLOWTABLE__DEVICES=[]'"
    served.write(DROP_IN, f"[Service]\nEnvironment=KEPD_SERVICES__BACKEND=iptables\n{flows}\n")
    served.run("systemctl daemon-reload && systemctl restart kepd")
    yield served
    served.run(f"rm {DROP_IN}; systemctl daemon-reload; systemctl restart kepd")
    until_ready(served, "web")


@only_whole("two more starts of kepd")
def test_by_iptables_as_well(by_iptables: Machine) -> None:
    by_iptables.until_prints("iptables-save -t nat", f"-d {VIP}/32 -p sctp")
    by_iptables.until_prints("python3 /tmp/sctp-client.py", f"from {ENDPOINT}:5000")

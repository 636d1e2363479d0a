# SPDX-License-Identifier: Apache-2.0
"""What `kepctl trace` and `kepctl explain route` say of the Service in docs/pictures/route.yaml.

Needs root: it runs a kepd in a network namespace of its own, with its rules in that namespace's kernel.
"""

import tempfile
from pathlib import Path
from typing import Any

from scripts.pictures.drawn import FOLDER
from tests.host.process import Kepd
from tests.lab.namespace import Namespace

PORT = 10997
PACKETS = (("10.85.0.7", "10.96.0.10:80"), ("203.0.113.9", "192.168.1.5:30080"))
EXTRA = (
    "images: {enabled: false}\n"
    "services: {enabled: true, healthzAddress: '', conntrack: {maxPerCore: 0}, serviceCIDRs: [10.96.0.0/16], "
    "detectLocal: {clusterCIDRs: [10.85.0.0/16]}}\n"
)


def tell() -> dict[str, Any]:
    with Namespace() as node, tempfile.TemporaryDirectory() as folder:
        node.run("ip", "link", "add", "uplink", "type", "veth", "peer", "name", "end")
        for link in ("end", "uplink"):
            node.run("ip", "link", "set", link, "up")
        node.run("ip", "address", "add", "192.168.1.5/24", "dev", "uplink")
        node.run("ip", "route", "add", "default", "via", "192.168.1.1")
        with Kepd(Path(folder), PORT, extra=EXTRA, prefix=node.command()) as kepd:
            head = "node: {"
            text = kepd.config.read_text().replace(head, f"{head}labels: {{topology.kubernetes.io/zone: a}}, ", 1)
            kepd.config.write_text(text)
            (kepd.manifests / "route.yaml").write_text((FOLDER / "route.yaml").read_text())
            kepd.start()
            kepd.wait(lambda: _is_programmed(kepd), "its rules", 20.0)
            route = kepd.json("explain", "route", "web")
            route.pop("meta", None)
            traces = [
                {"from": source, "to": target, **kepd.json("trace", "--from", source, "--to", target)}
                for source, target in PACKETS
            ]
            return {"route": route, "traces": traces}


def _is_programmed(kepd: Kepd) -> bool:
    return kepd.socket.exists() and kepd.ctl("trace", "--from", PACKETS[0][0], "--to", PACKETS[0][1]).returncode == 0

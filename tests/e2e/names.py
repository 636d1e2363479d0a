# SPDX-License-Identifier: Apache-2.0
"""A name server for the small cluster: addresses of Services and of the endpoints of headless ones, nothing else.

`python -m tests.e2e.names KUBECONFIG ADDRESS`. Asks the API server at each question, so nothing it says is
old.
"""

import ipaddress
import json
import socketserver
import ssl
import struct
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ZONE = "svc.cluster.local"
A, CNAME, AAAA = 1, 5, 28
FAMILIES = {A: 4, AAAA: 6}
TTL_S, MOST_STEPS = 1, 8
NO_ERROR, NO_NAME = 0, 3
Record = tuple[str, int, bytes]


class Api:
    """The few objects that names are made of."""

    def __init__(self, path: Path) -> None:
        said = json.loads(path.read_text())
        cluster = said["clusters"][0]["cluster"]
        self._url = cluster["server"]
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._headers = {"Authorization": f"Bearer {said['users'][0]['user']['token']}"}

    def get(self, path: str) -> Any:
        """None where there is no such object."""
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=5, context=self._context) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (400, 404):
                    return None
                raise

    def patch(self, path: str, patch: Any) -> None:
        """Parts of an object, merged into it."""
        headers = {**self._headers, "Content-Type": "application/merge-patch+json"}
        request = urllib.request.Request(self._url + path, json.dumps(patch).encode(), headers, method="PATCH")
        urllib.request.urlopen(request, timeout=5, context=self._context).close()

    def service(self, name: str, namespace: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.get(f"/api/v1/namespaces/{namespace}/services/{name}")
        return found["spec"] if found else None

    def endpoints(self, name: str, namespace: str) -> Iterator[tuple[str, str]]:
        """Address and host name of the ready ones."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        for item in self.get(f"{path}?labelSelector=kubernetes.io%2Fservice-name%3D{name}")["items"]:
            for one in item.get("endpoints") or ():
                if one.get("conditions", {}).get("ready", True):
                    yield from ((address, one.get("hostname", "")) for address in one["addresses"])


def resolve(api: Api, name: str, kind: int, steps: int = MOST_STEPS) -> tuple[int, list[Record]]:
    """The code of the answer, and its records."""
    if not name.endswith(f".{ZONE}") or not steps:
        return NO_NAME, []
    *host, service, namespace = ["", *name.removesuffix(f".{ZONE}").split(".")][-3:]
    spec = api.service(service, namespace) if service else None
    if spec is None:
        return NO_NAME, []
    if spec.get("type") == "ExternalName":
        target = spec["externalName"].rstrip(".")
        _, more = resolve(api, target, kind, steps - 1)
        return NO_ERROR, [(name, CNAME, encode(target)), *more]
    addresses = [one for one in spec.get("clusterIPs", ()) if one != "None"]
    if not addresses:
        addresses = [one for one, own in api.endpoints(service, namespace) if host[:1] in ([], [""], [own])]
    found = [ipaddress.ip_address(one) for one in addresses]
    records = [(name, kind, one.packed) for one in found if one.version == FAMILIES.get(kind)]
    return (NO_ERROR if found else NO_NAME), records


def encode(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def question(packet: bytes) -> tuple[str, int, int]:
    """Name, type, and where the question ends."""
    labels, at = [], 12
    while length := packet[at]:
        labels.append(packet[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels).lower(), struct.unpack_from("!H", packet, at + 1)[0], at + 5


def answer(api: Api, packet: bytes) -> bytes:
    name, kind, end = question(packet)
    code, records = resolve(api, name, kind)
    head = struct.pack("!HHHHHH", struct.unpack_from("!H", packet)[0], 0x8580 | code, 1, len(records), 0, 0)
    parts = [encode(owner) + struct.pack("!HHIH", of, 1, TTL_S, len(data)) + data for owner, of, data in records]
    return head + packet[12:end] + b"".join(parts)


class Handler(socketserver.BaseRequestHandler):
    api: Api

    def handle(self) -> None:
        packet, socket = self.request
        socket.sendto(answer(self.api, packet), self.client_address)


def main(kubeconfig: str, address: str) -> None:
    Handler.api = Api(Path(kubeconfig))
    with socketserver.ThreadingUDPServer((address, 53), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])

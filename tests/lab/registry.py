# SPDX-License-Identifier: Apache-2.0
"""A loopback registry inside the lab's network namespace: Debian's docker-registry, storage in the lab's directory.

Owns: its configuration, its process, readiness, and pushing a built image as its API says.
Never: serves anything outside the namespace, and needs neither a certificate nor a login.
"""

import http.client
import socket
from collections.abc import Mapping
from pathlib import Path

from tests.lab.child import Child
from tests.lab.errors import LabError
from tests.lab.images import MANIFEST_TYPE, OciImage
from tests.lab.netns import Netns
from tests.lab.packages import Programs
from tests.lab.place import Place

__all__ = ["Registry"]

READY_WITHIN_S = 40.0


class Registry:
    """The registry of one lab."""

    def __init__(self, place: Place, netns: Netns, programs: Programs, port: int) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._netns = netns
        self._homes: dict[str, str] = {}
        self._config = place.directory / "etc" / "registry.yml"
        self._storage = place.directory / "registry"
        self.process = Child(
            "docker-registry",
            netns.command([programs["docker-registry"], "serve", str(self._config)]),
            log=place.log("registry"),
            environment=programs.environment() | {"OTEL_TRACES_EXPORTER": "none"},
        )

    def configure(self) -> None:
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self._config.write_text(
            "version: 0.1\n"
            "log: {level: warn, accesslog: {disabled: true}}\n"
            f'storage: {{filesystem: {{rootdirectory: "{self._storage}"}}, delete: {{enabled: true}}}}\n'
            f"http: {{addr: '{self.address}', secret: lab}}\n",
            "utf-8",
        )

    def begin(self) -> None:
        self.process.start()

    def wait_ready(self) -> None:
        self.process.wait_ready(self._problem, READY_WITHIN_S)

    def stop(self) -> None:
        self.process.stop()

    def _problem(self) -> str:
        try:
            status, _ = http_get(self._netns, self.port, "/v2/")
        except OSError as error:
            return f"GET http://{self.address}/v2/: {error}"
        return "" if status == http.client.OK else f"GET http://{self.address}/v2/: status {status}, expected 200"

    def push(self, image: OciImage, reference: str) -> None:
        """Copy a layout to the registry under `reference`, a name that starts with the registry's address."""
        name, _, tag = reference.partition("/")[2].rpartition(":")
        blobs = image.layout / "blobs" / "sha256"
        manifest = blobs / image.digest.removeprefix("sha256:")
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.sock = self._netns.connect(self.port, within_s=5.0)
        try:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for blob in blobs.iterdir():
                if blob != manifest:
                    self._push_blob(connection, name, blob)
            headers = {"Content-Type": MANIFEST_TYPE}
            ask(connection, "PUT", f"/v2/{name}/manifests/{tag}", manifest.read_bytes(), headers)
        finally:
            connection.close()

    def _push_blob(self, connection: http.client.HTTPConnection, name: str, blob: Path) -> None:
        """A blob that another repository has is mounted from there."""
        digest = f"sha256:{blob.name}"
        known = f"&from={self._homes[digest]}" if digest in self._homes else ""
        status, place = ask(connection, "POST", f"/v2/{name}/blobs/uploads/?mount={digest}{known}")
        if status != http.client.CREATED:
            target = place.removeprefix(f"http://{self.address}")
            ask(connection, "PUT", f"{target}{'&' if '?' in target else '?'}digest={digest}", blob.read_bytes())
        self._homes[digest] = name

    def blob_file(self, digest: str) -> Path:
        """Where the registry keeps a blob, for tests that damage or remove one."""
        sha = digest.removeprefix("sha256:")
        return self._storage / "docker/registry/v2/blobs/sha256" / sha[:2] / sha / "data"


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Status and Location; anything but a success is an error with the registry's words."""
    connection.request(method, path, body, headers or {"Content-Type": "application/octet-stream"})
    response = connection.getresponse()
    words = response.read()
    if response.status >= http.client.MULTIPLE_CHOICES:
        raise LabError(f"{method} {path}: status {response.status}: {words.decode('utf-8', 'replace')}")
    return response.status, response.getheader("Location", "")


def http_get(netns: Netns, port: int, path: str, within_s: float = 5.0) -> tuple[int, bytes]:
    """GET from a server inside the namespace; returns status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.sock = netns.connect(port, within_s=within_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()

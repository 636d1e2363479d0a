# SPDX-License-Identifier: Apache-2.0
"""A kepd with an open door and no plane: its objects are what lies in the directory of manifests."""

import http.client
import json
import socket
import ssl
from base64 import b64decode
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import yaml

from tests.host.process import Kepd

Answer = tuple[int, Any]
JSON = "application/json"


class DoorProcess:
    def __init__(self, folder: Path, ports: tuple[int, int], **environment: str) -> None:
        http_port, self.port = ports
        given = {"KEPD_API__DOOR__ADDRESS": f"127.0.0.1:{self.port}", **environment}
        self.kepd = Kepd(folder, http_port, **given)
        self.tokens: dict[str, str] = {}
        self.context = ssl.create_default_context()

    def start(self) -> None:
        self.kepd.start("--planes", "")
        self.kepd.wait(self.is_open, "the door is open")

    def is_open(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 10).close()
        except OSError:
            return False
        return self.kepd.ctl("kubeconfig").returncode == 0

    def __enter__(self) -> Self:
        self.start()
        for level in ("read", "operate", "admin"):
            given = yaml.safe_load(self.kepd.ctl("kubeconfig", "--level", level).stdout)
            self.tokens[level] = given["users"][0]["user"]["token"]
        authority = b64decode(given["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
        self.context = ssl.create_default_context(cadata=authority)
        return self

    def __exit__(self, *_: object) -> None:
        self.kepd.__exit__()

    def open(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.context)

    def watch(self, opened: http.client.HTTPSConnection, path: str) -> http.client.HTTPResponse:
        opened.request("GET", path, headers={"Authorization": f"Bearer {self.tokens['read']}"})
        return opened.getresponse()

    def ask(
        self, method: str, path: str, body: object = None, *, level: str = "operate", kind: str = JSON, **headers: str
    ) -> Answer:
        with closing(self.open()) as opened:
            token = self.tokens.get(level, level)
            given = {"Content-Type": kind, **({"Authorization": f"Bearer {token}"} if token else {}), **headers}
            encoded = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            opened.request(method, path, encoded, given)
            answer = opened.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if "json" in answer.headers["Content-Type"] else content.decode()


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": data}

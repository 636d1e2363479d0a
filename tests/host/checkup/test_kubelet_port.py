# SPDX-License-Identifier: Apache-2.0
"""A kubelet that answers without credentials, and one that does not."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from agent.host.checkup.kubelet_port import open_kubelet_advice
from tests.drivers.kube.certificates import make_certificates


class Kubelet(BaseHTTPRequestHandler):
    code = 200

    def do_GET(self) -> None:
        self.send_response(self.code if self.path == "/pods" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(params=[200, 401])
def ports(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, list[int]]]:
    servers = [HTTPServer(("127.0.0.1", 0), type("", (Kubelet,), {"code": request.param})) for _ in range(2)]
    servers[0].socket = make_certificates(tmp_path).server_context().wrap_socket(servers[0].socket, server_side=True)
    for server in servers:
        Thread(target=server.serve_forever, args=(0.01,)).start()
    yield request.param, [server.server_port for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


def test_only_a_port_that_answers_without_credentials_is_told(ports: tuple[int, list[int]]) -> None:
    code, numbers = ports
    told = [one.subject for one in open_kubelet_advice(*numbers)]

    assert told == ([f"kubelet's port {number}" for number in numbers] if code == 200 else [])
    assert not list(open_kubelet_advice(1, 1))

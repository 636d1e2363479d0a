# SPDX-License-Identifier: Apache-2.0
"""The kubelet's configuration: the same for the real reader and for the fake."""

import http.server
import threading
from pathlib import Path

import pytest
import yaml

from agent.drivers.kubelet.driver import DEFAULT_PLACE, KubeletConfiguration
from tests.contract.fake_kubelet_config import FakeKubeletConfiguration

OVERLAY = b"containerRuntimeEndpoint: unix:///run/x.sock\n"


@pytest.mark.parametrize("kind", ["real", "fake"])
async def test_the_file_and_what_lies_over_it(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "etc/kubernetes/kubelet"
    (folder / "config.json.d").mkdir(parents=True)
    (folder / "config.json").write_bytes(b"a: 1")
    (folder / "config.json.d/10.conf").write_bytes(OVERLAY)
    real = KubeletConfiguration(DEFAULT_PLACE, tmp_path)
    reader = real if kind == "real" else FakeKubeletConfiguration(b"a: 1", OVERLAY)

    content, overlay = await reader.read()

    assert (content, yaml.safe_load(overlay)) == (b"a: 1", yaml.safe_load(OVERLAY))


@pytest.mark.parametrize("kind", ["real", "fake"])
async def test_a_file_that_is_not_there_is_an_error_of_the_system(kind: str, tmp_path: Path) -> None:
    real = KubeletConfiguration(str(tmp_path / "config.yaml"))
    reader = real if kind == "real" else FakeKubeletConfiguration(None)

    with pytest.raises(FileNotFoundError):
        await reader.read()


async def test_configz_is_asked_for_by_url() -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/configz" else 404)
            self.end_headers()
            self.wfile.write(b'{"kubeletconfig": {}}')

        def log_message(self, *_: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            assert await KubeletConfiguration(f"{address}/configz").read() == (b'{"kubeletconfig": {}}', b"")
            with pytest.raises(OSError, match="404"):
                await KubeletConfiguration(f"{address}/other").read()
        finally:
            server.shutdown()
            thread.join()

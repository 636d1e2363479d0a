# SPDX-License-Identifier: Apache-2.0
"""To whom a real containerd sends credentials: registries that want a login and write down what they are told."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.daemon.process import Kepd
from tests.lab import Lab
from tests.node.image_client import ImageClient

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

LOGIN = "user:password-4711"


class Registry:
    """Wants a login, and then has nothing."""

    def __init__(self, lab: Lab) -> None:
        self.told: list[str] = []
        told = self.told

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                login = self.headers.get("Authorization", "")
                if login:
                    told.append(base64.b64decode(login.removeprefix("Basic ")).decode())
                self.send_response(404 if login else 401)
                self.send_header("WWW-Authenticate", 'Basic realm="test"')
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_GET  # noqa: N815  # the server looks for it by this name

            def log_message(self, *_: object) -> None:
                return

        self.server = lab.netns.call(lambda: ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        self.address = f"127.0.0.1:{self.server.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join()


@pytest.mark.parametrize(
    ("scope", "is_listed", "is_told"), [("all", False, True), ("host", False, False), ("host", True, True)]
)
def test_a_mirror_gets_credentials_only_where_that_is_wanted(
    lab: Lab, short_path: Path, free_port: int, scope: str, is_listed: bool, is_told: bool
) -> None:
    """IMG-C08, IMG-C09: the registry itself gets them in any case."""
    own, mirror = Registry(lab), Registry(lab)
    hosts = lab.place.directory / "certs.d" / own.address
    hosts.mkdir(parents=True)
    (hosts / "hosts.toml").write_text(f'server = "http://{own.address}"\n[host."http://{mirror.address}"]\n')
    auths = {own.address: {"auth": base64.b64encode(LOGIN.encode()).decode()}}
    (short_path / "config.json").write_text(json.dumps({"auths": auths}))
    extra = (
        f"images:\n  sizeProbe: 'off'\n  nodeConfig: {short_path}/config.json\n  authScope: {scope}\n"
        f"  mirrorAuth: [{mirror.address if is_listed else ''}]\n"
    )
    with (
        own.serving(),
        mirror.serving(),
        Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd,
    ):
        kepd.start("--planes", "images").wait_ready()
        client = ImageClient(kepd.socket)
        image = f"{own.address}/team/app:1"
        outcome = client.pull(image).result()[image]
        shown = kepd.ctl("get", "mirrors").stdout
        client.close()

    assert outcome.result == "failed"
    assert set(own.told) == {LOGIN}
    assert set(mirror.told) == ({LOGIN} if is_told else set())
    assert f"http://{mirror.address}" in shown
    (hosts / "hosts.toml").unlink()
    hosts.rmdir()

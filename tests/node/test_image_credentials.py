# SPDX-License-Identifier: Apache-2.0
"""To whom a real containerd sends credentials: registries that want a login and write down what they are told."""

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.lab.containerd_config import write_registry_hosts
from tests.node.image_client import ImageClient

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

LOGIN = "user:password-4711"


class Registry:
    """Wants a login, and then has nothing, or with `is_full` what the lab's registry has."""

    def __init__(self, lab: Lab, *, is_full: bool = False) -> None:
        self.told: list[str] = []
        told = self.told

        def ask(method: str, path: str, accept: str) -> tuple[int, dict[str, str], bytes]:
            host, _, port = lab.registry.address.partition(":")
            connection = HTTPConnection(host, int(port))
            connection.sock = lab.netns.call(lambda: socket.create_connection((host, int(port)), 5))
            with closing(connection):
                connection.request(method, path, headers={"Accept": accept})
                answer = connection.getresponse()
                return answer.status, dict(answer.getheaders()), answer.read()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                login = self.headers.get("Authorization", "")
                if login:
                    told.append(base64.b64decode(login.removeprefix("Basic ")).decode())
                if is_full and login and told[-1] == LOGIN:
                    status, headers, body = ask(self.command, self.path, self.headers.get("Accept", "*/*"))
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                    return
                self.send_response(404 if login and not is_full else 401)
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


POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  imagePullSecrets: [{secrets}]
  containers: [{{name: app, image: "{image}", imagePullPolicy: IfNotPresent}}]
"""


def test_pods_from_files_pull_with_their_secrets_and_use_nobody_elses(
    lab: Lab, short_path: Path, free_port: int
) -> None:
    """IMG-C01, IMG-C02, IMG-C25: from a manifest or a directory; a wrong one that is mended is tried at once."""
    pushed = lab.push(Image(name="private/app"))
    registry = Registry(lab, is_full=True)
    image = f"{registry.address}/{pushed.partition('/')[2]}"
    write_registry_hosts(lab.place, [registry.address])

    def document(login: str) -> str:
        return json.dumps({"auths": {registry.address: {"auth": base64.b64encode(login.encode()).decode()}}})

    logs = f"logDirectory: {short_path}/logs, logLinkDirectory: ''"
    extra = f"images: {{sizeProbe: 'off'}}\npods: {{nameSuffix: false, {logs}}}\n"
    with registry.serving(), Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd:

        def put(name: str, secrets: str) -> None:
            (kepd.manifests / f".{name}").write_text(POD.format(name=name, secrets=secrets, image=image))
            (kepd.manifests / f".{name}").rename(kepd.manifests / f"{name}.yaml")

        def shown(name: str) -> str:
            return kepd.ctl("get", "pods", name).stdout

        folder = kepd.manifests / "secrets" / "default" / "folder"
        folder.mkdir(parents=True, mode=0o700)
        (folder / ".dockerconfigjson").write_text(document("user:wrong"))
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "right"},
            "type": "kubernetes.io/dockerconfigjson",
        }
        (kepd.manifests / "right.json").write_text(
            json.dumps({**secret, "stringData": {".dockerconfigjson": document(LOGIN)}})
        )
        (kepd.manifests / "right.json").chmod(0o600)
        kepd.start("--planes", "pods,images").wait_ready()
        put("wrong", "{name: folder}")
        kepd.wait(lambda: "ImagePull" in shown("wrong"), "a wrong login gets nothing")
        put("first", "{name: right}")
        kepd.wait(lambda: "Running" in shown("first"), "a right one gets it")
        put("other", "{name: nowhere}")
        kepd.wait(lambda: "ImagePull" in shown("other"), "who has none may not use what another got")
        (folder / ".dockerconfigjson").write_text(document(LOGIN))
        kepd.wait(lambda: "Running" in shown("wrong"), "mended, it is tried at once", 8.0)
        assert "FailedToRetrieveImagePullSecret" in kepd.ctl("get", "events").stdout
        assert LOGIN not in kepd.log.read_text()
        for path in kepd.manifests.glob("*.yaml"):
            path.unlink()
        kepd.wait(lambda: not json.loads(kepd.ctl("get", "pods", "-o", "json").stdout)["items"], "all are gone")
    assert set(registry.told) == {LOGIN, "user:wrong"}
    lab.cri.remove_image(image)

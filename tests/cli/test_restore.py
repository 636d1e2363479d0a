# SPDX-License-Identifier: Apache-2.0
"""CKP-14: `kepctl restore` makes a manifest from that of the pod which a checkpoint is of."""

from typing import Any, Self

import pytest
import yaml
from click.testing import CliRunner, Result

from agent.cli.commands.pods import restoring
from agent.cli.main import cli
from agent.cli.session import CommandFailed
from agent.model.exit_codes import FAILURE, NOT_FOUND
from agent.pods.plan.scarcity.checkpoints import archive_name
from agent.wire.kepd.v1 import object_pb2
from tests.cli.shown import answered

NAME = archive_name("web-n1", "my-shop", "app", 1_800_000_000.0)
MANIFEST = b"""
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: my-shop
  uid: "17"
  annotations: {keep: me, kepd.dev/restore.app: another}
spec:
  containers: [{name: app, image: i}]
"""


class Daemon:
    """Answers of one that has a pod and a checkpoint; what was sent to it."""

    def __init__(self, state: str = "ready", pods: int = 1) -> None:
        self.state, self.pods = state, pods
        self.sent: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, method: str, request: Any, _answer: type) -> Any:  # of any method
        if method.endswith("/GetManifest"):
            assert (request.kind, request.namespace, request.name) == ("Pod", "my-shop", "web-n1")
            return object_pb2.GetManifestResponse(content=MANIFEST, source="web.yaml")
        containers = [{"name": name} for name in ("shop", "app")]
        metadata = {"name": "web-n1", "namespace": "my-shop"}
        pods = [{"metadata": metadata, "status": {"containerStatuses": containers}}] * self.pods
        kept = [{"metadata": {"name": NAME}, "status": {"state": self.state}}]
        return answered(method, request, {"checkpoints": kept, "pods": pods})

    def send(self, _method: str, parts: list[Any], _answer: type) -> Any:
        assert all(part.create_only for part in parts)
        self.sent.append(yaml.safe_load(b"".join(part.content for part in parts)))
        made = object_pb2.AppliedObject(kind="Pod", namespace="my-shop", name="again", result="created")
        return object_pb2.ApplyResponse(objects=[made])


def restore(monkeypatch: pytest.MonkeyPatch, daemon: Daemon, *words: str) -> Result:
    monkeypatch.setattr(restoring, "connected", lambda _session: daemon)
    return CliRunner().invoke(cli, ["restore", *words])


def test_the_manifest_is_that_of_the_pod_with_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon()
    done = restore(monkeypatch, daemon, NAME, "--as", "again")

    assert done.output == "pod/my-shop/again created\n"
    (made,) = daemon.sent
    assert made["metadata"] == {
        "name": "again", "namespace": "my-shop", "annotations": {"keep": "me", "kepd.dev/restore.app": NAME},
    }  # fmt: skip
    assert made["spec"] == {"containers": [{"name": "app", "image": "i"}]}


@pytest.mark.parametrize(
    ("daemon", "name", "code", "text"),
    [
        (Daemon(), "checkpoint-other.tar", NOT_FOUND, "kepctl get checkpoints lists them"),
        (Daemon("broken"), NAME, FAILURE, f"checkpoint {NAME} is broken"),
        (Daemon(pods=0), NAME, NOT_FOUND, f"kepd.dev/restore.CONTAINER: {NAME}"),
    ],
)
def test_what_cannot_be_restored_is_said(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, name: str, code: int, text: str
) -> None:
    done = restore(monkeypatch, daemon, name, "--as", "again")

    assert isinstance(done.exception, CommandFailed)
    assert (done.exception.exit_code, daemon.sent) == (code, [])
    assert text in str(done.exception)

# SPDX-License-Identifier: Apache-2.0
"""CL-11: `kepctl describe` has sections as kubectl's, with events at the end and each error once."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.kinds.described import event_lines
from agent.kinds.pods.described_pod import pod_lines
from agent.kinds.services.services import service_lines
from agent.model.event import Event
from agent.model.services.report import PortReport, ServiceReport
from agent.pods.view.objects import pod_object
from agent.services.attach.service_proxy_service import _service_object
from agent.wire.kepd.v1 import service_proxy_pb2 as pb
from agent.wire.kepd.v1.pod_pb2 import ExplainPodResponse
from agent.wire.kepd.v1.reason_pb2 import Reason
from tests.cli.node_in_process import event_of
from tests.cli.pod_node import pod_node
from tests.pods.pods import Runs, World, container, make_pod
from tests.pods.view.test_status import shown

NO_REASON = ExplainPodResponse()
MANIFEST = b"""apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  initContainers:
  - {name: first, image: i}
  containers:
  - name: a
    image: gone
    command: [sleep, "60"]
    env: [{name: PLAIN, value: letters}, {name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]
    volumeMounts: [{name: data, mountPath: /data, readOnly: true}]
  volumes:
  - {name: data, configMap: {name: settings}}
"""


async def test_a_pod_is_told_in_sections_with_its_events_last(tmp_path: Path, short_path: Path) -> None:
    async with pod_node(tmp_path, short_path, {"/m/f.yaml": MANIFEST}) as node:
        await node.plane.until(lambda: "default/web-n" in node.plane.runner.pods.items, "the pod is known")
        for reason, name in (("Pulled", "web-n"), ("Other", "db-n")):
            told = {"reason": reason, "message": "m", "plane": "pods", "namespace": "default", "object_name": name}
            node.ring.tell(Event(is_warning=False, **told))
        done = await node.ctl("describe pod/web")
        same = await node.ctl("describe po web-n")
        wrong = await node.ctl("describe podd web")
        as_data = await node.ctl("describe pod web -o json")

    assert done.exit_code == same.exit_code == 0, done.output
    heads = [line for line in done.output.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert heads == ["Init Containers:", "Containers:", "Conditions:", "Volumes:", "Events:"]
    assert "Name:              web-n\nNamespace:         default\n" in done.output
    assert "Labels:            app=web\n" in done.output
    assert "  data:  configMap settings\n    a:/data (ro)\n" in done.output
    assert [line.split()[:2] for line in done.output.splitlines()[-2:]] == [["Type", "Reason"], ["Normal", "Pulled"]]
    assert "{" not in done.output
    assert wrong.exit_code == 2
    assert 'did you mean "pod"?' in wrong.output
    assert "    Command:\n      sleep\n      60\n    Environment:\n" in done.output
    assert "      PLAIN:  <as in the manifest>\n      KEY:  <set to the key 'k' in secret 's'>\n" in done.output
    assert "    Mounts:\n      /data from data (ro)\n" in done.output
    assert "letters" not in done.output
    assert (as_data.exit_code, "kepctl get pod web -o json" in as_data.output) == (2, True)


def described(**fields: Any) -> list[str]:
    """What is told of a container after its limits."""
    world = World(make_pod([container("a", **fields)])).run(1)
    lines = list(pod_lines(pod_object(shown(world)), NO_REASON))
    return lines[lines.index("    Limits:            none") + 1 : lines.index("Conditions:")]


def test_a_container_shows_what_runs_in_it_and_where_its_variables_come_from() -> None:
    sources: dict[str, Any] = {
        "A": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}},
        "B": {"fieldRef": {"fieldPath": "metadata.name"}},
        "C": {"resourceFieldRef": {"resource": "limits.cpu", "containerName": "b"}},
        "D": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}},
    }
    lines = described(
        args=["-c", "one\ntwo"],
        env=[{"name": name, "valueFrom": source} for name, source in sources.items()],
        envFrom=[{"secretRef": {"name": "s"}, "prefix": "P_"}, {"configMapRef": {"name": "c", "optional": True}}],
        volumeMounts=[{"name": "v", "mountPath": "/v", "subPath": "in"}],
    )

    assert lines == [
        "    Args:", "      -c", "      one", "      two",
        "    Environment Variables from:", "      s  Secret with prefix 'P_'", "      c  ConfigMap  (optional)",
        "    Environment:",
        "      A:  <set to the key 'k' of config map 'c'>  (optional)",
        "      B:  (v1:metadata.name)",
        "      C:  (limits.cpu of b)",
        "      D:  <set to the key 'k' of file 'p' in volume 'v'>",
        "    Mounts:", '      /v from v (rw, path="in")',
    ]  # fmt: skip


def test_what_a_manifest_says_cannot_steer_the_terminal() -> None:
    bad = "\x1b[2J"
    lines = described(command=[bad], env=[{"name": bad}], volumeMounts=[{"name": bad, "mountPath": bad}])

    assert all(line.isprintable() for line in lines)
    assert described() == ["    Environment:  <none>", "    Mounts:  <none>"]


def test_classes_of_caches_and_block_io_are_told() -> None:
    world = World(make_pod(("app",)))
    domain = "resources.beta.kubernetes.io"
    notes = (
        (f"rdt.{domain}/container.app", "gold"), (f"rdt.{domain}/pod", "bronze"), (f"blockio.{domain}/pod", "slow"),
    )  # fmt: skip
    told = "\n".join(pod_lines(pod_object(replace(shown(world), annotations=notes)), NO_REASON))

    assert "RDT Class:         bronze, gold for app\nBlock I/O Class:   slow\n" in told


def test_how_the_instance_before_ended_stands_below_its_state() -> None:
    world = World(make_pod(("app",)), {"app": [Runs(2, 3)]}).run(5)
    lines = list(pod_lines(pod_object(shown(world)), NO_REASON))
    at = lines.index("    Last State:        Terminated")

    assert lines[at + 1 : at + 3] == ["      Reason:          Error", "      Exit Code:       3"]
    assert "    State:             Waiting" in lines
    assert "      Reason:          CrashLoopBackOff" in lines


def test_an_error_is_told_once() -> None:
    world = World(make_pod(("app",)), fails={"app": "ErrImagePull"}).run(5)
    reason = Reason(
        cause="container app has no image", words="not found", next="in 4 s", command="kepctl explain pull i"
    )
    text = "\n".join(pod_lines(pod_object(shown(world)), ExplainPodResponse(reasons=[reason])))

    assert text.count("not found") == 1
    assert "Why:               container app has no image: not found\nNext:              in 4 s\n" in text
    assert "Waits For" not in text


def test_zeros_are_told_where_they_say_something() -> None:
    world = World(make_pod(("app",), restartPolicy="Never"), {"app": [Runs(1, 0)]}).run(5)

    assert "      Exit Code:       0" in list(pod_lines(pod_object(shown(world)), NO_REASON))


@pytest.mark.parametrize(
    ("resources", "spec", "lines"),
    [
        ({}, {}, ["    Requests:          none", "    Limits:            none"]),
        (
            {"limits": {"cpu": 0.5, "memory": "64Mi"}},
            {},
            ["    Requests:          cpu=0.5, memory=64Mi", "    Limits:            cpu=0.5, memory=64Mi"],
        ),
        (
            {"requests": {"cpu": "100m"}},
            {"resources": {"limits": {"cpu": "2", "memory": "1000"}}},
            [
                "Requests:          cpu=2, memory=1000",
                "Limits:            cpu=2, memory=1000",
                "    Requests:          cpu=100m",
                "    Limits:            none",
            ],
        ),
    ],
)
def test_requests_and_limits_are_shown_by_container_and_for_the_pod(
    resources: dict[str, Any], spec: dict[str, Any], lines: list[str]
) -> None:
    """RES-02: a request that is missing is the limit."""
    pod = make_pod([container("a", resources=resources)], **spec)
    told = list(pod_lines(pod_object(shown(World(pod))), NO_REASON))

    assert [line for line in told if line.lstrip().startswith(("Requests:", "Limits:"))] == lines


def test_a_service_shows_why_each_endpoint_is_used_or_not() -> None:
    port = PortReport(
        family="IPv4", name="http", protocol="TCP", port=80, node_port=30080, total=1, used=0, mode="", verdict="reject"
    )
    service = _service_object(ServiceReport(namespace="default", name="web", type="NodePort", ports=(port,)))
    endpoint = pb.Endpoint(endpoint="10.0.0.1:80", port="http", state="not ready", reason="it is not ready")
    event = event_of(Event(is_warning=True, reason="InvalidService", message="m", plane="services"))
    lines = [*service_lines(service, [endpoint]), *event_lines([event])]

    assert "IPs:               none" in lines
    assert "  http  80/TCP  30080     IPv4    0 of 1          reject" in lines
    assert "  10.0.0.1:80  http  -     not ready  no    it is not ready" in lines
    assert lines[-1].split() == ["Warning", "InvalidService", "m"]

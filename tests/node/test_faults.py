# SPDX-License-Identifier: Apache-2.0
"""NU-03: everyday faults of pods, made on a real node; each command names the cause, in the object's own words.

The table has what is wrong and what people read; pods are made all at once, and asked one after the other.

Not made here:
- no space for an image: a disk that is full would fail the other tests of the machine; the words of a runtime for it
  come the way of every failed pull, and tests/pods/view/test_reasons.py has recorded states of those;
- a claim without a device: packages/devices/tests/node/test_devices.py makes it.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.host.process import Kepd
from tests.lab import Fault, Image, Lab
from tests.lab.registry import ask

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

PORT = 10948
INDEX = "application/vnd.oci.image.index.v1+json"
KINDS = {"readiness": "is not ready:", "liveness": "runs, but", "startup": "is not started:"}
ASKS = {
    "exec": ("exec: {command: [sh, -c, echo no lamp; exit 1]}", "exec sh -c echo no lamp; exit 1", "no lamp"),
    "http": ("httpGet: {path: /none, port: 8080}", "HTTP GET /none on port 8080", "HTTP .* statuscode: 404"),
    "tcp": ("tcpSocket: {port: 81}", "TCP port 81", "dial tcp .*:81: connect: connection refused"),
    "grpc": ("grpc: {port: 81}", "gRPC port 81", ".*connection refused"),
}


@dataclass(frozen=True)
class Bad:
    """`fields` of its container and `spec` of the pod as YAML; `line`, `then` and `helps` are patterns of what is told,
    of what follows, and of the command."""

    name: str
    fields: str
    line: str
    then: str
    helps: str
    spec: str = ""

    def pod(self, image: str) -> dict[str, Any]:
        container = {"name": "app", "image": image, "imagePullPolicy": "IfNotPresent"}
        spec = {"terminationGracePeriodSeconds": 0, "containers": [container | yaml.safe_load(f"{{{self.fields}}}")]}
        spec |= yaml.safe_load(f"{{{self.spec.replace('$IMAGE', image)}}}")
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name}, "spec": spec}


def probed(kind: str, way: str) -> Bad:
    probe, asked, words = ASKS[way]
    then = "kepd asks every 1 s" if kind == "readiness" else "after 999 failures in a row it is ended"
    return Bad(
        f"{kind}-{way}",
        f"command: [httpd, -f, -p, '8080'], {kind}Probe: {{{probe}, periodSeconds: 1, failureThreshold: 999}}",
        f"container app {KINDS[kind]} its {kind} probe fails \\({re.escape(asked)}\\): {words}", then,
        f"kepctl logs {kind}-{way} -c app",
    )  # fmt: skip


def unpulled(name: str, image: str, words: str, *, what: str = "it cannot be pulled", spec: str = "") -> Bad:
    line = f"container app has no image: {what}, .*{words}"
    return Bad(name, f'image: "{image}"', line, r"pulled again in \d+ s, at", "kepctl explain pull", spec)


def refers(name: str, source: str, words: str) -> Bad:
    fields = f"env: [{{name: X, valueFrom: {{{source}}}}}]"
    line = f"container app cannot be made as its manifest says: {words}"
    return Bad(name, fields, line, "tried again", f"kepctl edit pod {name}")


def ended(name: str, fields: str, line: str, then: str = r"it is started again in \d+ s, at") -> Bad:
    return Bad(name, fields, f"container app {line}", then, f"kepctl logs (-p )?{name} -c app")


def refused(name: str, fields: str, line: str, helps: str, spec: str = "") -> Bad:
    return Bad(name, fields, line, "it begins as soon as that has changed", helps, spec)


PODS = (
    unpulled("image-unknown", "$REGISTRY/none/such:1", "not found"),
    unpulled("tag-unknown", "$REGISTRY/node/faults:none", "not found"),
    unpulled("platform-wrong", "$REGISTRY/node/faults:other", "no match for platform"),
    unpulled("registry-down", "127.0.0.1:1/x:1", "connection refused"),
    unpulled("registry-refuses", "$THROTTLE/node/denied:1", "401 Unauthorized"),
    unpulled(
        "secret-missing", "$THROTTLE/node/denied:2", "there is no Secret nobody to pull it with: .*401 Unauthorized",
        spec="imagePullSecrets: [{name: nobody}]",
    ),
    Bad("image-never", "image: x/none:1, imagePullPolicy: Never", "no image on this node, and imagePullPolicy Never",
        "tried again", "kepctl pull x/none:1"),
    refers("map-missing", "configMapKeyRef: {name: none, key: a}", 'configmap "none" not found'),
    refers("secret-gone", "secretKeyRef: {name: none, key: a}", 'secret "none" not found'),
    refers("key-missing", "configMapKeyRef: {name: words, key: b}", "couldn't find key b in ConfigMap default/words"),
    Bad("path-missing", "", "/none/such", "tries again", "kepctl describe pod path-missing",
        "volumes: [{name: v, hostPath: {path: /none/such, type: Directory}}]"),
    Bad("command-wrong", "command: [nope]", 'app is not started by the runtime.*exec: "nope"',
        r"started again in \d+ s", "kepctl"),
    Bad("not-executable", "command: [/etc/passwd]", "app is not started by the runtime.*permission denied",
        r"started again in \d+ s", "kepctl"),
    ended("crash-loop", "command: [sh, -c, 'echo begins; echo KeyError DB; exit 1']",
          "ended with exit code 1.*: KeyError DB"),
    ended("memory-short", "command: [dd, if=/dev/zero, of=/dev/null, bs=256M], resources: {limits: {memory: 16Mi}}",
          "was killed for memory, its limit is 16Mi"),
    ended("ended-by-probe", "livenessProbe: {exec: {command: [sh, -c, echo dark; exit 1]}, periodSeconds: 1,"
          " failureThreshold: 1}", "was ended because its liveness probe failed: dark", ""),
    Bad("hook-fails", "lifecycle: {postStart: {exec: {command: [sh, -c, exit 3]}}}",
        "the postStart hook of container app failed, so the container is ended: command exited with 3",
        r"tried again in \d+ s", "kepctl logs hook-fails -c app"),
    *(probed(kind, way) for kind in KINDS for way in ASKS),
    Bad("init-stuck", "", "init container first has not ended yet", "without a limit of time",
        "kepctl logs init-stuck -c first", "initContainers: [{name: first, image: $IMAGE}]"),
    Bad("sidecar-slow", "", r"side is not started: its startup probe fails \(exec false\)", "after 999 failures",
        "kepctl logs sidecar-slow -c side", "initContainers: [{name: side, image: $IMAGE, restartPolicy: Always,"
        " startupProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 999}}]"),
    refused("cpu-short", "resources: {requests: {cpu: 9000}}", "the node has not enough CPU left for it: .*9000",
            "kepctl top pods"),
    refused("memory-full", "resources: {requests: {memory: 9000Gi}}", "the node has not enough memory left for it: ",
            "kepctl top pods"),
    refused("port-taken", "ports: [{containerPort: 31977}]", "a port that it asks for on the node is taken: .*31977",
            "kepctl get pods", "hostNetwork: true"),
    Bad("elsewhere", "", "its manifest asks for another node", "it is not tried again as it is", "kepctl describe node",
        "nodeSelector: {disk: fast}"),
    Bad("twice", "", "another manifest has its name too, and is ignored: .*/zz-rival.yaml:1", "stays in force",
        "kepctl validate .*/zz-rival.yaml"),
    Bad("edited", "", "its manifest has a fault, and the last good one stays in force: .*imag", "reads the file again",
        "kepctl validate .*/edited.yaml"),
    Bad("slow-end", "lifecycle: {preStop: {exec: {command: [sleep, '600']}}}",
        "it ends, and waits for preStop hook of app, running for", "killed", "kepctl timeline slow-end",
        "terminationGracePeriodSeconds: 600"),
)  # fmt: skip


class Node:
    def __init__(self, kepd: Kepd, lab: Lab) -> None:
        self.kepd, self.lab = kepd, lab
        self.image = lab.push(Image(name="node/faults"))

    def put(self, name: str, *documents: Any) -> None:
        text = "---\n".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in documents)
        for mark, value in (("$REGISTRY", self.lab.registry.address), ("$THROTTLE", self.lab.throttle.address)):
            text = text.replace(mark, value)
        (self.kepd.manifests / f".{name}").write_text(text)
        (self.kepd.manifests / f".{name}").rename(self.kepd.manifests / f"{name}.yaml")

    def shown(self, *words: str) -> str:
        return self.kepd.ctl(*words).stdout


@contextmanager
def daemon_of(lab: Lab, folder: Path, keys: str = "", of_node: str = "") -> Iterator[Kepd]:
    """In the lab's network, so that its probes reach the pods; afterwards all pods are gone."""
    extra = (
        f"pods: {{nameSuffix: false, logDirectory: {folder}/logs, logLinkDirectory: '',"
        f" cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\nimages: {{sizeProbe: 'off'}}\n{keys}"
    )
    prefix = ("nsenter", f"--net={lab.place.netns}", "--")
    with Kepd(folder, PORT, endpoint=lab.endpoint, extra=extra, prefix=prefix) as daemon:
        daemon.config.write_text(daemon.config.read_text().replace("node: {", f"node: {{{of_node}"))
        yield daemon
        for path in daemon.manifests.glob("*.yaml"):
            path.unlink()
        daemon.ctl("delete", "slow-end", "--grace", "0")
        daemon.wait(lambda: not daemon.pods(), "all pods gone")


@pytest.fixture(scope="module")
def node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with (
        daemon_of(lab, tmp_path_factory.mktemp("f")) as daemon,
        lab.throttle.fault(Fault(kind="status", pattern="/v2/node/denied", status=401)),
    ):
        made = Node(daemon, lab)
        push_for_another_platform(lab)
        put_all(made)
        daemon.start("--planes", "pods,images")
        daemon.wait(lambda: made.shown("get", "pods", "slow-end", "edited").count("Running") == 2, "both run")
        daemon.ctl("delete", "slow-end")
        made.put("edited", (daemon.manifests / "edited.yaml").read_text().replace('"image"', '"imag"'))
        yield made


def put_all(node: Node) -> None:
    for one in PODS:
        node.put(one.name, one.pod(node.image))
    node.put("words", "{apiVersion: v1, kind: ConfigMap, metadata: {name: words}, data: {a: b}}\n")
    node.put(
        "a-port", Bad("a-port", "ports: [{containerPort: 31977}]", "", "", "", "hostNetwork: true").pod(node.image)
    )
    node.put("zz-rival", next(one for one in PODS if one.name == "twice").pod(node.image))


def push_for_another_platform(lab: Lab) -> None:
    """An index whose only image is for a machine that nobody has."""
    image = lab.build(Image(name="node/faults"))
    size = (image.layout / "blobs" / "sha256" / image.digest.removeprefix("sha256:")).stat().st_size
    manifest = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": image.digest, "size": size}
    manifest["platform"] = {"architecture": "s390x", "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]}
    connection = HTTPConnection("127.0.0.1", lab.registry.port)
    connection.sock = lab.netns.connect(lab.registry.port, within_s=5.0)
    ask(connection, "PUT", "/v2/node/faults/manifests/other", json.dumps(index).encode(), {"Content-Type": INDEX})
    connection.close()


def check(node: Node, kind: str, name: str, bad: Bad, *, is_listed: bool = True) -> None:
    """What begins again and again is at times on its way, so each command is asked until it tells."""
    head = f"^{kind.upper()} .*{bad.line}.*\n"
    follows = f"(  next: .*{bad.then}.*\n)" + ("?" if not bad.then else "")
    wanted = {("explain", kind, name): f"\\A{head}{follows}  try:  {bad.helps}"}
    if is_listed:
        wanted |= {("get", f"{kind}s", name, "-o", "wide"): bad.line, ("describe", kind, name): f"^Why: .*{bad.line}"}
    for words, pattern in wanted.items():
        try:
            node.kepd.wait(lambda: re.search(pattern, node.shown(*words), re.MULTILINE), bad.name, 20.0)  # noqa: B023
        except AssertionError:
            done = node.kepd.ctl(*words)
            pytest.fail(f"not told: {pattern}\n{done.stdout}{done.stderr}", pytrace=False)


@pytest.mark.parametrize("bad", PODS, ids=lambda one: one.name)
def test_the_commands_name_the_cause(node: Node, bad: Bad) -> None:
    check(node, "pod", bad.name, bad)


@pytest.mark.parametrize("name", ["faulty", "unreadable"])
def test_a_manifest_that_cannot_be_used_is_named(node: Node, name: str) -> None:
    """Of its pod nothing is there but this."""
    document = Bad(name, "imag: x" if name == "faulty" else "", "", "", "").pod(node.image)
    node.put(name, document)
    path = node.kepd.manifests / f"{name}.yaml"
    path.chmod(0o644 if name == "faulty" else 0o666)
    words = {"faulty": "imag: not supported", "unreadable": "may write"}[name]

    def told() -> str:
        text = node.shown("explain", "pod", name)
        return text if re.search(words, text) else ""

    explained = node.kepd.wait(told, name, 10.0)
    assert explained.startswith(
        f"POD default/{name}  Pending: its manifest cannot be used, so it does not begin: {path}"
    )
    assert "  next: kepd reads the file again when it changes\n" in explained
    assert f"  try:  kepctl validate {path}\n" in explained


def test_who_waits_for_a_pod_in_vain_reads_its_cause(node: Node, tmp_path: Path) -> None:
    chosen = [one for one in PODS if one.name in ("map-missing", "init-stuck", "readiness-exec")]
    documents = [one.pod(node.image) for one in chosen]
    for one in documents:
        one["metadata"]["name"] += "-2"
    (tmp_path / "some.yaml").write_text("---\n".join(json.dumps(one) + "\n" for one in documents))
    done = node.kepd.ctl("--timeout", "4s", "apply", "-f", str(tmp_path / "some.yaml"), "--wait")

    assert done.returncode
    for one in chosen:
        assert re.search(f"pod/default/{one.name}-2: .*{one.line}", done.stderr), done.stderr

# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain hints` and `spread` answered by the daemon: the same words as from the same files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.process import Kepd

ENDPOINTS = ", ".join(
    f"{{addresses: [10.1.0.{number}], nodeName: {'ab'[number % 2]}, conditions: {{ready: true}}}}"
    for number in range(1, 5)
)
MANIFESTS = f"""
apiVersion: v1
kind: Service
metadata: {{name: web, annotations: {{service.kubernetes.io/topology-mode: Auto}}}}
spec: {{clusterIP: 10.96.0.10, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{ENDPOINTS}]
---
apiVersion: v1
kind: Pod
metadata: {{name: one, labels: {{app: web}}}}
spec:
  containers: [{{name: main, image: web}}]
  topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: DoNotSchedule
    labelSelector: {{matchLabels: {{app: web}}}}
"""
NODE = """
---
apiVersion: v1
kind: Node
metadata: {{name: {name}, labels: {{topology.kubernetes.io/zone: z-{name}}}}}
status: {{allocatable: {{cpu: "2"}}, conditions: [{{type: Ready, status: "True"}}]}}
"""


@pytest.fixture
def kepd(short_path: Path, free_port: int) -> Iterator[Kepd]:
    with Kepd(short_path, free_port) as daemon:
        (daemon.manifests / "all.yaml").write_text(MANIFESTS + NODE.format(name="a") + NODE.format(name="b"))
        daemon.start("--planes", "")
        daemon.wait(lambda: daemon.ctl("get", "planes").returncode == 0, "an answer")
        yield daemon


@pytest.mark.parametrize(("what", "name"), [("hints", "default/web"), ("spread", "default/one")])
@pytest.mark.parametrize("output", ["table", "json"])
def test_the_daemon_says_what_the_files_say(kepd: Kepd, what: str, name: str, output: str) -> None:
    asked = kepd.ctl("explain", what, name, "-o", output)
    read = kepd.ctl("explain", what, name, "-o", output, "--from-files", str(kepd.manifests))

    assert asked.stdout == read.stdout
    assert (asked.returncode, read.returncode) == (0, 0)


def test_what_no_manifest_has_is_not_found(kepd: Kepd) -> None:
    done = kepd.ctl("explain", "hints", "default/wbe")

    assert done.returncode == 3
    assert 'did you mean "default/web"' in done.stderr

# SPDX-License-Identifier: Apache-2.0
"""`kepctl explain hints` and `spread` answered by the daemon: the same words as from the same files."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config.document import Configuration, ManifestsSection
from agent.drivers.clock.driver import SystemClock
from agent.host.joints.topology import TopologyOfManifests
from agent.model.refused import Refused
from agent.services.attach.assembly import ServiceParts, wire_services
from agent.services.attach.manifests import SERVICE_READING, services_in
from agent.topology.hints.standalone import HintOptions
from tests.host.process import Kepd
from tests.objects.looks import after

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


async def test_hints_are_explained_from_what_the_plane_programs(tmp_path: Path) -> None:
    """FS-24: while an edit is half done the plane keeps the last good version, and that is what routes follow."""
    configuration = Configuration(manifests=ManifestsSection(directory=str(tmp_path)))
    good = MANIFESTS + NODE.format(name="a") + NODE.format(name="b")
    taken = services_in(after(SERVICE_READING, {"all.yaml": good.encode()}), HintOptions())
    (tmp_path / "all.yaml").write_text("kind: [half done")
    beside = TopologyOfManifests(lambda: configuration, lambda: taken.known)
    alone = TopologyOfManifests(lambda: configuration)
    text, is_active = await beside.hints("default/web")

    assert is_active
    assert '"service":"default/web"' in text
    with pytest.raises(LookupError):
        await alone.hints("default/web")


async def test_hints_of_a_cluster_are_not_explained_from_a_directory(short_path: Path) -> None:
    """FS-24: an API server computes them, whatever lies in the directory."""
    plain = Configuration()
    settings = replace(plain.services, source="kubernetes")
    state = replace(plain.node, state_directory=str(short_path))
    unit = wire_services(
        replace(plain, services=settings, node=state),
        ServiceParts(clock=SystemClock(), tell=lambda _event: None, kube=lambda: None),
    )
    view = TopologyOfManifests(lambda: plain, unit.programmed)

    with pytest.raises(Refused, match=r"Services come from the API server.*`--from-files`"):
        await view.hints("default/web")
    await unit.close()


def test_what_no_manifest_has_is_not_found(kepd: Kepd) -> None:
    done = kepd.ctl("explain", "hints", "default/wbe")

    assert done.returncode == 3
    assert 'did you mean "default/web"' in done.stderr

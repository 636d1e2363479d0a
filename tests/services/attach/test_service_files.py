# SPDX-License-Identifier: Apache-2.0
"""Services followed in a directory: what a reload of the configuration changes at once."""

import asyncio
from dataclasses import replace
from pathlib import Path

from agent.config.document import Configuration
from agent.model.nodes.node import ZONE_LABEL
from agent.model.services.service import ServiceKey
from agent.services.attach.files import ManifestServices, NoPods
from agent.services.attach.manifests import SERVICE_READING
from agent.services.attach.pods import slices_of_pods
from agent.services.objects.node_state import NodeSettings
from agent.services.routes.desired import Desired, NodeFacts
from agent.services.routes.selection import Place
from agent.services.run.intake import ServiceInputs
from tests.fakes.clock import FakeClock
from tests.fakes.manifests import FakeManifestDirectory
from tests.objects import looks
from tests.objects.following import following
from tests.services.attach.test_service_manifests import NODES, SERVICE, slices
from tests.services.attach.test_service_pods import CHOICE, pod

WITHIN_S = 30.0


async def test_other_hints_are_computed_at_a_reload(tmp_path: Path) -> None:
    """TOP-47: no file has to change for it."""
    for name, content in {"a": SERVICE, "b": slices(4), "c": NODES}.items():
        (tmp_path / f"{name}.yaml").write_text(content)
    plain = Configuration()
    settled = replace(plain.manifests, directory=str(tmp_path), debounce=0.0)
    node = replace(plain.node, state_directory=str(tmp_path / "state"))
    current = replace(plain, node=node, manifests=settled, services=replace(plain.services, hints=_mode(plain, "off")))
    intake = ServiceInputs(NodeSettings(node="a"), tell=lambda _event: None, started_s=0.0)

    def zones() -> set[str]:
        found = intake.fold.slices(ServiceKey("default", "web"), "IPv4")
        return {zone for one in found for backend in one.endpoints for zone in backend.zones}

    async with (
        asyncio.timeout(WITHIN_S),
        following(tmp_path, tmp_path / "objects.db", SERVICE_READING) as (manifests,),
        asyncio.TaskGroup() as group,
    ):
        source = ManifestServices(lambda: current, intake, NoPods(), manifests)
        running = group.create_task(source.run())
        await intake.arrived.wait()
        before = zones()
        current = replace(current, services=replace(current.services, hints=_mode(plain, "compute")))
        source.reloaded()
        while not zones():
            await asyncio.sleep(0.01)
        running.cancel()

    assert (before, zones()) == (set(), {"z1", "z2"})


async def test_addresses_and_ages_outlive_the_process(tmp_path: Path) -> None:
    """FS-21, FS-23: who was first seen first keeps a node port that both want."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    plain = Configuration()
    current = replace(
        plain,
        node=replace(plain.node, state_directory=str(tmp_path / "state")),
        manifests=replace(plain.manifests, directory=str(folder), debounce=0.0),
        services=replace(plain.services, service_cidrs=("10.96.0.0/16",)),
    )
    spec = "spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}"

    def write(name: str) -> None:
        (folder / f"{name}.yaml").write_text(f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n{spec}\n")

    async def taken(wall_s: float) -> ServiceInputs:
        intake = ServiceInputs(NodeSettings(node="a"), tell=lambda _event: None, started_s=0.0)
        source = ManifestServices(lambda: current, intake, NoPods(), FakeManifestDirectory({}), FakeClock(wall_s))
        await source.take(looks.after(SERVICE_READING, {path.name: path.read_bytes() for path in folder.iterdir()}))
        return intake

    write("zebra")
    before = await taken(1_000_000.0)
    write("ant")
    after = await taken(2_000_000.0)
    desired = Desired("IPv4", NodeFacts(Place("a")), after.fold)
    desired.changed.update(after.fold.services)
    desired.update()
    zebra, ant = ServiceKey("default", "zebra"), ServiceKey("default", "ant")

    assert before.fold.services[zebra].v4 == after.fold.services[zebra].v4
    assert list(desired.conflicts(zebra)) == []
    assert "belongs to default/zebra" in next(desired.conflicts(ant)).text
    assert ((tmp_path / "state/services/allotted.json").stat().st_mode & 0o077) == 0


async def test_a_file_that_others_may_write_is_reported_and_holds_up_no_other_service(tmp_path: Path) -> None:
    """FP-13: in the Services' own status as well, for they may have a directory of their own."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    for name in ("good", "open"):
        text = f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n"
        (folder / f"{name}.yaml").write_text(text + "spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}\n")
    (folder / "open.yaml").chmod(0o666)
    plain = Configuration()
    node = replace(plain.node, state_directory=str(tmp_path / "state"))
    current = replace(plain, node=node, manifests=replace(plain.manifests, directory=str(folder), debounce=0.0))
    intake = ServiceInputs(NodeSettings(node="a"), tell=lambda _event: None, started_s=0.0)
    async with (
        asyncio.timeout(WITHIN_S),
        following(folder, tmp_path / "objects.db", SERVICE_READING) as (manifests,),
        asyncio.TaskGroup() as group,
    ):
        running = group.create_task(ManifestServices(lambda: current, intake, NoPods(), manifests).run())
        await intake.arrived.wait()
        services = set(intake.fold.services)
        complaints = [str(one) for found in intake.findings.values() for one in found]
        running.cancel()

    assert services == {ServiceKey("default", "good")}
    assert any(one.startswith(f"{folder}/open.yaml: every user may write it (mode 0666)") for one in complaints)


def test_topology_reads_slices_of_pods_and_this_node() -> None:
    """NU-05: a Service of a bare node had no slice in an explanation, beside its slice in a list."""
    intake = ServiceInputs(NodeSettings(node="a"), tell=lambda _event: None, started_s=0.0)
    source = ManifestServices(Configuration, intake, NoPods(), FakeManifestDirectory({}))
    source._made = slices_of_pods([CHOICE], [pod("one")], "a")
    found = source.as_topology_reads("a", {ZONE_LABEL: "z1"})

    assert [(one.name, one.zone) for one in found.nodes] == [("a", "z1")]
    assert [(one.namespace, one.service) for one in found.slices] == [("shop", "web")]


def _mode(plain: Configuration, mode: str) -> object:
    return replace(plain.services.hints, mode=mode)

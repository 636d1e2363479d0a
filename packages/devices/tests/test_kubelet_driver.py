# SPDX-License-Identifier: Apache-2.0
"""kepd's own driver beside a kubelet: a client in the kubelet's place, and an API server of the tests' own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.drivers.clock.driver import SystemClock
from agent.model.component import Board, Report, State
from agent.model.devices.plugin import ClaimAnswer, ClaimReference
from kepd_devices.attach.cluster import ApiCluster
from kepd_devices.drivers.plugin_sockets.driver import PluginSockets
from kepd_devices.drivers.plugin_sockets.serving import DriverSockets, SocketTaken
from kepd_devices.local.fake import fake_slices
from kepd_devices.manifest.objects import Slice
from kepd_devices.plan.publishing import document, publication
from kepd_devices.run.drivers.kubelet_driver import KubeletDriver
from kepd_devices.run.drivers.local_driver import LocalDriver
from kepd_devices.run.own_devices import FakeDevices
from packages.devices.tests.fakes import FakeCdi
from packages.devices.tests.offered import device, slice_of
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import Certificates, make_certificates
from tests.drivers.kube.following import client_of
from tests.fakes.state_files import FakeStateFiles

NAME = "fake.kepd.dev"
WITHIN_S = 40.0
CLAIM = {
    "metadata": {"name": "mine", "namespace": "default", "uid": "u-1"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": NAME}}]}},
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "r", "driver": NAME, "pool": "n1", "device": "fake-1"},
                    {"request": "r", "driver": "other.example.com", "pool": "n1", "device": "x"},
                ]
            }
        },
        "reservedFor": [{"resource": "pods", "name": "web", "uid": "p"}],
    },
}
MINE = ClaimReference("default", "mine", "u-1")


class Beside:
    """The driver over its lives, with a kubelet's directory and an API server."""

    def __init__(self, folder: Path, server: ApiServer, client: Any) -> None:
        self.folder, self.server, self.client = folder, server, client
        self.cdi, self.disk = FakeCdi(), FakeStateFiles()
        self.board = Board(lambda: 0.0)
        self.count = 2
        server.objects.put("nodes", {"metadata": {"name": "n1", "uid": "node-uid"}, "spec": {}})
        server.objects.create("resourceclaims", CLAIM, "default")

    def begin(self) -> None:
        async def hang(_: float) -> None:
            await asyncio.Event().wait()

        local = LocalDriver(FakeDevices("n1", self.count, 1.0, hang), self.cdi, self.disk, lambda _: None)
        sockets = DriverSockets(self.folder, NAME)
        cluster = ApiCluster(self.client, "n1")
        self.driver = KubeletDriver(local, sockets, cluster, self.disk, SystemClock(), "n1")
        report = self.board.add("devices", State.STARTING)
        self.task = asyncio.create_task(self.driver.run(report))

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        for _ in range(int(WITHIN_S / 0.02)):
            if condition():
                return
            if self.task.done():
                self.task.result()
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within {WITHIN_S} s: {what}; {self.board.lines()}")

    @property
    def slices(self) -> list[dict[str, Any]]:
        """Those that the server has."""
        return [one for one in map(self._slice, range(9)) if one is not None]

    def _slice(self, number: int) -> dict[str, Any] | None:
        name = f"n1-{NAME}" if not number else f"n1-{number}"
        try:
            found: dict[str, Any] = self.server.objects.get("resourceslices", "", name)
        except Exception:  # noqa: BLE001  # the store says in its own words that it is not there
            return None
        return found

    async def registered(self) -> tuple[PluginSockets, str]:
        sockets = PluginSockets(self.folder / "plugins_registry", Path.home().stat().st_uid)
        await self.until(sockets.look, "the registration socket")
        return sockets, sockets.look()[0].path

    async def call(self, what: str, *claims: ClaimReference, version: str = "v1.DRAPlugin") -> dict[str, ClaimAnswer]:
        sockets, path = await self.registered()
        info = await sockets.info(path)
        connection = sockets.connect(info.endpoint, version, lambda _m, _c, _s: None)
        try:
            found: dict[str, ClaimAnswer] = await getattr(connection, what)(claims, 10.0)
            return found
        finally:
            await connection.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("kube-ca"))


@pytest.fixture
async def beside(short_path: Path, certificates: Certificates) -> AsyncIterator[Beside]:
    async with serving(certificates) as server, client_of(server) as client:
        made = Beside(short_path, server, client)
        made.begin()
        yield made
        await made.end()


async def test_slices_are_published_before_a_kubelet_finds_the_driver(beside: Beside) -> None:
    """DVD-1, DVD-2, DVD-5."""
    sockets, path = await beside.registered()
    (found,) = beside.slices
    info = await sockets.info(path)

    assert [one["name"] for one in found["spec"]["devices"]] == ["fake-0", "fake-1"]
    assert found["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    assert found["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert (info.type, info.name, info.endpoint) == (
        "DRAPlugin",
        NAME,
        str(beside.folder / "plugins" / NAME / "dra.sock"),
    )
    assert info.versions == ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
    await sockets.notify(path)
    await beside.until(lambda: "; registered" in beside.board.line("devices").message, "told on the board")


@pytest.mark.parametrize("version", ["v1.DRAPlugin", "v1beta1.DRAPlugin"])
async def test_a_claim_is_prepared_from_the_api_server_and_given_back(beside: Beside, version: str) -> None:
    """DVD-3, DVD-4."""
    answer = (await beside.call("prepare", MINE, version=version))["u-1"]
    assert answer.error == ""
    assert [(one.requests, one.pool, one.device, one.cdi_ids) for one in answer.devices] == [
        (("r",), "n1", "fake-1", (f"{NAME}/claim=u-1-r-0",))
    ]
    assert list(beside.cdi.files) == [f"{NAME}-claim_u-1.json"]
    assert (await beside.call("prepare", MINE, version=version))["u-1"] == answer

    assert (await beside.call("unprepare", MINE, version=version))["u-1"].error == ""
    assert (beside.cdi.files, beside.disk.files) == ({}, {})
    assert (await beside.call("unprepare", MINE))["u-1"].error == ""


async def test_a_new_process_answers_as_before_and_needs_no_api_server_to_give_back(beside: Beside) -> None:
    """DVD-3, DVD-7."""
    before = await beside.call("prepare", MINE)
    await beside.end()
    assert not (beside.folder / "plugins_registry" / f"{NAME}-reg.sock").exists()
    beside.cdi.files.clear()
    beside.begin()
    await beside.registered()
    assert len(beside.cdi.files) == 1
    await beside.server.refuse()

    assert await beside.call("prepare", MINE) == before
    assert (await beside.call("unprepare", MINE))["u-1"].error == ""
    assert beside.disk.files == {}


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        (ClaimReference("default", "mine", "u-2"), "claim default/mine has uid u-1, and was asked for as u-2"),
        (ClaimReference("default", "other", "u-3"), "claim default/other is not there"),
        (ClaimReference("default", "free", "u-4"), "claim default/free has no devices of fake.kepd.dev on this node"),
    ],
)
async def test_a_claim_that_is_not_meant_is_refused(beside: Beside, reference: ClaimReference, complaint: str) -> None:
    """DVD-3."""
    free = {"metadata": {"name": "free", "uid": "u-4"}, "spec": {}}
    beside.server.objects.create("resourceclaims", free, "default")
    answers = await beside.call("prepare", reference, MINE)

    assert answers[reference.uid].error == complaint
    assert answers["u-1"].error == ""


async def test_without_an_api_server_nothing_new_is_prepared(beside: Beside) -> None:
    """DVD-7."""
    await beside.registered()
    await beside.server.refuse()

    assert "resourceclaims/mine" in (await beside.call("prepare", MINE))["u-1"].error


async def test_slices_that_others_change_are_put_back(beside: Beside) -> None:
    """DVD-5."""
    await beside.registered()
    changed = {**beside.slices[0], "spec": {**beside.slices[0]["spec"], "devices": []}}
    beside.server.objects.put("resourceslices", changed)
    stray = {"metadata": {"name": "n1-1"}, "spec": {**changed["spec"], "driver": NAME, "nodeName": "n1"}}
    beside.server.objects.put("resourceslices", stray)
    beside.driver._changed.set()
    await beside.until(lambda: len(beside.slices) == 1 and beside.slices[0]["spec"].get("devices"), "put back")

    assert beside.slices[0]["spec"]["pool"]["generation"] == 2


async def test_a_change_between_writing_and_waiting_is_not_missed(beside: Beside) -> None:
    """DVD-5: the next look would come half a minute later."""
    await beside.registered()
    written = dict(beside.slices[0])
    reported, changes = beside.driver._report, [{**written, "spec": {**written["spec"], "devices": []}}]

    def report(to: Report) -> None:
        reported(to)
        if changes:
            beside.server.objects.put("resourceslices", changes.pop())
            beside.driver._changed.set()

    beside.driver._report = report  # type: ignore[method-assign]
    beside.driver._changed.set()
    await beside.until(lambda: not changes and beside.slices[0]["spec"].get("devices"), "put back")


async def test_only_one_process_serves_a_driver(beside: Beside) -> None:
    """DVD-1."""
    await beside.registered()
    other = DriverSockets(beside.folder, NAME)

    with pytest.raises(SocketTaken, match="is held by another process"):
        async with other.serving(beside.driver, lambda: 0.0):
            pass
    assert beside.driver is not None
    assert (beside.folder / "plugins" / NAME / "dra.sock").exists()


async def test_health_is_told_of_all_devices(beside: Beside) -> None:
    """DVD-9."""
    await beside.registered()
    async for found in beside.driver.health():
        assert [(one.pool, one.device, one.is_healthy) for one in found] == [
            ("n1", "fake-0", True), ("n1", "fake-1", True),
        ]  # fmt: skip
        break


async def test_a_device_that_its_check_calls_sick_is_told_and_published_as_such(beside: Beside) -> None:
    """DVD-9, DVD-26: the scheduler sees no health, and so a taint."""
    await beside.registered()
    devices = beside.driver.local.devices
    devices._sick["fake-1"] = 1
    beside.driver._checks.ring()

    def taints() -> list[list[str]]:
        return [[it["key"] for it in one.get("taints", ())] for one in beside.slices[0]["spec"]["devices"]]

    await beside.until(lambda: taints() == [[], ["devices.kepd.dev/unhealthy"]], "published")
    async for found in beside.driver.health():
        assert [(one.device, one.is_healthy, one.message) for one in found] == [
            ("fake-0", True, ""), ("fake-1", False, "fails its check, as the parameters of its claim ask"),
        ]  # fmt: skip
        break


async def test_a_device_that_is_gone_since_the_start_is_unhealthy(beside: Beside) -> None:
    """DVD-9, DVD-20: it is in no slice, and a claim has it all the same."""
    await beside.registered()
    await beside.call("prepare", MINE)
    await beside.end()
    beside.count = 1
    beside.begin()
    await beside.until(lambda: beside.driver.records, "read")
    async for found in beside.driver.health():
        assert [(one.device, one.is_healthy, one.message) for one in found] == [
            ("fake-0", True, ""), ("fake-1", False, "devices.kepd.dev/missing"),
        ]  # fmt: skip
        break


async def test_a_reset_outlasts_the_call_of_the_kubelet(beside: Beside) -> None:
    """DVD-4, DVD-23: who asks again finds it done, or waits for the same one."""
    await beside.registered()
    await beside.call("prepare", MINE)
    done, calls = asyncio.Event(), []
    given_back = beside.driver.local.unprepare

    async def unprepare(claims: Any) -> Any:
        calls.append(len(claims))
        await done.wait()
        return await given_back(claims)

    beside.driver.local.unprepare = unprepare  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(beside.driver.unprepare([MINE]), 0.05)
    done.set()
    answers = await beside.call("unprepare", MINE)

    assert answers["u-1"].error == ""
    assert calls == [1]
    assert (beside.driver.records, beside.cdi.files) == ({}, {})


def named(one: Slice, name: str) -> Slice:
    return replace(one, metadata=replace(one.metadata, name=name))


def test_a_pool_gets_a_higher_generation_as_a_whole() -> None:
    """DVD-5."""
    first = [named(slice_of(device("a")), "s-0"), named(slice_of(device("b")), "s-1")]
    assert publication(first, ()).deletes == ()
    assert [one.spec.pool.generation for one in publication(first, ()).writes] == [1, 1]
    there = publication(first, ()).writes
    assert publication(first, there) == publication((), ())

    fewer = publication(first[:1], there)
    assert ([one.spec.pool.generation for one in fewer.writes], fewer.deletes) == ([2], ("s-1",))


def test_what_is_written_has_nothing_empty() -> None:
    (one,) = fake_slices("n1", 1)

    assert document(one, "") == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "n1-fake.kepd.dev"},
        "spec": {
            "driver": NAME,
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "fake-0", "attributes": {"index": {"int": 0}}}],
        },
    }

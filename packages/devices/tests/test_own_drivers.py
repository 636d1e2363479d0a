# SPDX-License-Identifier: Apache-2.0
"""kepd's own drivers: the fake device, and devices named in the configuration."""

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent.model.event import Event
from agent.model.refused import Refused
from kepd_devices.cdi.merging import HostNode
from kepd_devices.cdi.spec import CdiSpec, spec_faults
from kepd_devices.local.configured import SeenNode, configured_slices, find_devices
from kepd_devices.local.pool_rules import PoolRule, read_rules
from kepd_devices.manifest.objects import Allocation, Claim, ClaimStatus
from kepd_devices.manifest.slice_faults import slice_faults
from kepd_devices.plan.records import ClaimRecord, Holder, Stage, new_record
from kepd_devices.run.drivers.local_driver import LocalDriver
from kepd_devices.run.host_devices import HostDevices
from kepd_devices.run.own_devices import ConfiguredDevices, FakeDevices
from packages.devices.tests.fakes import FakeCdi
from packages.devices.tests.offered import claim
from packages.devices.tests.test_claims import ONE, NodeOfLives, held, shared_pod
from tests.fakes.state_files import FakeStateFiles

CHARACTERS = HostNode(type="c", major=1, minor=3)
DRIVER = "devices.kepd.dev"


def record(driver: str, *devices: str, config: Any = ()) -> ClaimRecord:
    results = [{"request": "r", "driver": driver, "pool": "here", "device": one} for one in devices]
    opaque = [{"source": "FromClaim", "opaque": {"driver": driver, "parameters": one}} for one in config]
    allocation = msgspec.convert({"devices": {"results": results, "config": opaque}}, Allocation)
    held: Claim = msgspec.structs.replace(claim(), status=ClaimStatus(allocation=allocation))
    return new_record(held, is_made=False, boot_id="b", holder=Holder("p", "default", "p"))


def rules(*given: dict[str, Any]) -> list[PoolRule]:
    found, findings = read_rules(given)
    assert [str(one) for one in findings] == []
    return found


class Nodes(HostDevices):
    """A /dev that a test fills."""

    def __init__(self, *paths: str) -> None:
        super().__init__()
        self.paths = list(paths)
        self.serials: dict[str, str] = {}
        self.targets: dict[str, str] = {}

    def look(self, rules: Any) -> list[list[SeenNode]]:
        return [[self._seen(path) for path in self.paths] for _ in rules]

    def _seen(self, path: str) -> SeenNode:
        values = {"serial": self.serials[path]} if path in self.serials else {}
        return SeenNode(path, CHARACTERS, values, self.targets.get(path, path))


class Configured:
    """A driver of devices named in the configuration."""

    def __init__(self, *paths: str, **rule: Any) -> None:
        self.rules = rules({"match": {"glob": "/dev/tty*"}, **rule})
        self.host = Nodes(*paths)
        self.cdi, self.disk = FakeCdi(), FakeStateFiles()
        self.told: list[Event] = []
        self.held: list[ClaimRecord] = []

    async def driver(self) -> LocalDriver:
        devices = ConfiguredDevices(DRIVER, "here", lambda: self.rules, self.host, lambda: self.held)
        await devices.look()
        made = LocalDriver(devices, self.cdi, self.disk, self.told.append)
        await made.restore(())
        return made

    @property
    def spec(self) -> CdiSpec:
        (content,) = self.cdi.files.values()
        return msgspec.json.decode(content, type=CdiSpec)


def names(driver: LocalDriver) -> dict[str, list[str]]:
    return {one.name: [taint.key for taint in one.taints] for it in driver.slices() for one in it.spec.devices or ()}


def script(folder: Path, text: str, mode: int = 0o755) -> str:
    path = folder / "command"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


class TestFake:
    """Variables alone."""

    def driver(self, count: int = 4) -> tuple[LocalDriver, FakeCdi]:
        cdi = FakeCdi()

        async def sleep(_: float) -> None:
            raise TimeoutError

        devices = FakeDevices("here", count, 1.0, sleep)
        return LocalDriver(devices, cdi, FakeStateFiles(), lambda _: None), cdi

    def test_it_publishes_as_many_devices_as_it_is_asked_for(self) -> None:
        """DVD-30."""
        driver, _ = self.driver()

        assert list(names(driver)) == ["fake-0", "fake-1", "fake-2", "fake-3"]
        assert [list(slice_faults(one)) for one in driver.slices()] == [[]]
        assert [one.metadata.name for one in driver.classes()] == ["fake.kepd.dev"]
        assert self.driver(0)[0].slices() == ()

    async def test_a_container_sees_variables_and_parameters_divide_devices(self) -> None:
        """DVD-30."""
        driver, cdi = self.driver()
        split = {"apiVersion": "fake.kepd.dev/v1alpha1", "kind": "FakeClaimParameters", "spec": {"split": 2}}
        answers = await driver.prepare([record("fake.kepd.dev", "fake-1", "fake-3", config=[split])])
        (content,) = cdi.files.values()
        spec = msgspec.json.decode(content, type=CdiSpec)

        assert list(spec_faults(spec)) == []
        assert list(cdi.files) == ["fake.kepd.dev-claim_u-c.json"]
        assert spec.container_edits.env == ("DRA_RESOURCE_DRIVER_NAME=fake.kepd.dev", "FAKE_NODE_NAME=here")
        assert [[one.partition("=")[0] for one in it.container_edits.env] for it in spec.devices] == [
            ["FAKE_DEVICE_0", "FAKE_DEVICE_1"], ["FAKE_DEVICE_2", "FAKE_DEVICE_3"],
        ]  # fmt: skip
        assert [one.cdi_ids for one in answers["u-c"].devices] == [
            ("fake.kepd.dev/claim=u-c-r-0",), ("fake.kepd.dev/claim=u-c-r-1",),
        ]  # fmt: skip

    async def test_it_serves_the_manager_as_any_other_driver(self) -> None:
        """DVD-8: through the same port, and no socket."""
        node = NodeOfLives(0)
        node.texts = (ONE.replace("gpu.example.com", "fake.kepd.dev"),)
        manager = await node.manager()
        driver, cdi = self.driver(1)
        manager.add_driver(driver)
        first, second = await held(manager, shared_pod("one")), await held(manager, shared_pod("other"))
        assert (first, second) == ("", "")
        (claim_record,) = manager.records.values()
        assert claim_record.drivers["fake.kepd.dev"].stage is Stage.PREPARED
        assert list(cdi.files) == [f"fake.kepd.dev-claim_{claim_record.uid}.json"]

        await manager.release("uid-one")
        assert list(cdi.files)
        await manager.release("uid-other")
        assert (cdi.files, manager.records) == ({}, {})

    async def test_what_is_asked_again_is_answered_as_before(self) -> None:
        driver, cdi = self.driver()
        asked = [record("fake.kepd.dev", "fake-1")]
        first, written = await driver.prepare(asked), dict(cdi.files)

        assert (await driver.prepare(asked), cdi.files) == (first, written)
        assert [one.error for one in (await driver.unprepare(asked)).values()] == [""]
        assert [one.error for one in (await driver.unprepare(asked)).values()] == [""]
        assert cdi.files == {}

    @pytest.mark.parametrize(
        ("given", "complaint"),
        [
            ({"kind": "FakeClaimParameters"}, "missing required field apiVersion"),
            ({"apiVersion": "fake.kepd.dev/v1", "kind": "FakeClaimParameters"}, "Invalid enum value"),
            (
                {"apiVersion": "fake.kepd.dev/v1alpha1", "kind": "FakeClaimParameters", "spec": {"s": 1}},
                "unknown field s",
            ),
            (
                {"apiVersion": "fake.kepd.dev/v1alpha1", "kind": "FakeClaimParameters", "spec": {"split": 0}},
                "split is 0; expected 1 to 16",
            ),
        ],
    )
    async def test_wrong_parameters_are_an_error_of_the_claim(self, given: Any, complaint: str) -> None:
        """DVD-25."""
        driver, cdi = self.driver()
        answers = await driver.prepare([record("fake.kepd.dev", "fake-1", config=[given])])

        assert complaint in answers["u-c"].error
        assert cdi.files == {}

    async def test_it_fails_as_often_as_parameters_ask(self) -> None:
        """DVD-31."""
        driver, _ = self.driver()
        fail = {"apiVersion": "fake.kepd.dev/v1alpha1", "kind": "FakeClaimParameters", "spec": {"fail": {"prepare": 1}}}
        asked = [record("fake.kepd.dev", "fake-1", config=[fail])]

        assert "fails to prepare claim default/c" in (await driver.prepare(asked))["u-c"].error
        assert (await driver.prepare(asked))["u-c"].error == ""


class TestConfigured:
    """Nodes below /dev."""

    async def test_nodes_become_devices_with_attributes_and_shares(self) -> None:
        """DVD-20, DVD-21."""
        node = Configured(
            "/dev/ttyUSB0", "/dev/ttyUSB1", name="usb-{basename}", shared={"max": 4}, capacity={"lines": "2"},
            attributes={"kind": "serial", "speed": 115200, "fast": True, "firmware": {"version": "1.2.0"}},
        )  # fmt: skip
        (one,) = (await node.driver()).slices()
        assert one.spec.devices is not None
        device = one.spec.devices[0]

        assert list(slice_faults(one)) == []
        assert [it.name for it in one.spec.devices] == ["usb-ttyusb0", "usb-ttyusb1"]
        assert {name: (*it.scalars.values(),) for name, it in device.attributes.items()} == {
            "kind": ("serial",), "speed": (115200,), "fast": (True,), "firmware": ("1.2.0",),
        }  # fmt: skip
        assert {name: it.value for name, it in device.capacity.items()} == {"lines": "2", "shares": "4"}

    async def test_a_container_gets_node_variables_and_mounts(self) -> None:
        """DVD-22, DVD-25."""
        node = Configured(
            "/dev/ttyUSB0", env={"PORT": "{path}", "NAME": "{name}"}, parameters=["SPEED"],
            nodes=[{"path": "{path}", "as": "/dev/modem{index}", "permissions": "rw"}],
            mounts=[{"hostPath": "/usr/share/modem", "containerPath": "/usr/share/modem", "readOnly": True}],
        )  # fmt: skip
        given = {"apiVersion": "devices.kepd.dev/v1alpha1", "kind": "DeviceParameters", "env": {"SPEED": "9600"}}
        await (await node.driver()).prepare([record(DRIVER, "ttyusb0", config=[given])])

        assert list(spec_faults(node.spec)) == []
        edits = node.spec.devices[0].container_edits
        assert edits.env == ("PORT=/dev/ttyUSB0", "NAME=ttyusb0", "SPEED=9600")
        assert [(one.path, one.host_path, one.permissions) for one in edits.device_nodes] == [
            ("/dev/modem0", "/dev/ttyUSB0", "rw")
        ]
        assert edits.mounts[0].options == ("ro", "bind")

    async def test_a_claim_sets_only_variables_that_the_pool_names(self) -> None:
        """DVD-25."""
        node = Configured("/dev/ttyUSB0")
        given = {"apiVersion": "devices.kepd.dev/v1alpha1", "kind": "DeviceParameters", "env": {"LD_PRELOAD": "x"}}
        answers = await (await node.driver()).prepare([record(DRIVER, "ttyusb0", config=[given])])

        assert "variable LD_PRELOAD is not one that the pool lets claims set: none" in answers["u-c"].error

    def test_two_nodes_of_one_name_are_a_finding(self) -> None:
        """DVD-20."""
        seen = [
            SeenNode("/dev/a", CHARACTERS),
            SeenNode("/dev/b", CHARACTERS),
            SeenNode("/dev/file", HostNode(type="")),
        ]
        found, findings = find_devices(rules({"match": {"glob": "/dev/*"}, "name": "same"}), [seen])

        assert {name: one.words["path"] for name, one in found.items()} == {"same": "/dev/a"}
        assert [str(one) for one in findings] == [
            "devices.driver.pools[0].name: /dev/b is called same, as /dev/a is; it is left out"
        ]

    def test_only_nodes_with_the_wanted_values_of_sysfs_count(self) -> None:
        """DVD-20, DVD-21."""
        rule = {
            "match": {"glob": "/dev/*", "sysfs": {"idVendor": "0403"}}, "attributes": {"vendor": {"sysfs": "idVendor"}},
        }  # fmt: skip
        seen = [SeenNode("/dev/a", CHARACTERS, {"idVendor": "0403"}), SeenNode("/dev/b", CHARACTERS, {"idVendor": "1"})]
        found, _ = find_devices(rules(rule), [seen])
        (one,) = configured_slices(DRIVER, "here", found, 1)

        assert [(it.name, it.attributes["vendor"].text) for it in one.spec.devices or ()] == [("a", "0403")]

    async def test_a_device_that_vanishes_leaves_unless_a_claim_has_it(self) -> None:
        """DVD-20."""
        node = Configured("/dev/ttyUSB0", "/dev/ttyUSB1")
        driver = await node.driver()
        node.held, node.host.paths = [record(DRIVER, "ttyusb0")], []
        generation = driver.slices()[0].spec.pool.generation

        assert await driver.look(node.held)
        assert names(driver) == {"ttyusb0": ["devices.kepd.dev/missing"]}
        assert driver.slices()[0].spec.pool.generation == generation + 1
        node.held = []
        assert await driver.look(())
        assert names(driver) == {}

    async def test_a_device_that_comes_back_as_another_node_is_the_same(self) -> None:
        """DVD-20: by what the name says of it, also where another has its old node. Files of claims follow."""
        node = Configured("/dev/ttyUSB1", name="modem-{serial}", attributes={"serial": {"sysfs": "serial"}})
        node.host.serials = {"/dev/ttyUSB1": "A17"}
        driver = await node.driver()
        node.held = [record(DRIVER, "modem-a17")]
        await driver.prepare(node.held)
        node.held = [node.held[0].at(DRIVER, Stage.PREPARED)]
        before = names(driver)
        node.host.paths = []
        await driver.look(node.held)
        while_away = names(driver)
        node.host.paths, node.host.serials = ["/dev/ttyUSB1", "/dev/ttyUSB2"], {
            "/dev/ttyUSB1": "B2", "/dev/ttyUSB2": "A17",
        }  # fmt: skip
        assert await driver.look(node.held)

        assert before == {"modem-a17": []}
        assert while_away == {"modem-a17": ["devices.kepd.dev/missing"]}
        assert names(driver) == {"modem-a17": [], "modem-b2": []}
        assert [one.path for one in node.spec.devices[0].container_edits.device_nodes] == ["/dev/ttyUSB2"]
        (told,) = node.told
        assert told.reason == "DeviceMoved"
        assert "was /dev/ttyUSB1 (c 1:3) and is /dev/ttyUSB2 (c 1:3)" in told.message
        assert not await driver.look(node.held)
        assert len(node.told) == 1

    async def test_a_link_that_leads_elsewhere_is_the_same_device(self) -> None:
        """DVD-20: containers get the node itself, by the name of the link."""
        node = Configured("/dev/serial/by-id/modem")
        node.host.targets = {"/dev/serial/by-id/modem": "/dev/ttyUSB1"}
        driver = await node.driver()
        node.held = [record(DRIVER, "modem")]
        await driver.prepare(node.held)
        first = node.spec.devices[0].container_edits.device_nodes[0]
        node.held = [node.held[0].at(DRIVER, Stage.PREPARED)]
        node.host.targets = {"/dev/serial/by-id/modem": "/dev/ttyUSB2"}
        await driver.look(node.held)
        second = node.spec.devices[0].container_edits.device_nodes[0]

        assert [(one.path, one.host_path) for one in (first, second)] == [
            ("/dev/serial/by-id/modem", "/dev/ttyUSB1"), ("/dev/serial/by-id/modem", "/dev/ttyUSB2"),
        ]  # fmt: skip
        assert [one.reason for one in node.told] == ["DeviceMoved"]

    async def test_a_device_without_what_its_name_says_is_a_finding(self) -> None:
        """DVD-20: two without a serial number are not one device."""
        node = Configured("/dev/ttyUSB1", name="modem-{serial}", attributes={"serial": {"sysfs": "serial"}})
        driver = await node.driver()
        devices = driver.devices
        assert isinstance(devices, ConfiguredDevices)

        assert names(driver) == {}
        assert "gives no name for /dev/ttyUSB1, which has no serial" in str(devices.findings[0])

    async def test_a_device_that_was_lost_when_its_claim_ended_is_given_to_nobody(self, tmp_path: Path) -> None:
        """DVD-24: kepd began anew while it was away, so nothing of it could be reset."""
        node = Configured("/dev/ttyUSB1", reset={"command": [script(tmp_path, "true")]})
        driver = await node.driver()
        asked = record(DRIVER, "ttyusb0")
        answers = await driver.unprepare([asked])
        node.host.paths.append("/dev/ttyUSB0")
        await driver.look(())

        assert answers["u-c"].error == ""
        assert names(driver) == {"ttyusb0": ["devices.kepd.dev/quarantined"], "ttyusb1": []}
        await driver.reset("ttyusb0")
        assert names(driver) == {"ttyusb0": [], "ttyusb1": []}

    async def test_a_shared_device_is_reset_after_its_last_claim(self, tmp_path: Path) -> None:
        """DVD-24: others go on with it until then."""
        out = tmp_path / "out"
        node = Configured(
            "/dev/ttyUSB0", shared={"max": 4}, reset={"command": [script(tmp_path, f"echo $CLAIM_UID >> {out}")]}
        )
        driver = await node.driver()
        first = record(DRIVER, "ttyusb0")
        other = replace(first, claim=replace(first.claim, metadata=replace(first.claim.metadata, uid="u-d")))
        node.held = [first.at(DRIVER, Stage.UNPREPARING), other.at(DRIVER, Stage.PREPARED)]
        await driver.unprepare([first])
        was_reset = out.exists()
        node.held = [other.at(DRIVER, Stage.UNPREPARING)]
        await driver.unprepare([other])

        assert not was_reset
        assert out.read_text() == "u-d\n"

    async def test_a_reset_may_take_longer_than_calls_of_drivers(self, tmp_path: Path) -> None:
        """DVD-23, DVD-24: its own limits count, with all its tries; or it would never be over."""
        reset = script(tmp_path, "sleep 0.3; exit 1")
        node = Configured("/dev/ttyUSB0", reset={"command": [reset], "timeout": "2s", "retries": 2})
        manager = await NodeOfLives(0, call_limit_s=0.1).manager()
        driver = await node.driver()
        manager.add_driver(driver)
        asked = record(DRIVER, "ttyusb0").at(DRIVER, Stage.PREPARED)
        manager.records[asked.uid] = asked
        await manager.release("p")

        assert names(driver) == {"ttyusb0": ["devices.kepd.dev/quarantined"]}
        assert manager.records == {}

    async def test_a_reset_runs_when_the_claim_ends_and_knows_its_device(self, tmp_path: Path) -> None:
        """DVD-23, DVD-24."""
        out = tmp_path / "out"
        reset = script(tmp_path, f'echo "$1 $DEVICE_NAME $DEVICE_PATH $CLAIM_NAMESPACE/$CLAIM_NAME $HOME" >> {out}')
        node = Configured("/dev/ttyUSB0", reset={"command": [reset, "{path}"]})
        driver = await node.driver()
        asked = [record(DRIVER, "ttyusb0")]
        await driver.prepare(asked)
        answers = await driver.unprepare(asked)

        assert answers["u-c"].error == ""
        assert out.read_text() == "/dev/ttyUSB0 ttyusb0 /dev/ttyUSB0 default/c \n"
        assert node.cdi.files == {}

    @pytest.mark.parametrize(
        ("on_failure", "taints"), [("quarantine", ["devices.kepd.dev/quarantined"]), ("ignore", [])]
    )
    async def test_a_device_that_cannot_be_reset_is_given_to_nobody_or_ignored(
        self, tmp_path: Path, on_failure: str, taints: list[str]
    ) -> None:
        """DVD-23, DVD-24: what a command prints is for who asks, and in no event."""
        reset = script(tmp_path, "echo not today; exit 3")
        node = Configured("/dev/ttyUSB0", reset={"command": [reset], "retries": 1, "onFailure": on_failure})
        driver = await node.driver()
        answers = await driver.unprepare([record(DRIVER, "ttyusb0")])

        assert answers["u-c"].error == ""
        assert names(driver) == {"ttyusb0": taints}
        assert "ended with exit code 3" in node.told[0].message
        assert not any("not today" in one.message for one in node.told)
        assert driver.commands.printed == {f"{DRIVER}/ttyusb0": "it printed: not today"}
        wanted = ["DeviceResetFailed", "DeviceQuarantined"] if taints else ["DeviceResetFailed"]
        assert [one.reason for one in node.told] == wanted
        assert names(await node.driver()) == {"ttyusb0": taints}

    async def test_a_device_in_quarantine_is_free_once_it_could_be_reset(self, tmp_path: Path) -> None:
        """DVD-24."""
        flag = tmp_path / "mended"
        node = Configured(
            "/dev/ttyUSB0", reset={"command": [script(tmp_path, f"[ -e {flag} ] || (echo too cold; exit 1)")]}
        )
        driver = await node.driver()
        await driver.unprepare([record(DRIVER, "ttyusb0")])

        with pytest.raises(Refused, match=r"stays in quarantine: .*exit code 1; it printed: too cold"):
            await driver.reset("ttyusb0")
        flag.touch()
        await driver.reset("ttyusb0")
        assert names(driver) == {"ttyusb0": []}
        assert (node.disk.files, driver.commands.printed) == ({}, {})
        with pytest.raises(Refused, match="is not in quarantine"):
            await driver.reset("ttyusb0")

    async def test_a_command_that_others_may_write_is_not_run(self, tmp_path: Path) -> None:
        """DVD-23."""
        node = Configured("/dev/ttyUSB0", prepare={"command": [script(tmp_path, "true", 0o777)]})
        answers = await (await node.driver()).prepare([record(DRIVER, "ttyusb0")])

        assert "can be written by others than root" in answers["u-c"].error

    async def test_a_command_that_does_not_end_is_ended_with_all_it_started(self, tmp_path: Path) -> None:
        """DVD-23."""
        pid = tmp_path / "pid"
        prepare = script(tmp_path, f"sleep 600 & echo $! > {pid}; wait")
        node = Configured("/dev/ttyUSB0", prepare={"command": [prepare], "timeout": "300ms"})
        answers = await (await node.driver()).prepare([record(DRIVER, "ttyusb0")])

        assert "did not end within 0.3 s" in answers["u-c"].error
        state = Path(f"/proc/{pid.read_text().strip()}/stat")
        assert not state.exists() or state.read_text().split()[2] == "Z"  # noqa: ASYNC240

    async def test_files_that_were_lost_are_written_again_and_strange_ones_go(self) -> None:
        """DVD-22."""
        node = Configured("/dev/ttyUSB0")
        driver = await node.driver()
        held = record(DRIVER, "ttyusb0")
        await driver.prepare([held])
        before = dict(node.cdi.files)
        node.cdi.files = {f"{DRIVER}-claim_gone.json": b"{}", "other.com-gpu.json": b"{}"}
        await driver.restore([held.at(DRIVER, Stage.PREPARED)])

        assert node.cdi.files == {**before, "other.com-gpu.json": b"{}"}


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({}, "devices.driver.pools[0]: object missing required field match"),
        ({"match": {}}, "devices.driver.pools[0].match: object missing required field glob"),
        ({"match": {"glob": "/etc/*"}}, "match.glob: '/etc/*' is not below /dev"),
        ({"match": {"glob": "/dev/../etc/*"}}, "is not below /dev"),
        ({"match": {"glob": "/dev/a"}, "nmae": "x"}, "object contains unknown field nmae"),
        ({"match": {"glob": "/dev/a"}, "name": "{seriol}"}, "name: '{seriol}' is not known; expected one of {path}"),
        ({"match": {"glob": "/dev/a"}, "attributes": {"a b": 1}}, "attributes.a b: is no name"),
        ({"match": {"glob": "/dev/a"}, "attributes": {"a": 1.5}}, "attributes.a: is 1.5; expected text"),
        ({"match": {"glob": "/dev/a"}, "attributes": {"a": {"version": "1"}}}, "attributes.a: '1' is no version"),
        ({"match": {"glob": "/dev/a"}, "attributes": {"a": {"udev": "x"}}}, "attributes.a: is no value"),
        ({"match": {"glob": "/dev/a"}, "capacity": {"a": "many"}}, "capacity.a: "),
        ({"match": {"glob": "/dev/a"}, "shared": {"max": 0}}, "shared.max: is 0; expected 1 to 1000"),
        ({"match": {"glob": "/dev/a"}, "env": {"": "c"}}, "env: is no variable"),
        ({"match": {"glob": "/dev/a"}, "nodes": [{"permissions": "x"}]}, "nodes[0].permissions: 'x' is not known"),
        (
            {"match": {"glob": "/dev/a"}, "mounts": [{"hostPath": "a", "containerPath": "/b"}]},
            "mounts[0].hostPath: 'a'",
        ),
        ({"match": {"glob": "/dev/a"}, "reset": {"command": ["reset"]}}, "reset.command: expected a list that begins"),
        (
            {"match": {"glob": "/dev/a"}, "reset": {"command": ["/r"], "timeout": "soon"}},
            "reset.timeout: 'soon' is no time",
        ),
        ({"match": {"glob": "/dev/a"}, "reset": {"command": ["/r"], "retries": 11}}, "reset.retries: is 11"),
        ({"match": {"glob": "/dev/a"}, "reset": {"command": ["/r"], "onFailure": "cry"}}, "invalid enum value"),
        ({"match": {"glob": "/dev/a"}, "health": {}}, "pools[0].health: object missing required field command"),
        ({"match": {"glob": "/dev/a"}, "health": {"command": ["ok"]}}, "health.command: expected a list that begins"),
        ({"match": {"glob": "/dev/a"}, "health": {"command": ["/r", "{x}"]}}, "health.command: '{x}' is not known"),
        (
            {"match": {"glob": "/dev/a"}, "health": {"command": ["/r"], "period": "0.5s"}},
            "health.period: '0.5s' is no time; expected one such as 30s, from 1s to an hour",
        ),
        (
            {"match": {"glob": "/dev/a"}, "health": {"command": ["/r"], "timeout": "2h"}},
            "health.timeout: '2h' is no time",
        ),
        ({"match": {"glob": "/dev/a"}, "health": {"command": ["/r"], "retries": 1}}, "contains unknown field retries"),
        ({"match": {"glob": "/dev/a", "group": "all"}}, "match.group: 'all' does not say which nodes are one device"),
        ({"match": {"glob": "/dev/a", "group": "{path}"}}, "expected attributes of the pool with {sysfs: FILE}"),
        (
            {
                "match": {"glob": "/dev/a", "group": "{serial}"},
                "attributes": {"serial": {"sysfs": "serial"}},
                "nodes": [{"as": "/dev/one"}],
            },
            "nodes[0].as: '/dev/one' is one place for all nodes of a group",
        ),
    ],
)
def test_a_bad_pool_says_what_is_wrong(rule: dict[str, Any], complaint: str) -> None:
    """DVV-10."""
    found = [str(one) for one in read_rules([rule])[1]]

    assert any(complaint in one for one in found), found


def test_directories_are_watched_in_which_patterns_look(tmp_path: Path) -> None:
    """DVD-20: none outside of /dev, whatever a link says."""
    for name in ("snd", "dri/by-path", "dri/other", "bus/usb/001", "pts"):
        (tmp_path / "dev" / name).mkdir(parents=True)
    (tmp_path / "dev" / "fd").symlink_to("/proc/self/fd")
    globs = ("/dev/ttyUSB*", "/dev/snd/pcm*", "/dev/dri/by-path/*", "/dev/bus/usb/*/*", "/dev/fd/*", "/dev/none/*")
    given = rules(*({"match": {"glob": one}} for one in globs))
    found = HostDevices(tmp_path / "dev").directories(given)

    assert [str(one.relative_to(tmp_path / "dev")) for one in found] == [
        "snd", "dri", "dri/by-path", "bus", "bus/usb", "bus/usb/001",
    ]  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_real_nodes_are_found_with_what_sysfs_says(tmp_path: Path) -> None:
    """DVD-20."""
    os.mknod(tmp_path / "ttyA", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    (tmp_path / "ttyFile").write_text("no device")
    (tmp_path / "ttyLink").symlink_to("/dev/null")
    device = tmp_path / "sys" / "devices" / "usb" / "tty"
    device.mkdir(parents=True)
    (device.parent / "idVendor").write_text("0403\n")
    (tmp_path / "sys" / "dev" / "char").mkdir(parents=True)
    (tmp_path / "sys" / "dev" / "char" / "1:3").symlink_to(device)
    rule = rules({"match": {"glob": "/dev/tty*"}, "attributes": {"vendor": {"sysfs": "idVendor"}}})
    ((seen,),) = HostDevices(tmp_path, tmp_path / "sys").look(rule)

    assert (seen.path, seen.node.type, seen.node.major, seen.node.minor) == (str(tmp_path / "ttyA"), "c", 1, 3)
    assert seen.sysfs == {"idVendor": "0403"}

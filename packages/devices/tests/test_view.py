# SPDX-License-Identifier: Apache-2.0
"""What people see of devices and claims, and what they order."""

from typing import Any

import pytest

from agent.api.errors import Absent, ApiError
from agent.config.document import Configuration
from agent.kinds.shown import How
from agent.model.devices.plugin import ClaimAnswer
from agent.model.devices.report import DeviceReport
from agent.model.refused import Refused
from agent.wire.kepd.v1 import device_pb2 as pb
from kepd_devices.attach.device_service import DeviceService
from kepd_devices.local.configured import QUARANTINED
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.reading import read_device_objects
from kepd_devices.plan.answers import Answers
from kepd_devices.plan.pools import PoolNode
from kepd_devices.plan.records import Stage
from kepd_devices.run.view import DeviceView
from kepd_devices.view.listed import device_reports
from packages.devices.tests.offered import device, slice_of
from packages.devices.tests.test_claims import SHARED, NodeOfLives, held, shared_pod
from packages.devices.tests.test_pod_claims import pod
from packages.devices.tests.test_steps import record

NODE = PoolNode(name="here")


def states(*records: Any, **devices: Any) -> dict[str, str]:
    slices = [slice_of(*({**device(name), **more} for name, more in devices.items()), driver="d1", pool="p")]
    return {one.name.rpartition("/")[2]: one.state for one in device_reports(slices, records, NODE)}


def at(*stages: Stage) -> Any:
    found = record("a", drivers=("d1",))
    for stage in stages:
        found = found.at("d1", stage)
    return found


@pytest.mark.parametrize(
    ("stage", "state"),
    [
        (Stage.ALLOCATED, "preparing"),
        (Stage.PREPARING, "preparing"),
        (Stage.PREPARED, "held"),
        (Stage.UNPREPARING, "resetting"),
    ],
)
def test_a_device_is_as_far_as_its_claim(stage: Stage, state: str) -> None:
    assert states(at(stage), **{"a-d1": {}, "b": {}}) == {"a-d1": state, "b": "free"}


def test_devices_that_nobody_gets_say_why() -> None:
    taint = [{"key": "x", "effect": "NoSchedule"}]
    quarantine = [{"key": QUARANTINED, "effect": "NoSchedule"}]

    assert states(at(Stage.PREPARED), b={"taints": taint}, c={"taints": quarantine}) == {
        "a-d1": "gone", "b": "tainted", "c": "quarantined",
    }  # fmt: skip


async def view_of(node: NodeOfLives) -> DeviceView:
    claims = await node.manager()
    found = DeviceView(claims, {}, None)
    pods = {"one": shared_pod("one"), "two": shared_pod("two")}
    found.pod = lambda _namespace, name: pods.get(name)
    return found


async def shown(service: DeviceService, kind: str) -> list[Any]:
    """What it reports of each object."""
    return [made["status"] async for _, made in service.offers[kind].walk(How(), "")]


async def test_lists_have_holders_and_what_failed_last() -> None:
    node = NodeOfLives()
    view = await view_of(node)
    service = DeviceService(view)
    node.driver.fails = [lambda answers: dict.fromkeys(answers, ClaimAnswer(error="busy"))]
    await held(view._claims, shared_pod("one"))
    (failed,) = await shown(service, "claims")
    assert (failed["state"], failed["lastError"]) == ("preparing", "driver gpu.example.com: busy")

    await held(view._claims, shared_pod("one"))
    (claim,) = await shown(service, "claims")
    devices = await shown(service, "devices")
    (driver,) = await shown(service, "drivers")
    assert (claim["state"], claim["devices"], claim["pods"], claim["lastError"]) == (
        "prepared", ["gpu.example.com/here/gpu-0"], ["default/one"], "",
    )  # fmt: skip
    assert [(one["name"], one["state"], one["claims"]) for one in devices] == [
        ("gpu.example.com/here/gpu-0", "held", ["default/gpus"]),
        ("gpu.example.com/here/gpu-1", "free", []),
    ]
    assert devices[0]["cdiIds"] == ["gpu.example.com/gpu=gpu-0"]
    assert (driver["name"], driver["kind"], driver["devices"], driver["whyAway"]) == ("gpu.example.com", "dra", 2, "")


async def test_a_device_says_what_a_command_printed_and_who_sees_all_devices() -> None:
    """DVD-23, DVF-8."""
    manager = await NodeOfLives().manager()
    assert await held(manager, shared_pod("one")) == ""
    view = DeviceView(manager, {}, None, printed={"gpu.example.com/gpu-1": "it printed: no power"})
    text = SHARED.replace("NAME", "one").replace("image:", "securityContext: {privileged: true}, image:")
    view.pod = lambda _namespace, name: pod(text) if name == "one" else None
    found = {one.name.rpartition("/")[2]: one.message async for _, one in view.devices("")}

    assert found == {"gpu-0": "pod default/one is privileged and sees every device", "gpu-1": "it printed: no power"}


async def test_a_claim_whose_manifest_has_changed_is_stale_while_pods_hold_it() -> None:
    """DVM-25."""
    node = NodeOfLives()
    manager = await node.manager()
    assert await held(manager, shared_pod("one")) == ""
    node.texts = tuple(one.replace("count: 1", "count: 2") for one in node.texts)
    manager.take(read_device_objects({"/m": "---\n".join(node.texts).encode()}, Reader("here")))
    found = [(one.name, one.state, one.last_error) async for _, one in DeviceView(manager, {}, None).claims("")]
    why = await held(manager, shared_pod("two"))

    assert sorted(found) == [
        ("gpus", "prepared", ""), ("gpus", "stale", "pods that start now wait until the claim as it was is free"),
    ]  # fmt: skip
    assert "the old claim is still in use" in why


async def test_a_claim_that_nobody_holds_is_listed_and_explained() -> None:
    """DVX-3."""
    node = NodeOfLives()
    view = await view_of(node)
    service = DeviceService(view)
    (claim,) = await shown(service, "claims")
    found = await service.explain_claim(pb.ExplainClaimRequest(name="gpus"))

    assert (claim["name"], claim["state"]) == ("gpus", "unallocated")
    assert (found.outcome, [it.reason for one in found.requests for it in one.devices]) == (
        "allocated", ["chosen", "not-needed"],
    )  # fmt: skip
    assert view._claims.records == {}


async def test_a_claim_that_has_devices_is_explained_with_those_it_has() -> None:
    node = NodeOfLives()
    view = await view_of(node)
    await view._claims.hold(shared_pod("one"))
    node.driver.published = [slice_of(device("gpu-00"), device("gpu-0"))]
    found = await view.explain("default", "one", is_pod=True)

    assert (found.outcome, found.end) == ("allocated", "has 1 device")
    assert {one.device: one.reason for one in found.requests[0].devices} == {
        "gpu.example.com/here/gpu-00": "not-needed", "gpu.example.com/here/gpu-0": "chosen",
    }  # fmt: skip


async def test_who_is_not_there_is_said() -> None:
    view = await view_of(NodeOfLives())

    for name, is_pod, text in (("nic", False, "no claim default/nic"), ("three", True, "no pod default/three")):
        with pytest.raises(Refused, match=text):
            await view.explain("default", name, is_pod=is_pod)
    with pytest.raises(Refused, match="is none of kepd's own drivers"):
        await view.reset("gpu.example.com/here/gpu-0")
    with pytest.raises(Refused, match="no claim with uid u-1"):
        await view.release("u-1")


async def test_a_claim_that_a_container_has_without_a_record_is_listed() -> None:
    """DVM-41."""
    view = await view_of(NodeOfLives())
    view._claims.noted = lambda: {"default/one": {"default/gpus=u-1"}}
    (found,) = [one async for _, one in view.claims("")]

    assert (found.namespace, found.name, found.uid) == ("default", "gpus", "u-1")
    assert (found.state, found.pods) == ("adopted", ("default/one",))


async def test_a_record_that_cannot_be_read_or_given_back_is_forgotten_on_request() -> None:
    """DVM-42."""
    node = NodeOfLives()
    node.disk.files["claims/u-1.json"] = b"{"
    view = await view_of(node)
    (unreadable,) = [one async for _, one in view.claims("") if one.state == "unreadable"]
    await view.release(unreadable.uid)
    assert await held(view._claims, shared_pod("one")) == ""

    def dead(answers: Answers) -> Answers:
        return dict.fromkeys(answers, ClaimAnswer(error="dead"))

    node.driver.fails = [dead]
    (uid,) = view._claims.records
    await view.release(uid)
    assert (view._claims.records, node.disk.files) == ({}, {})


async def test_without_the_plane_the_key_is_named() -> None:
    """DVS-1: each part is off until somebody switches it on."""
    given = Configuration().devices
    parts = (given.manager, given.api, given.driver, given.plugins, given.front, given)
    assert [one.enabled for one in parts] == [False] * 6
    with pytest.raises(ApiError, match=r"set devices\.manager\.enabled to true"):
        await Absent("devices").answer("devices")


def test_a_report_says_what_is_left_of_a_device() -> None:
    (one,) = device_reports([slice_of(device("a", capacity={"memory": {"value": "8Gi"}}, n=1))], [], NODE)

    assert one == DeviceReport(
        name="gpu.example.com/here/a", state="free", attributes=("n=1",), capacity=("memory=8Gi",)
    )


async def test_an_id_is_explained_with_what_each_runtime_is_given() -> None:
    """DVC-8: no value of a variable; nothing is waited for where the file is not there."""
    node = NodeOfLives()
    service = DeviceService(await view_of(node))
    name = "gpu.example.com/gpu=gpu-1"
    old = await service.explain_cdi(pb.ExplainCdiRequest(id=name, runtime="containerd 1.6.20"))
    new = await service.explain_cdi(pb.ExplainCdiRequest(id=name, runtime="cri-o 1.30.1"))
    here = await service.explain_cdi(pb.ExplainCdiRequest(id=name))

    listed = await shown(service, "cdi")

    assert {one["id"]: one["edits"] for one in listed}[name] == ["env GPU"]
    assert [one["id"] for one in listed] == sorted(one["id"] for one in listed)
    assert (list(old.edits), list(old.given), old.refusal) == (["env GPU"], ["variable GPU"], "")
    assert (new.runtime, list(new.given)) == ("cri-o 1.30.1", [f"CDI id {name}"])
    assert here.runtime == "the container runtime"
    for text, runtime, complaint in (
        ("gpu.example.com/gpu=9", "", "is in no file"), ("gpu", "", "is no CDI id"), (name, "docker", "is no runtime"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=complaint):
            await service.explain_cdi(pb.ExplainCdiRequest(id=text, runtime=runtime))

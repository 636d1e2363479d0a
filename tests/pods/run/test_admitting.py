# SPDX-License-Identifier: Apache-2.0
"""Pods for which there is no room wait, and begin when there is (FP-20)."""

from pathlib import Path

import pytest

from agent.objects.run.writer import take_out
from agent.pods.run.commands import PodCommands
from agent.pods.run.draining import Drainer
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Plane, Slow, manifest, running


def asking(name: str, cpu: str = "100m", port: int = 0, *, uid: str = "", more: str = "") -> bytes:
    fields = f"image: i, resources: {{requests: {{cpu: {cpu}}}}}"
    fields += f", ports: [{{containerPort: 80, hostPort: {port}}}]" if port else ""
    text = manifest(name, "i", more=f", uid: {uid}" if uid else "", grace_s=1).decode()
    return (text.replace("image: i", fields) + more).encode()


def told(plane: Plane, reason: str) -> list[str]:
    return [event.message for event in plane.events if event.reason == reason]


def commands(plane: Plane) -> PodCommands:
    context = plane.runner._context
    return PodCommands(plane.runner, Drainer(plane.runner, context), context, take_out)


async def test_a_second_pod_with_the_same_host_port_waits_until_the_first_has_gone(tmp_path: Path) -> None:
    given = FakeManifestDirectory({"/m/a.yaml": asking("a", port=8080), "/m/b.yaml": asking("b", port=8080)})
    cri = Slow()
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(a="Running", b="Pending")
        shown = plane.pod("b-n")
        text = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
        text += ": TCP 8080 is used by default/a-n"
        explained = await commands(plane).explain("", "b-n")
        await plane.rounds()
        given.put("/m/a.yaml", None)
        await plane.until_phases(b="Running")

    assert (shown.reason, shown.message) == ("NodePorts", f"Pod was rejected: {text}")
    assert explained.waits_for == f"room: {text}"
    assert [one.line for one in explained.reasons] == [f"a port that it asks for on the node is taken: {text}"]
    assert told(plane, "NodePorts") == [text]


async def test_a_pod_that_is_over_makes_room(tmp_path: Path) -> None:
    once = asking("a", "800m").replace(b"spec:\n", b"spec:\n  restartPolicy: Never\n")
    given = FakeManifestDirectory({"/m/a.yaml": once, "/m/b.yaml": asking("b", "800m")})
    cri = Slow()
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(a="Running", b="Pending")
        assert plane.pod("b-n").reason == "OutOfcpu"
        (container_id,) = cri._containers
        cri.exit(container_id, 0)
        plane.runner.rounds.due.set()
        await plane.until_phases(a="Succeeded", b="Running")


async def test_who_matters_most_begins_first(tmp_path: Path) -> None:
    files = {f"/m/{name}.yaml": asking(name, "600m") for name in "abc"}
    files["/m/c.yaml"] = files["/m/c.yaml"].replace(b"spec:\n", b"spec:\n  priority: 100\n")
    given = FakeManifestDirectory(files)
    async with running(Slow(), given, tmp_path) as plane:
        await plane.until_phases(a="Pending", b="Pending", c="Running")
        given.put("/m/c.yaml", None)
        await plane.until_phases(a="Running", b="Pending")

    assert len(told(plane, "OutOfcpu")) == 2, "what others have is no news"


async def test_what_runs_stays_when_kepd_starts_anew_on_a_smaller_node(tmp_path: Path) -> None:
    files = {f"/m/{name}.yaml": asking(name, "800m") for name in "ab"}
    given, cri = FakeManifestDirectory(files), Slow()
    async with running(cri, given, tmp_path, cpus=2) as plane:
        await plane.until_phases(a="Running", b="Running")
    async with running(cri, given, tmp_path, cpus=1, max_pods=1) as plane:
        await plane.until_phases(a="Running", b="Running")
        given.put("/m/c.yaml", asking("c", "1m"))
        await plane.until_phases(a="Running", b="Running", c="Pending")
        await plane.rounds()

    assert plane.pod("c-n").reason == "OutOfpods"
    assert cri.stops == []


async def test_a_pod_that_waits_can_be_deleted(tmp_path: Path) -> None:
    file = tmp_path / "b.yaml"
    file.write_bytes(asking("b", "2"))
    given = FakeManifestDirectory({str(file): file.read_bytes()})
    async with running(Slow(), given, tmp_path / "logs") as plane:
        await plane.until_phases(b="Pending")
        await commands(plane).delete("", "b-n", None)
        given.put(str(file), None)
        await plane.until(lambda: plane.phases == {}, "it is gone")

    assert not file.exists()


ANOTHER = "  - {name: more, image: i, resources: {requests: {cpu: 800m}}}\n"


@pytest.mark.parametrize(
    ("uid", "edited", "reason"),
    [
        ("u1", asking("a", uid="u1", more=ANOTHER), "OutOfcpu"),
        ("u1", asking("a", port=8080, uid="u1"), "NodePorts"),
        ("", asking("a", "900m"), "OutOfcpu"),
    ],
    ids=["in place", "with another sandbox", "as another pod of that name"],
)
async def test_an_edit_for_which_there_is_no_room_is_refused_until_there_is(
    tmp_path: Path, uid: str, edited: bytes, reason: str
) -> None:
    given = FakeManifestDirectory({"/m/a.yaml": asking("a", uid=uid), "/m/b.yaml": asking("b", "300m", 8080)})
    cri = Slow()
    async with running(cri, given, tmp_path) as plane:

        def is_as_wanted() -> bool:
            keeper = plane.runner.keeper("default", "a-n")
            return keeper is not None and keeper.run.pod == plane.runner.wants.reading.pods["default/a-n"]

        await plane.until_phases(a="Running", b="Running")
        given.put("/m/a.yaml", edited)
        text = f"its last good manifest is in force: {reason}: "
        await plane.until(lambda: plane.pod("a-n").message.startswith(text), "it is refused")
        await plane.rounds()
        stops, events = list(cri.stops), told(plane, reason)
        explained = (await commands(plane).explain("", "a-n")).details
        given.put("/m/b.yaml", None)
        await plane.until(is_as_wanted, "the edit counts")
        await plane.until_phases(a="Running")
        message = plane.pod("a-n").message

    assert (stops, message, len(events)) == ([], "", 1)
    assert events[0].startswith("the edit is refused, and the pod runs on as it was: ")
    assert [line for line in explained if line.startswith(text)]


async def test_room_that_a_resize_was_granted_is_taken(tmp_path: Path) -> None:
    given = FakeManifestDirectory({"/m/a.yaml": asking("a", "200m", uid="u1")})
    async with running(Slow(), given, tmp_path) as plane:
        await plane.until_phases(a="Running")
        given.put("/m/a.yaml", asking("a", "700m", uid="u1"))
        await plane.until(lambda: told(plane, "ResizeCompleted"), "more of it")
        given.put("/m/b.yaml", asking("b", "400m"))
        await plane.until_phases(a="Running", b="Pending")
        given.put("/m/a.yaml", asking("a", "100m", uid="u1"))
        await plane.until_phases(a="Running", b="Running")


def critical(name: str, cpu: str) -> bytes:
    return asking(name, cpu).replace(b"spec:\n", b"spec:\n  priorityClassName: system-node-critical\n")


async def test_a_critical_pod_displaces_others_which_come_back(tmp_path: Path) -> None:
    """PRE-01, PRE-02: the room goes to no other meanwhile, and a pod of policy Never stays over."""
    once = asking("once", "300m").replace(b"spec:\n", b"spec:\n  restartPolicy: Never\n")
    given = FakeManifestDirectory({"/m/a.yaml": asking("a", "600m"), "/m/b.yaml": once})
    async with running(Slow(), given, tmp_path) as plane:
        await plane.until_phases(a="Running", once="Running")
        given.put("/m/w.yaml", asking("w", "200m"))
        await plane.until_phases(a="Running", once="Running", w="Pending")
        given.put("/m/c.yaml", critical("c", "900m"))
        await plane.until_phases(a="Failed", once="Failed", c="Running", w="Pending")
        shown = plane.pod("a-n")
        given.put("/m/c.yaml", None)
        given.put("/m/w.yaml", None)
        await plane.until_phases(a="Running", once="Failed")

    assert (shown.reason, shown.message) == ("Preempting", "Preempted in order to admit critical pod")
    assert [one.reason for one in shown.conditions if one.type == "DisruptionTarget"] == ["TerminationByKubelet"]
    assert sorted(one.object_name for one in plane.events if one.reason == "Preempting") == ["a-n", "once-n"]
    assert len(told(plane, "OutOfcpu")) == 2


async def test_what_a_critical_pod_displaced_comes_back_also_below_the_next_kepd(tmp_path: Path) -> None:
    """PRE-02."""
    given = FakeManifestDirectory({"/m/a.yaml": asking("a", "600m")})
    cri = Slow()
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(a="Running")
        given.put("/m/c.yaml", critical("c", "900m"))
        await plane.until_phases(a="Failed", c="Running")
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(a="Failed", c="Running")
        given.put("/m/c.yaml", None)
        await plane.until_phases(a="Running")


async def test_a_host_port_that_the_network_does_not_map_is_refused(tmp_path: Path) -> None:
    """FP-20: it had no effect before, and nothing said so; a network that is mended later counts."""
    given = FakeManifestDirectory({"/m/a.yaml": asking("a", port=8080), "/m/b.yaml": asking("b")})
    cri = Slow()
    cri.maps_ports = False
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(a="Pending", b="Running")
        await plane.until(lambda: told(plane, "UnexpectedAdmissionError"), "refused")
        cri.maps_ports = True
        await plane.until_phases(a="Running", b="Running")

    text = "Pod was rejected: the pod network of this node cannot map host port TCP 8080: no plugin of its CNI "
    assert told(plane, "UnexpectedAdmissionError")[0] == text + (
        "configuration, such as portmap, has the capability portMappings"
    )

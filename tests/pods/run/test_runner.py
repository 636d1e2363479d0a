# SPDX-License-Identifier: Apache-2.0
"""The plane at work: pods start, are shown, end, and neither crashes nor other pods' troubles do them harm."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.model.component import State
from agent.model.pods.state import PodState
from agent.model.runtime.error import DeadlineExceeded, NotFound, RuntimeCallFailed
from agent.pods.runtime.observed import SeenPod
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.cri import FakeCri
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import DISKS, Dying, News, Slow, manifest, running

CHANGING = (
    "run_sandbox", "create_container", "start_container", "pull_image", "stop_container", "stop_sandbox",
    "remove_sandbox",
)  # fmt: skip


@pytest.fixture
def cri() -> Slow:
    return Slow()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which it matters that something is tried again, not when."""
    monkeypatch.setattr("agent.pods.plan.restart.FIRST_PAUSE_S", 0.05)
    for name in ("FIRST_PAUSE_S", "FIRST_IMAGE_PAUSE_S"):
        monkeypatch.setattr(f"agent.pods.run.one_pod.starting.{name}", 0.05)
    monkeypatch.setattr("agent.pods.run.one_pod.sandbox_maker.FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr("agent.pods.run.one_pod.stopping.RETRY_S", 0.05)


@pytest.fixture
def manifests() -> FakeManifestDirectory:
    return FakeManifestDirectory({"/m/f.yaml": manifest()})


async def states(cri: FakeCri) -> list[tuple[str, int]]:
    return sorted((one.metadata.name, one.state) for one in await cri.list_containers())


async def ids(cri: FakeCri) -> set[str]:
    return {one.id for one in await cri.list_containers()}


BOTH_RUN = [("a", pb.CONTAINER_RUNNING), ("b", pb.CONTAINER_RUNNING)]


async def test_a_pod_from_a_file_runs_and_is_shown(cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path) -> None:
    async with running(cri, manifests, tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.until_ready()
        shown = plane.pod()

    assert await states(cri) == BOTH_RUN
    assert (shown.ip, shown.message, plane.message) == ("10.0.0.2", "", "1 pods")
    assert [one.started_at_s > 0 for one in shown.containers] == [True, True]
    assert cri.calls.count("PullImage") == 2, "STA-08: a name without a tag means Always"


async def test_what_is_found_running_is_never_shown_as_anything_else(
    cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
) -> None:
    """ADO-01: who watches through a restart of kepd sees no pod start anew."""
    async with running(cri, manifests, tmp_path) as plane:
        await plane.until_phases(web="Running")
    before = await ids(cri)
    seen = []
    async with running(cri, manifests, tmp_path) as plane:
        put = plane.runner.pods.put
        plane.runner.pods.put = lambda key, pod: (seen.append(pod.phase), put(key, pod))  # type: ignore[method-assign]
        await plane.until_phases(web="Running")
        await plane.rounds()

    assert set(seen) == {"Running"}
    assert await ids(cri) == before


async def test_a_kill_after_any_step_and_a_restart_reach_the_same_end_and_restart_nothing(tmp_path: Path) -> None:
    """ADO-01: tried for every single call that changes the runtime."""
    for survived in range(1, 7):
        fake = Slow()
        given = FakeManifestDirectory({"/m/f.yaml": manifest()})
        with pytest.raises(BaseExceptionGroup):
            async with running(Dying(fake, CHANGING, survived), given, tmp_path) as plane:
                await plane.until(lambda: False, "the kill")
        started = {one.id for one in await fake.list_containers() if one.state == pb.CONTAINER_RUNNING}
        async with running(fake, given, tmp_path) as plane:
            await plane.until_phases(web="Running")
            await plane.until_ready()

        assert await states(fake) == BOTH_RUN, survived
        assert started <= await ids(fake)
        assert len(await fake.list_sandboxes()) == 1


def log_directories(logs: Path) -> list[str]:
    return sorted(path.name.split("_")[1] for path in logs.iterdir())


async def end_after(survived: int, next_version: bytes | None, fake: Slow, logs: Path) -> None:
    """Run a pod, change or remove its file, and die when some changes have been made."""
    given = FakeManifestDirectory({"/m/f.yaml": manifest()})
    async with running(fake, given, logs) as plane:
        await plane.until_phases(web="Running")
    given.put("/m/f.yaml", next_version)
    with pytest.raises(BaseExceptionGroup):
        async with running(Dying(fake, CHANGING, survived), given, logs) as plane:
            await plane.until(lambda: False, "the kill")
    async with running(fake, given, logs) as plane:
        await plane.until(lambda: len(fake._sandboxes) == bool(next_version), "the old one is gone")
        await plane.until(lambda: set(plane.phases.values()) == ({"Running"} if next_version else set()), "the new one")
        wanted = BOTH_RUN if next_version else []
        await plane.until(
            lambda: sorted((one.metadata.name, one.state) for one in fake._containers.values()) == wanted, "both"
        )
        await plane.until(lambda: len(DISKS[logs].files) == bool(next_version), "nothing is remembered of the old one")
        await plane.until_ready()


@pytest.mark.parametrize("survived", range(1, 5))
@pytest.mark.parametrize(
    ("next_version", "names"), [(None, []), (manifest(grace_s=7), ["web-n"]), (manifest("other"), ["other-n"])]
)
async def test_a_kill_after_any_step_of_an_end_and_a_restart_reach_the_same_end(
    survived: int, next_version: bytes | None, names: list[str], tmp_path: Path
) -> None:
    """ADO-01: two StopContainer, StopPodSandbox and RemovePodSandbox, then what follows where a pod is replaced."""
    fake = Slow()
    await end_after(survived, next_version, fake, tmp_path)

    assert await states(fake) == (BOTH_RUN if next_version else [])
    assert log_directories(tmp_path) == names
    assert {name for name, _ in fake.stops} == {"a", "b"}, "each was asked to end"


async def test_a_removed_file_ends_its_pod_and_no_other(
    cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
) -> None:
    manifests.put("/m/g.yaml", manifest("db"))
    foreign = await cri.run_sandbox(pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="kubelet's")))
    async with running(cri, manifests, tmp_path) as plane:
        await plane.until_phases(web="Running", db="Running")
        manifests.put("/m/f.yaml", None)
        await plane.until_phases(db="Running")

    assert foreign in [one.id for one in await cri.list_sandboxes()], "LBL-05: not ours, not touched"
    assert len(await cri.list_sandboxes()) == 2
    assert log_directories(tmp_path) == ["db-n"], "CLG-03: its logs went with it"


async def test_a_pod_that_ends_while_others_are_looked_at_is_gone(
    cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
) -> None:
    """FP-10: of 100 that ended at once one was always gone between the lists and its turn; the plane ended over it."""
    manifests.put("/m/g.yaml", manifest("db"))
    async with running(cri, manifests, tmp_path) as plane:
        await plane.until_phases(web="Running", db="Running")
        first, second = plane.runner.keepers.values()
        merge = first.observer.merge

        async def merged(listed: SeenPod) -> None:
            plane.runner.owners.remove(second)
            await merge(listed)

        first.observer.merge = merged  # type: ignore[method-assign]
        faults = await plane.runner.rounds.merged({})
        plane.runner.owners.add(second)

    assert faults.names == {}


async def test_a_plane_that_begins_anew_shows_no_pod_that_ended_meanwhile(
    cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
) -> None:
    """FP-10: it was shown as Terminating for ever."""
    async with running(cri, manifests, tmp_path) as plane:
        plane.runner.pods.put(
            "default/ghost-n", PodState(namespace="default", name="ghost-n", uid="u", phase="Terminating")
        )
        await plane.until_phases(web="Running")


@pytest.mark.usefixtures("short_pauses")
class TestTheEndOfAPod:
    """MAN-09: containers are asked to end, and the end is carried through."""

    async def test_containers_are_stopped_with_grace_and_at_the_same_time_before_the_sandbox(
        self, cri: Slow, tmp_path: Path
    ) -> None:
        manifests = FakeManifestDirectory({"/m/f.yaml": manifest(grace_s=7), "/m/g.yaml": manifest("db")})
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running", db="Running")
            cri.may_stop.clear()
            manifests.put("/m/f.yaml", None)
            await plane.until(lambda: cri.stopping == {"a", "b"}, "both are asked at once")
            assert "StopPodSandbox" not in cri.calls
            await plane.until(lambda: "a to end, killed in 7 s" in plane.pod().waits_for, "what it waits for")
            manifests.put("/m/h.yaml", manifest("third"))
            await plane.until_phases(web="Running", db="Running", third="Running")
            cri.may_stop.set()
            await plane.until_phases(db="Running", third="Running")

        assert sorted(cri.stops) == [("a", 7), ("b", 7)]

    async def test_a_pod_whose_file_went_while_kepd_was_down_has_its_grace_as_well(
        self, cri: Slow, tmp_path: Path
    ) -> None:
        """TRM-30."""
        manifests = FakeManifestDirectory({"/m/f.yaml": manifest("web", "i", grace_s=4)})
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
        manifests.put("/m/f.yaml", None)
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until(lambda: not cri._sandboxes, "it has ended")

        assert cri.stops == [("a", 4)]

    async def test_a_manifest_that_comes_back_during_the_end_starts_a_new_run_after_it(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
    ) -> None:
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
            before = await ids(cri)
            cri.may_stop.clear()
            manifests.put("/m/f.yaml", None)
            await plane.until(lambda: cri.stopping == {"a", "b"}, "it ends")
            manifests.put("/m/f.yaml", manifest())
            await plane.rounds()
            assert cri.stopping == {"a", "b"}
            cri.may_stop.set()
            await plane.until(lambda: not before & set(cri._containers), "the old one is gone")
            await plane.until(lambda: len(cri._containers) == len(before), "the new one is there")
            await plane.until_phases(web="Running")

        assert not before & await ids(cri)
        assert len(await cri.list_sandboxes()) == 1

    async def test_a_stop_that_fails_is_shown_and_tried_again(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
    ) -> None:
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
            cri.failures["StopContainer"] = DeadlineExceeded("StopContainer", "deadline exceeded")
            manifests.put("/m/f.yaml", None)
            await plane.until(lambda: "FailedKillPod" in {one.reason for one in plane.events}, "the failure is told")
            await plane.until(lambda: not plane.phases, "it ended all the same")
            await plane.until_ready()


@pytest.mark.usefixtures("short_pauses")
class TestOnePodsTroubles:
    """Whatever goes wrong with one pod is shown on it, tried again, and holds no other up (CL-15)."""

    async def test_a_missing_image(self, cri: Slow, tmp_path: Path) -> None:
        files = {"/m/a.yaml": manifest("bad", "none"), "/m/b.yaml": manifest()}
        manifests = FakeManifestDirectory(files)
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(bad="Pending", web="Running")
            text = 'failed to resolve image "none"'
            await plane.until(lambda: text in plane.message, "the failure is told")
            assert plane.message.startswith("2 pods; default/bad-n: a: ")
            assert plane.state is State.READY, "it is that pod's matter, and the daemon is well"
            await plane.until(lambda: "Image" in plane.pod("bad-n").containers[0].reason, "on the container")
            assert 'failed to resolve image "none": not found' in plane.pod("bad-n").containers[0].message
            manifests.put("/m/a.yaml", None)
            await plane.until_phases(web="Running")
            await plane.until_ready()

        assert log_directories(tmp_path) == ["web-n"]

    async def test_a_log_directory_that_cannot_be_made(self, cri: Slow, tmp_path: Path) -> None:
        files = {"/m/a.yaml": manifest("bad", "i", more=", uid: u1"), "/m/b.yaml": manifest()}
        obstacle = tmp_path / "default_bad-n_u1"
        obstacle.write_text("a file where a directory shall be")
        async with running(cri, FakeManifestDirectory(files), tmp_path) as plane:
            await plane.until_phases(bad="Pending", web="Running")
            await plane.until(lambda: "File exists" in plane.pod("bad-n").message, "the reason")
            obstacle.unlink()
            await plane.until_phases(bad="Running", web="Running")
            await plane.until_ready()

    @pytest.mark.parametrize("method", ["ContainerStatus", "PodSandboxStatus"])
    @pytest.mark.parametrize("kind", [DeadlineExceeded, NotFound, RuntimeCallFailed])
    async def test_a_look_that_fails(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path, method: str, kind: type[RuntimeCallFailed]
    ) -> None:
        cri.failures[method] = kind(method, "not today")
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until(lambda: method not in cri.failures, "it fails")
            await plane.until_phases(web="Running")
            await plane.until_ready()

        assert await states(cri) == BOTH_RUN

    @pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StartContainer", "ImageStatus"])
    @pytest.mark.parametrize("kind", [DeadlineExceeded, NotFound, RuntimeCallFailed])
    async def test_a_step_that_fails(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path, method: str, kind: type[RuntimeCallFailed]
    ) -> None:
        cri.failures[method] = kind(method, "no more memory")
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until(lambda: method not in cri.failures, "it fails")
            await plane.until_phases(web="Running")
            await plane.until_ready()

        assert await states(cri) == BOTH_RUN

    async def test_text_that_no_message_can_hold(self, cri: Slow, tmp_path: Path) -> None:
        """A file name that is no UTF-8."""
        files = {"/m/\udcff.yaml": manifest(), "/m/g.yaml": manifest("db")}
        async with running(cri, FakeManifestDirectory(files), tmp_path) as plane:
            await plane.until_phases(web="Running", db="Running")
            plane.pod().message.encode()

    async def test_a_pull_that_hangs(self, cri: Slow, tmp_path: Path) -> None:
        cri.registry.add("slow")
        cri.slow_images.add("slow")
        manifests = FakeManifestDirectory({"/m/a.yaml": manifest("slow", "i", "slow"), "/m/b.yaml": manifest()})
        async with running(cri, manifests, tmp_path, events=News(cri)) as plane:
            await plane.until_phases(slow="Pending", web="Running")
            await plane.until(lambda: plane.pod("slow-n").waits_for == "fetch slow for b", "what it waits for")
            assert plane.state is State.READY
            (first,) = [one.id for one in await cri.list_containers() if one.metadata.name == "a"][:1]
            cri.exit(first, 3)
            await plane.until(
                lambda: (
                    3
                    in [
                        one.last.exit_code
                        for pod in plane.runner.pods.items.values()
                        for one in pod.containers
                        if one.last
                    ]
                ),
                "what happens meanwhile",
            )
            manifests.put("/m/b.yaml", None)
            await plane.until_phases(slow="Pending")
            assert cri.pulling["slow"] == 1
            manifests.put("/m/a.yaml", None)
            await plane.until(lambda: not cri.pulling["slow"], "the pull is given up")
            await plane.until(lambda: not plane.phases, "all are gone")

    async def test_an_edit_of_images_alone_leaves_the_pod(self, cri: Slow, tmp_path: Path) -> None:
        """Also after a restart of kepd; any other edit makes another pod."""
        cri.registry |= {"j", "k"}
        manifests, boxes = FakeManifestDirectory({"/m/a.yaml": manifest("web", "i")}), []
        for image in ("j", "k"):
            async with running(cri, manifests, tmp_path) as plane:
                await plane.until_phases(web="Running")
                boxes += [one.id for one in await cri.list_sandboxes()]
                manifests.put("/m/a.yaml", manifest("web", image))
                await plane.until(lambda image=image: plane.pod().containers[0].image == image, "the edit")
                await plane.until_phases(web="Running")
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
            manifests.put("/m/a.yaml", manifest("web", "j", grace_s=7))
            # Between the two there is none.
            await plane.until(
                lambda: any(pod.containers[0].image == "j" for pod in plane.runner.pods.items.values()), "another pod"
            )
            await plane.until_phases(web="Running")

        assert len(set(boxes)) == 1
        assert boxes[0] not in [one.id for one in await cri.list_sandboxes()]

    async def test_a_pull_that_hangs_is_given_up_when_the_manifest_names_another_image(
        self, cri: Slow, tmp_path: Path
    ) -> None:
        cri.slow_images.add("slow")
        manifests = FakeManifestDirectory({"/m/a.yaml": manifest("web", "slow")})
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until(lambda: cri.pulling["slow"], "it hangs")
            manifests.put("/m/a.yaml", manifest("web", "i"))
            await plane.until_phases(web="Running")

        assert not cri.pulling["slow"]
        assert len(await cri.list_sandboxes()) == 1


@pytest.mark.usefixtures("short_pauses")
class TestTheRuntimeIsNotThere:
    async def test_the_plane_waits_and_says_so(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
    ) -> None:
        cri.reachable = False
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until(lambda: "does not answer" in plane.message, "the loss is told")
            assert plane.pod().waits_for == "the container runtime"
            cri.reachable = True
            await plane.until_phases(web="Running")
            await plane.until_ready()

    @pytest.mark.parametrize("method", ["ListContainers", "ListPodSandbox"])
    async def test_a_list_that_takes_too_long_is_no_end_of_the_plane(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path, method: str
    ) -> None:
        cri.failures[method] = DeadlineExceeded(method, "deadline exceeded")
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until(lambda: f"fails in {method}: deadline exceeded" in plane.message, "it is told")
            await plane.until_phases(web="Running")


class TestBrokenManifests:
    """MAN-07, MAN-08: nothing ends that nobody ended."""

    async def test_a_typo_leaves_the_pod_running_and_is_told(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
    ) -> None:
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
            before = await ids(cri)
            for broken in (b"kind: [", manifest(more=", nmae: x"), manifest().replace(b"Pod", b"pod"), b""):
                manifests.put("/m/f.yaml", broken)
                await plane.until(lambda: plane.state is State.DEGRADED, "the complaint")
                await plane.rounds()
                assert "/m/f.yaml" in plane.message
                assert plane.pod().message.startswith("its last good manifest is in force: /m/f.yaml")
                assert await ids(cri) == before
                manifests.put("/m/f.yaml", manifest())
                await plane.until_ready()
                assert plane.pod().message == ""
            manifests.put("/m/f.yaml", broken)
            manifests.put("/m/f.yaml", None)
            await plane.until(lambda: not plane.phases, "a file that is gone ends its pod")
            await plane.until_ready()

    @pytest.mark.parametrize("trouble", ["typo", "file", "directory"])
    async def test_kepd_starts_again_while_a_manifest_is_broken(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path, trouble: str
    ) -> None:
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
        before = await ids(cri)
        if trouble == "typo":
            manifests.put("/m/f.yaml", b"kind: [")
        manifests.put("/m/g.yaml", manifest("db"))
        unreadable = {"file": "/m/f.yaml", "directory": "/m"}.get(trouble, "/other")
        manifests.fail(unreadable, "input/output error" if trouble != "typo" else "")
        async with running(cri, manifests, tmp_path) as plane:
            others = {} if trouble == "directory" else {"db": "Running"}
            await plane.until_phases(web="Running", **others)
            await plane.rounds()
            assert before <= await ids(cri)
            assert plane.state is State.DEGRADED
            assert plane.pod().message.startswith("/m" if trouble != "typo" else "its last good manifest")
            assert [one.image for one in plane.pod().containers] == ["i", "i"]
            manifests.fail(unreadable, "")
            manifests.put("/m/f.yaml", manifest())
            await plane.until_phases(web="Running", db="Running")
            await plane.until_ready()
            assert before <= await ids(cri)
            manifests.put("/m/f.yaml", None)
            await plane.until_phases(db="Running")

    @pytest.mark.parametrize("path", ["/m/f.yaml", "/m"])
    async def test_what_cannot_be_read_any_more_goes_on(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path, path: str
    ) -> None:
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
            before = await ids(cri)
            manifests.fail(path, "input/output error")
            await plane.until(lambda: f"{path}: cannot be read: input/output error" in plane.message, "it is told")
            await plane.rounds()
            assert await ids(cri) == before
            assert "cannot be read" in plane.pod().message
            manifests.fail(path, "")
            await plane.until_ready()

        assert await ids(cri) == before


class TestReplacement:
    """MAN-10: the old one ends, then the new one starts."""

    @pytest.mark.parametrize("more", ["", ", uid: fixed"])
    async def test_changed_content_replaces_the_pod(self, cri: Slow, tmp_path: Path, more: str) -> None:
        manifests = FakeManifestDirectory({"/m/f.yaml": manifest("web", "i", more=more)})
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
            before = await ids(cri)
            manifests.put("/m/f.yaml", b"# a comment\n" + manifest("web", "i", more=more))
            await plane.rounds()
            assert await ids(cri) == before
            manifests.put("/m/f.yaml", manifest("web", "i", "i", more=more))
            await plane.until(lambda: "web-n" in plane.phases and len(plane.pod().containers) == 2, "the new one")
            await plane.until_phases(web="Running")

        if more:
            # MAN-11: the same uid, so nothing that stays the same is restarted.
            assert cri.stops == []
            assert before <= await ids(cri)
        else:
            assert cri.stops == [("a", 30)]
            assert not before & await ids(cri)
        assert await states(cri) == BOTH_RUN
        assert len(log_directories(tmp_path)) == 1

    @pytest.mark.parametrize("is_away", [False, True])
    @pytest.mark.parametrize("policy", ["Always", "Never"])
    async def test_what_the_sandbox_is_made_of_replaces_a_pod_with_its_own_uid(
        self, cri: Slow, tmp_path: Path, policy: str, is_away: bool
    ) -> None:
        """MAN-11: it had no effect, or an effect at some later restart; also where kepd was away meanwhile."""
        text = manifest("web", "i", more=", uid: fixed") + f"  restartPolicy: {policy}\n".encode()
        other = text + b"  hostname: other\n"
        manifests = FakeManifestDirectory({"/m/f.yaml": text})
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
            before = await ids(cri)
            manifests.put("/m/f.yaml", text + b"  terminationGracePeriodSeconds: 5\n")
            await plane.rounds()
            assert (await ids(cri), cri.stops) == (before, [])
            if not is_away:
                manifests.put("/m/f.yaml", other)
                await plane.until(lambda: cri.stops, "the old one ends")
                await plane.until(lambda: plane.phases == {"web-n": "Running"} and len(cri._sandboxes) == 1, "anew")
        manifests.put("/m/f.yaml", other)
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until(lambda: cri.stops, "the old one ends")
            await plane.until(lambda: plane.phases == {"web-n": "Running"} and not plane.pod().is_terminating, "anew")
            assert plane.pod().containers[0].restart_count == 0

        assert not before & await ids(cri)
        assert [one.metadata.attempt for one in await cri.list_sandboxes()] == [0]

    async def test_a_pod_that_is_over_is_not_begun_anew_by_an_edit(self, cri: Slow, tmp_path: Path) -> None:
        """CMP-06."""
        text = manifest("web", "i", more=", uid: fixed") + b"  restartPolicy: Never\n"
        manifests = FakeManifestDirectory({"/m/f.yaml": text})
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
            cri.exit(next(iter(cri._containers)), 0)
            plane.runner.rounds.due.set()
            await plane.until_phases(web="Succeeded")
            manifests.put("/m/f.yaml", text + b"  hostname: other\n")
            await plane.rounds()

            assert plane.phases == {"web-n": "Succeeded"}

    @pytest.mark.parametrize("is_begun", [False, True])
    async def test_a_pod_that_is_just_ending_by_itself_is_not_begun_anew_either(
        self, cri: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun: bool
    ) -> None:
        """CMP-05: it is shown as Succeeded while its sandbox is still stopped."""
        text = manifest("web", "i", more=", uid: fixed") + b"  restartPolicy: Never\n"
        manifests = FakeManifestDirectory({"/m/f.yaml": text})
        may_go, stop_sandbox = asyncio.Event(), cri.stop_sandbox

        async def slowly(sandbox_id: str) -> None:
            await may_go.wait()
            await stop_sandbox(sandbox_id)

        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
            monkeypatch.setattr(cri, "stop_sandbox", slowly)
            (keeper,) = plane.runner.keepers.values()
            ring = keeper.run.ring
            if not is_begun:
                monkeypatch.setattr(keeper.run, "ring", lambda: None)
            cri.exit(next(iter(cri._containers)), 0)
            await plane.rounds()
            await plane.until(lambda: (keeper.run.memory.stop is not None) is is_begun, "its end begins, or not yet")
            manifests.put("/m/f.yaml", text + b"  hostname: other\n")
            await plane.until(lambda: plane.runner.wants.by_key.get("default/web-n").spec.hostname, "the edit is read")  # type: ignore[union-attr]
            may_go.set()
            ring()
            await plane.until(lambda: keeper.run.memory.outcome, "it is over")
            await plane.rounds()

            assert plane.phases == {"web-n": "Succeeded"}
            assert len(cri._sandboxes) == 1

    async def test_a_dead_sandbox_is_made_again_and_its_logs_stay(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
    ) -> None:
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
        log_file = tmp_path / f"default_web-n_{plane.pod().uid}" / "a" / "0.log"
        log_file.write_text("why it died")
        (sandbox,) = await cri.list_sandboxes()
        await cri.stop_sandbox(sandbox.id)
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until(lambda: len([one for one in cri._sandboxes.values() if not one.state]) == 1, "a new one")
            await plane.until_phases(web="Running")

        assert log_file.read_text() == "why it died"
        assert sorted(one.metadata.attempt for one in await cri.list_sandboxes()) == [0, 1]

    async def test_a_sandbox_of_a_version_that_left_no_hash_is_adopted(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
    ) -> None:
        """ADO-01: an upgrade restarts nothing."""
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
        (sandbox,) = cri._sandboxes.values()
        del sandbox.annotations["kepd.dev/manifest-hash"]
        before = await ids(cri)
        async with running(cri, manifests, tmp_path) as plane:
            await plane.until_phases(web="Running")
            await plane.rounds()

        assert await ids(cri) == before


async def pass_time(clock: FakeClock, seconds: float) -> None:
    """Virtual time in small steps, with a moment for threads in between."""
    for _ in range(round(seconds * 10)):
        await clock.advance(0.1)
        await asyncio.sleep(0.001)


class TestTime:
    """Everything here runs on virtual time."""

    async def begin(self, clock: FakeClock, plane: Any, phases: dict[str, str]) -> None:
        for _ in range(1000):
            await clock.advance(0.03)
            await asyncio.sleep(0.001)
            if plane.phases == phases:
                return
        raise AssertionError(plane.phases)

    async def test_pulls_that_fail_are_tried_later_and_later(self, cri: Slow, tmp_path: Path) -> None:
        clock = FakeClock()
        attempts: list[float] = []

        async def note(_image: str, _auth: object) -> None:
            attempts.append(clock.now_s())

        cri.while_pulling = note
        manifests = FakeManifestDirectory({"/m/f.yaml": manifest("bad", "none")})
        async with running(cri, manifests, tmp_path, clock=clock) as plane:
            await self.begin(clock, plane, {"bad-n": "Pending"})
            await pass_time(clock, 200)
            pauses = [round(after - before) for before, after in pairwise(attempts)]
            assert pauses == [10, 20, 40, 80]
            before = len(attempts)
            manifests.put("/m/f.yaml", manifest("bad", "missing"))
            for _ in range(330):
                await pass_time(clock, 0.1)
            assert len(attempts) == before + 3, "a change of the manifest is tried at once and from the first pause on"

    async def test_a_sandbox_that_dies_again_and_again_is_made_later_and_later(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
    ) -> None:
        clock = FakeClock()
        made: list[float] = []
        run_sandbox = cri.run_sandbox

        async def run_and_die(config: pb.PodSandboxConfig, runtime_handler: str = "") -> str:
            made.append(clock.now_s())
            sandbox_id = await run_sandbox(config, runtime_handler)
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(cri.stop_sandbox(sandbox_id)))
            return sandbox_id

        cri.run_sandbox = run_and_die  # type: ignore[method-assign]
        async with running(cri, manifests, tmp_path, clock=clock, events=News(cri)) as plane:
            await self.begin(clock, plane, {"web-n": "Pending"})
            await pass_time(clock, 40)

        pauses = [after - before for before, after in pairwise(made)][:4]
        assert all(wanted - 0.1 <= pause <= wanted + 2 for pause, wanted in zip(pauses, (1, 2, 4, 8), strict=True)), (
            pauses
        )

    async def test_with_nothing_to_do_nothing_is_done(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
    ) -> None:
        clock = FakeClock()
        async with running(cri, manifests, tmp_path, clock=clock, events=News(cri)) as plane:
            await self.begin(clock, plane, {"web-n": "Running"})
            await pass_time(clock, 2)
            cri.calls.clear()
            await pass_time(clock, 55)
            assert cri.calls == []
            await pass_time(clock, 62)
            assert sorted(set(cri.calls)) == ["ListContainers", "ListPodSandbox"]
            assert len(cri.calls) <= 4

    async def test_news_of_one_container_make_nobody_look_at_the_others(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
    ) -> None:
        clock = FakeClock()
        manifests.put("/m/g.yaml", manifest("db"))
        async with running(cri, manifests, tmp_path, clock=clock, events=News(cri)) as plane:
            await self.begin(clock, plane, {"web-n": "Running", "db-n": "Running"})
            await pass_time(clock, 2)
            cri.calls.clear()
            one, *_ = await ids(cri)
            cri.calls.clear()
            for _ in range(50):
                cri.exit(one, 0)
            await pass_time(clock, 2)

            assert sum(call == "ContainerStatus" for call in cri.calls) <= 5
            assert not {"ListContainers", "ListPodSandbox"} & set(cri.calls)

    async def test_a_trouble_that_is_over_is_forgotten_and_not_asked_about(
        self, cri: Slow, manifests: FakeManifestDirectory, tmp_path: Path
    ) -> None:
        clock = FakeClock()
        manifests.put("/m/g.yaml", manifest("bad", "none"))
        async with running(cri, manifests, tmp_path, clock=clock) as plane:
            await self.begin(clock, plane, {"web-n": "Running", "bad-n": "Pending"})
            await pass_time(clock, 2)
            assert "default/bad-n: a: " in plane.message
            manifests.put("/m/g.yaml", None)
            await self.begin(clock, plane, {"web-n": "Running"})
            await pass_time(clock, 2)
            assert (plane.state, plane.message) == (State.READY, "1 pods")
            cri.calls.clear()
            await pass_time(clock, 50)
            assert cri.calls == []


@pytest.mark.parametrize("restarts", [False, True])
async def test_changed_resources_need_no_restart_unless_the_container_wants_one(
    cri: Slow, tmp_path: Path, restarts: bool
) -> None:
    """RSZ-01."""

    def sized(cpu: str) -> bytes:
        wish = ", resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]" if restarts else ""
        more = f"resources: {{limits: {{cpu: {cpu}}}}}{wish}"
        return manifest("web", "i", more=", uid: fixed").replace(b"image: i}", f"image: i, {more}}}".encode())

    manifests = FakeManifestDirectory({"/m/f.yaml": sized("500m")})
    async with running(cri, manifests, tmp_path) as plane:
        await plane.until_phases(web="Running")
        before = await ids(cri)
        manifests.put("/m/f.yaml", sized("750m"))
        if restarts:
            await plane.until(lambda: cri.stops == [("a", 30)], "it is ended")
            await plane.until(lambda: plane.pod().containers[0].restart_count == 1, "and started again")
        else:
            await plane.until(lambda: "UpdateContainerResources" in cri.calls, "it is changed")
            await plane.until(lambda: "ResizeCompleted" in {one.reason for one in plane.events}, "and told")
            assert (await ids(cri), cri.stops) == (before, [])

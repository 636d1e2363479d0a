# SPDX-License-Identifier: Apache-2.0
"""Claims at work: pods wait for them, use them, and what is claimed no more goes or stays as its policy says."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from agent.host.joints.manifests import MadeHere
from agent.model.refused import Refused
from agent.pods.run.claims import Claims
from tests.fakes.manifests import FakeManifestDirectory
from tests.fakes.state_files import FakeStateFiles
from tests.pods.plane import DISKS, Dying, Plane, Slow, running
from tests.pods.run.test_stateful_sets import claimed
from tests.pods.run.test_workloads import until_ready
from tests.pods.storage.test_binding import claim, storage_class, volume

DELETING = storage_class("gone", "kepd.dev/directory", "\nreclaimPolicy: Delete")
POD = """apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: CLAIM}}]
"""


@pytest.fixture
def cri() -> Slow:
    return Slow()


def pod(name: str = "web", claim_name: str = "data") -> str:
    return POD.replace("NAME", name).replace("CLAIM", claim_name)


def files(**texts: str) -> FakeManifestDirectory:
    return FakeManifestDirectory({f"/m/{name}.yaml": text.encode() for name, text in texts.items()})


def put(manifests: FakeManifestDirectory, name: str, text: str | None) -> None:
    manifests.put(f"/m/{name}.yaml", text.encode() if text is not None else None)


def claims_in(plane: Plane) -> Claims:
    return plane.runner.workloads.claims


def status(plane: Plane, name: str = "data", kind: str = "PersistentVolumeClaim") -> dict[str, Any]:
    namespace = "default" if kind == "PersistentVolumeClaim" else ""
    return dict(plane.runner.workloads.status((kind, namespace, name)) or {})


def made(plane: Plane) -> dict[str, str]:
    texts = [text for content in claims_in(plane).files.values() for text in content.split(b"\n---\n")]
    found = [json.loads(text) for text in texts if text]
    return {one["metadata"]["name"]: one["kind"] for one in found}


def mounts(cri: Slow) -> dict[str, str]:
    configs = [request.config for request in cri.created]
    return {mount.container_path: mount.host_path for config in configs for mount in config.mounts}


async def test_a_pod_waits_for_its_claim_and_says_which(cri: Slow, tmp_path: Path) -> None:
    root, manifests = tmp_path / "claims", files(pod=pod())
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(root)) as plane:
        await plane.until(
            lambda: any('persistentvolumeclaim "data" not found' in one.message for one in plane.events), "told"
        )
        assert plane.phases == {"web-n": "Pending"}
        put(manifests, "claim", claim())
        await plane.until_phases(web="Running")
        assert status(plane)["phase"] == "Bound"
        assert status(plane)["capacity"] == {"storage": "1Gi"}
        assert (root / "default/data").stat().st_mode & 0o777 == 0o777
        name = status(plane)["spec"]["volumeName"]
        assert made(plane)[name] == "PersistentVolume"
        assert status(plane, name, "PersistentVolume")["spec"]["claimRef"]["name"] == "data"


async def test_the_longest_name_that_a_claim_may_have_has_a_directory(cri: Slow, tmp_path: Path) -> None:
    root, name = tmp_path / "claims", "c" * 253
    manifests = files(claim=claim(name), pod=pod(claim_name=name))
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(root)) as plane:
        await plane.until_phases(web="Running")
        assert (root / "default" / name).is_dir()


async def test_a_thousand_claims_keep_no_other_pod_waiting(cri: Slow, tmp_path: Path) -> None:
    many = "\n---\n".join(claim(f"c{place}") for place in range(1100))
    manifests = files(claims=many, claim=claim(), pod=pod())
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(tmp_path / "claims")) as plane:
        await plane.until_phases(web="Running")
        assert "1000 objects of kind PersistentVolumeClaim already" in plane.message
        assert len(list((tmp_path / "claims/default").iterdir())) == 1


async def test_a_claim_without_a_pod_waits_and_makes_nothing(cri: Slow, tmp_path: Path) -> None:
    root, manifests = tmp_path / "claims", files(claim=claim())
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(root)) as plane:
        await plane.until(lambda: status(plane).get("message"), "it says what it waits for")
        assert status(plane) == {"phase": "Pending", "message": "waits for the first pod that uses it"}
    assert not root.exists()


async def test_a_volume_of_a_manifest_serves_and_is_never_removed(cri: Slow, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "table").write_text("rows")
    text = volume(more=", persistentVolumeReclaimPolicy: Delete").replace("/srv/disk", str(disk))
    manifests = files(volume=text, claim=claim(), pod=pod())
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(tmp_path / "claims")) as plane:
        await plane.until_phases(web="Running")
        assert status(plane)["spec"]["volumeName"] == "disk"
        assert status(plane, "disk", "PersistentVolume")["phase"] == "Bound"
        put(manifests, "pod", None)
        put(manifests, "claim", None)
        await plane.until(lambda: status(plane, "disk", "PersistentVolume")["phase"] == "Released", "let go")
        put(manifests, "other", claim("other"))
        await plane.until(lambda: status(plane, "other").get("message"), "another claim does not get it")
        put(manifests, "claim", claim())
        await plane.until(lambda: status(plane)["phase"] == "Bound", "the same does")
        put(manifests, "volume", text.replace(str(disk), str(tmp_path)))
        await plane.until(lambda: status(plane)["phase"] == "Lost", "what has its name is another place")
        put(manifests, "volume", None)
        await plane.until(lambda: status(plane)["phase"] == "Lost", "its volume is gone")
    assert (disk / "table").read_text() == "rows"


@pytest.mark.parametrize("deletes", [False, True])
async def test_a_claim_that_is_deleted_ends_with_its_last_pod_as_its_class_says(
    cri: Slow, tmp_path: Path, *, deletes: bool
) -> None:
    root = tmp_path / "claims"
    text = claim(more=", storageClassName: gone") if deletes else claim()
    manifests = files(sc=DELETING, claim=text, pod=pod())
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(root)) as plane:
        await plane.until_phases(web="Running")
        (root / "default/data/table").write_text("rows")
        put(manifests, "claim", None)
        put(manifests, "late", pod("late"))
        await plane.until(lambda: any("is being deleted" in one.message for one in plane.events), "no new pod")
        assert (root / "default/data/table").exists()
        put(manifests, "pod", None)
        if deletes:
            await plane.until(lambda: not (root / "default/data").exists(), "it goes, though a pod waits for it")
            put(manifests, "claim", text)
            await plane.until_phases(late="Running")
            assert not (root / "default/data/table").exists()
            return
        put(manifests, "late", None)
        await plane.until(lambda: list(made(plane).values()) == ["StorageClass", "PersistentVolume"], "it stays")
        put(manifests, "claim", text)
        put(manifests, "pod", pod())
        await plane.until_phases(web="Running")
    assert (root / "default/data/table").read_text() == "rows"


async def test_what_was_there_before_is_used_and_never_removed(cri: Slow, tmp_path: Path) -> None:
    root = tmp_path / "claims"
    (root / "default/data").mkdir(parents=True)
    (root / "default/data/table").write_text("rows of another node")
    manifests = files(sc=DELETING, claim=claim(more=", storageClassName: gone"), pod=pod())
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(root)) as plane:
        await plane.until_phases(web="Running")
        put(manifests, "pod", None)
        put(manifests, "claim", None)
        await plane.until(
            lambda: (
                not claims_in(plane)._records.of(("PersistentVolumeClaim", "default", "data"))
                or claims_in(plane)._records.all()[0].is_released
            ),
            "let go",
        )
    assert (root / "default/data/table").exists()


@pytest.mark.parametrize("place", ["default", "default/data"])
async def test_a_link_in_the_way_is_followed_nowhere(cri: Slow, tmp_path: Path, place: str) -> None:
    root, else_where = tmp_path / "claims", tmp_path / "else"
    else_where.mkdir()
    (root / place).parent.mkdir(parents=True)
    (root / place).symlink_to(else_where)
    manifests = files(claim=claim(), pod=pod())
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(root)) as plane:
        await plane.until(
            lambda: any("kepd follows no link there" in one.message for one in plane.events), "it is told"
        )
        assert plane.phases == {"web-n": "Pending"}
    assert not list(else_where.iterdir())


async def test_a_claim_of_one_pod_is_of_one_pod(cri: Slow, tmp_path: Path) -> None:
    manifests = files(claim=claim(modes="ReadWriteOncePod"), pod=pod())
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(tmp_path / "claims")) as plane:
        await plane.until_phases(web="Running")
        put(manifests, "two", pod("two"))
        await plane.until(lambda: any("of one pod alone" in one.message for one in plane.events), "it waits")
        assert plane.phases == {"web-n": "Running", "two-n": "Pending"}


async def test_a_volume_of_a_manifest_leads_nobody_into_the_directories_of_kepd(cri: Slow, tmp_path: Path) -> None:
    """Whatever type it has, or has not; and none is made or changed for it."""
    logs = tmp_path / "logs"
    own = logs.with_name(f"{logs.name}-pods") / "pods"
    manifests = files(volume=volume().replace("/srv/disk", str(own)), claim=claim(), pod=pod())
    async with running(cri, manifests, logs, claim_directory=str(tmp_path / "claims")) as plane:
        await plane.until(lambda: any("which kepd gives no container" in one.message for one in plane.events), "told")
        assert plane.phases == {"web-n": "Pending"}


async def test_a_pod_that_uses_the_claim_of_a_set_keeps_it_from_going_with_the_set(cri: Slow, tmp_path: Path) -> None:
    root, manifests = tmp_path / "claims", files(pod=pod(claim_name="data-db-0"))
    manifests.put("/m/w.yaml", claimed(1, deleted="Delete"))
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(root)) as plane:
        await until_ready(plane, 2)
        await plane.until(lambda: status(plane, "data-db-0")["phase"] == "Bound", "both use it")
        manifests.put("/m/w.yaml", None)
        await plane.until_phases(web="Running")
        await plane.rounds()
        assert (root / "default/data-db-0").exists()
        put(manifests, "pod", None)
        await plane.until(lambda: not (root / "default/data-db-0").exists(), "the last one takes it along")


async def test_claims_of_a_stateful_set_are_shown_and_can_be_deleted(cri: Slow, tmp_path: Path) -> None:
    root, manifests = tmp_path / "claims", FakeManifestDirectory({"/m/w.yaml": claimed(1)})
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(root)) as plane:
        await until_ready(plane, 1)
        assert made(plane)["data-db-0"] == "PersistentVolumeClaim"
        here, key = MadeHere(plane.runner.workloads), ("PersistentVolumeClaim", "default", "data-db-0")
        name = status(plane, "data-db-0")["spec"]["volumeName"]
        with pytest.raises(Refused, match="serves the claim default/data-db-0"):
            await here.drop(("PersistentVolume", "", name))
        manifests.put("/m/w.yaml", None)
        await plane.until(lambda: not plane.runner.pods.items, "its pod is gone")
        assert "data-db-0" in made(plane), "the claim stays"
        assert await here.drop(key)
        await plane.until(lambda: "data-db-0" not in made(plane), "it is let go")
        assert (root / "default/data-db-0").exists()
        assert await here.drop(("PersistentVolume", "", name))
        assert name not in made(plane)
        assert (root / "default/data-db-0").exists()


async def test_a_set_uses_the_claim_that_a_manifest_has_for_it(cri: Slow, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    manifests = files(volume=volume().replace("/srv/disk", str(disk)), claim=claim("data-db-0"))
    manifests.put("/m/w.yaml", claimed(1))
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(tmp_path / "claims")) as plane:
        await until_ready(plane, 1)
        assert status(plane, "data-db-0")["spec"]["volumeName"] == "disk"


async def test_a_claim_that_has_more_than_it_asked_for_is_told_of_once(cri: Slow, tmp_path: Path) -> None:
    root, manifests = tmp_path / "claims", files(claim=claim(size="1Mi"), pod=pod())
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(root)) as plane:
        await plane.until_phases(web="Running")
        (root / "default/data/table").write_bytes(b"x" * (2 << 20))
        record = claims_in(plane)._records.all()[0]  # type: ignore[index]
        for _ in range(2):
            await claims_in(plane)._measure(record)
        told = [one.message for one in plane.events if one.reason == "ClaimOverSize"]
        assert told == ["it has 2Mi, and asked for 1Mi; nothing holds it to that"]
        assert status(plane)["used"] == "2Mi"


STEPS = 6


@pytest.mark.parametrize("survived", range(1, STEPS + 1))
async def test_a_kepd_that_dies_after_any_write_forgets_no_claim(cri: Slow, tmp_path: Path, survived: int) -> None:
    root, logs = tmp_path / "claims", tmp_path / "logs"
    text = claim(more=", storageClassName: gone")
    manifests, real = files(sc=DELETING, claim=text, pod=pod()), FakeStateFiles()
    DISKS[logs] = Dying(real, ("write", "remove"), survived)  # type: ignore[assignment]
    try:
        async with running(cri, manifests, logs, claim_directory=str(root)) as plane:
            await plane.until_phases(web="Running")
            put(manifests, "pod", None)
            put(manifests, "claim", None)
            await plane.until(lambda: not (root / "default/data").exists(), "it goes")
    except BaseExceptionGroup:
        put(manifests, "pod", None)
        put(manifests, "claim", None)
    DISKS[logs] = real
    async with running(cri, manifests, logs, claim_directory=str(root)) as plane:
        await plane.until(lambda: not plane.runner.pods.items and not real.files, "nothing is left")
    assert not (root / "default/data").exists()


@pytest.mark.parametrize("seed", range(4))
async def test_mixed_objects_in_random_order_leave_nothing_but_what_their_policy_keeps(
    cri: Slow, tmp_path: Path, seed: int
) -> None:
    chance, root, logs = random.Random(seed), tmp_path / "claims", tmp_path / "logs"
    parts = {f"p{n}": pod(f"p{n}", f"c{n % 3}") for n in range(4)}
    parts |= {f"c{n}": claim(f"c{n}", ", storageClassName: gone" if n else "") for n in range(3)}
    parts |= {"set": claimed(2, deleted="Delete").decode(), "gone": DELETING}
    manifests = files(gone=DELETING)
    for _ in range(2):
        async with running(cri, manifests, logs, claim_directory=str(root)) as plane:
            for _ in range(30):
                name = chance.choice([one for one in parts if one != "gone"])
                text = parts[name] if chance.random() < 0.6 else None
                put(
                    manifests, name, text.replace("image: i", chance.choice(["image: i", "image: j"])) if text else None
                )
                if chance.random() < 0.3:
                    await plane.rounds(1)
    async with running(cri, manifests, logs, claim_directory=str(root)) as plane:
        for name in parts:
            if name != "gone":
                put(manifests, name, None)
        await plane.until(lambda: not plane.runner.pods.items, "no pod is left")
        await plane.until(lambda: {*made(plane).values()} <= {"StorageClass", "PersistentVolume"}, "no claim is left")
        left = {path.relative_to(root).as_posix() for path in root.glob("*/*")}
        await plane.until(lambda: {path.name for path in root.glob("*/*")} <= {"c0"}, f"kept is only c0, not {left}")
        await plane.until(lambda: {name.partition("/")[0] for name in DISKS[logs].files} <= {"claims"}, "no record")


async def test_a_directory_that_cannot_be_removed_is_told_of_and_tried_again(
    cri: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, removed = tmp_path / "claims", list[str]()

    def remove(path: str) -> None:
        removed.append(path)
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr("agent.pods.run.claims.remove_claim", remove)
    manifests = files(sc=DELETING, claim=claim(more=", storageClassName: gone"), pod=pod())
    async with running(cri, manifests, tmp_path / "logs", claim_directory=str(root)) as plane:
        await plane.until_phases(web="Running")
        put(manifests, "pod", None)
        put(manifests, "claim", None)
        await plane.until(lambda: any(one.reason == "VolumeFailedDelete" for one in plane.events), "it is told")

    assert removed
    assert (root / "default/data").is_dir()

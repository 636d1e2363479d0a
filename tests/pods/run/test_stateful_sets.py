# SPDX-License-Identifier: Apache-2.0
"""StatefulSets at work, and the templates that kepd remembers: names, order, claims, deaths of kepd at any step."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.objects.reading import Reading
from agent.pods.manifest.objects import NodeIdentity, pod_reading
from agent.pods.workloads.history import History
from tests.fakes.manifests import FakeManifestDirectory
from tests.fakes.state_files import FakeStateFiles
from tests.objects.following import following
from tests.pods.plane import DISKS, Dying, Plane, Slow, running
from tests.pods.run.test_workloads import deployment, job, pods, ready, status, until_ready

FILE = "/m/w.yaml"
KEY = ("StatefulSet", "default", "db")
DEPLOYMENT = ("Deployment", "default", "web")


def reading_at(root: Path) -> Reading:
    return pod_reading(NodeIdentity("n", has_name_suffix=True))


def stateful(replicas: int = 3, image: str = "i", more: str = "") -> bytes:
    return f"""
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  serviceName: db
  replicas: {replicas}
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      containers:
      - {{name: a, image: {image}, imagePullPolicy: IfNotPresent, volumeMounts: [{{name: data, mountPath: /data}}]}}
      volumes: [{{name: data, emptyDir: {{}}}}]
{more}""".encode()


CLAIMED = """  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
  persistentVolumeClaimRetentionPolicy: {whenScaled: SCALED, whenDeleted: DELETED}
"""


def claimed(replicas: int, scaled: str = "Retain", deleted: str = "Retain") -> bytes:
    return stateful(replicas, more=CLAIMED.replace("SCALED", scaled).replace("DELETED", deleted))


@pytest.fixture
def cri() -> Slow:
    made = Slow()
    made.registry |= {"j", "k"}
    return made


def files_of(content: bytes) -> FakeManifestDirectory:
    return FakeManifestDirectory({FILE: content})


def told(plane: Plane) -> dict[str, Any]:
    return status(plane, "StatefulSet", "db")


def images(plane: Plane) -> dict[str, str]:
    return {one.name: one.spec.containers[0].image for one in pods(plane)}


def history(plane: Plane, key: tuple[str, str, str] = KEY) -> History:
    found = plane.runner.workloads.history(key)
    assert found is not None
    return found


async def test_its_pods_have_names_labels_and_a_place_below_their_service(cri: Slow, tmp_path: Path) -> None:
    """WL-20"""
    async with running(cri, files_of(stateful(2, more="  ordinals: {start: 3}\n")), tmp_path) as plane:
        await until_ready(plane, 2)
        shown = {one.name: one for one in pods(plane)}
        now = told(plane)

    assert sorted(shown) == ["db-3", "db-4"]
    one = shown["db-4"]
    assert (one.spec.hostname, one.spec.subdomain) == ("db-4", "db")
    labels = dict(one.labels)
    assert labels["statefulset.kubernetes.io/pod-name"] == "db-4"
    assert labels["apps.kubernetes.io/pod-index"] == "4"
    assert labels["controller-revision-hash"] == now["updateRevision"] == now["currentRevision"]
    assert (now["replicas"], now["readyReplicas"], now["availableReplicas"], now["updatedReplicas"]) == (2, 2, 2, 2)


async def test_pods_begin_one_after_the_other_and_end_the_highest_first(cri: Slow, tmp_path: Path) -> None:
    """WL-20"""
    files = files_of(stateful(3))
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 3)
        files.put(FILE, stateful(1))
        await until_ready(plane, 1)
        events = [one.message for one in plane.events if one.object_kind == "StatefulSet"]

    made = [f"Created pod: db-{ordinal}" for ordinal in range(3)]
    assert events == [*made, "Deleted pod: db-2", "Deleted pod: db-1"]


async def test_pods_below_the_partition_keep_the_former_template_also_when_made_anew(cri: Slow, tmp_path: Path) -> None:
    """WL-21, over a restart of kepd."""
    parted = "  updateStrategy: {rollingUpdate: {partition: 2}}\n"
    files = files_of(stateful(3, more=parted))
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 3)
        files.put(FILE, stateful(3, "j", more=parted))
        await plane.until(lambda: images(plane) == {"db-0": "i", "db-1": "i", "db-2": "j"}, "the part has changed")
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 3)
        first = plane.pod("db-0")
        spec = plane.runner.wants.by_key[first.key]
        plane.runner.workloads.drop(spec)
        plane.runner.let_go(spec, None)
        await plane.until(lambda: first.uid not in {one.uid for one in pods(plane)} and ready(plane) == 3, "made anew")
        assert images(plane) == {"db-0": "i", "db-1": "i", "db-2": "j"}
        files.put(FILE, stateful(3, "j"))
        await plane.until(lambda: set(images(plane).values()) == {"j"} and ready(plane) == 3, "all have changed")
        await plane.until(lambda: told(plane)["currentRevision"] == told(plane)["updateRevision"], "it is in force")


async def test_claims_are_directories_that_outlive_pods_and_go_only_where_the_manifest_says(
    cri: Slow, tmp_path: Path
) -> None:
    """WL-25"""
    root = tmp_path / "claims"
    files = files_of(claimed(2))
    logs = tmp_path / "logs"
    async with running(cri, files, logs, claim_directory=str(root)) as plane:
        await until_ready(plane, 2)
        kept = [root / f"default/data-db-{ordinal}" for ordinal in (0, 1)]
        assert [one.stat().st_mode & 0o777 for one in (root, *kept)] == [0o700, 0o777, 0o777]
        volumes = {one.name: one for one in plane.pod("db-1").spec.volumes}
        claim = volumes["data"].persistent_volume_claim
        assert claim is not None
        assert claim.claim_name == "data-db-1"
        (kept[1] / "table").write_text("rows")
        files.put(FILE, claimed(1))
        await until_ready(plane, 1)
        assert (kept[1] / "table").exists()
        files.put(FILE, claimed(1, scaled="Delete"))
        await plane.until(lambda: not kept[1].exists(), "the claim of the ordinal that is gone")
        assert kept[0].exists()
        files.put(FILE, claimed(1, deleted="Delete"))
        await plane.until(lambda: history(plane).ends_claims, "it is written down")
        files.put(FILE, None)
        await plane.until(lambda: not kept[0].exists(), "the last claim")
        await plane.until(lambda: not list(DISKS[logs].files), "no record is left")


async def test_a_claim_that_two_sets_have_stays_while_one_of_them_has_it(cri: Slow, tmp_path: Path) -> None:
    """WL-25: the names of claims and sets can come to the same."""
    root, logs = tmp_path / "claims", tmp_path / "logs"
    other = (
        claimed(1, deleted="Delete")
        .replace(b"{name: data}", b"{name: data-x}")
        .replace(b"name: data,", b"name: data-x,")
    )
    one = claimed(1).replace(b"{name: db}", b"{name: x-db}")
    files = FakeManifestDirectory(
        {"/m/a.yaml": one, "/m/b.yaml": other.replace(b"volumes: [{name: data-x", b"volumes: [{name: data")}
    )
    async with running(cri, files, logs, claim_directory=str(root)) as plane:
        await until_ready(plane, 2)
        shared = root / "default/data-x-db-0"
        assert shared.exists()
        await plane.until(lambda: history(plane).ends_claims, "it is written down")
        files.put("/m/b.yaml", None)
        await plane.until(lambda: plane.runner.workloads.history(KEY) is None and len(pods(plane)) == 1, "one is gone")
        await plane.until(
            lambda: len([name for name in DISKS[logs].files if name.startswith("revisions/")]) == 1, "gone"
        )
        assert shared.exists()


async def test_a_name_that_another_pod_has_is_waited_for(cri: Slow, tmp_path: Path) -> None:
    single = b"apiVersion: v1\nkind: Pod\nmetadata: {name: db-0}\nspec: {containers: [{name: a, image: i}]}\n"
    files = FakeManifestDirectory({"/m/pod.yaml": single, FILE: stateful(1)})
    async with running(cri, files, tmp_path, name_suffix=False) as plane:
        await plane.until(lambda: any(one.reason == "FailedCreate" for one in plane.events), "it is told")
        own = plane.pod("db-0")
        assert own.owner is None
        files.put("/m/pod.yaml", None)
        await plane.until(
            lambda: (one := plane.runner.pods.items.get("default/db-0")) is not None and one.owner is not None,
            "its turn",
        )


STEPS = 15


@pytest.mark.parametrize("survived", range(1, STEPS + 1))
async def test_a_kepd_that_dies_after_any_write_goes_on_and_makes_no_name_twice(
    cri: Slow, tmp_path: Path, survived: int
) -> None:
    """WL-20, WL-23, WL-25: every record that is written or removed is a step, and the process ends right after it."""
    root, logs = str(tmp_path / "claims"), tmp_path / "logs"
    files = files_of(claimed(2, "Delete"))
    real = FakeStateFiles()
    DISKS[logs] = Dying(real, ("write", "remove"), survived)  # type: ignore[assignment]
    made: Counter[str] = Counter()
    try:
        async with running(cri, files, logs, claim_directory=root) as plane:
            await until_ready(plane, 2)
            files.put(FILE, claimed(1, "Delete").replace(b"image: i", b"image: j"))
            await plane.until(lambda: images(plane) == {"db-0": "j"} and ready(plane) == 1, "it has changed")
    except BaseExceptionGroup:
        files.put(FILE, claimed(1, "Delete").replace(b"image: i", b"image: j"))
    DISKS[logs] = real
    async with running(cri, files, logs, claim_directory=root) as plane:
        await plane.until(lambda: images(plane) == {"db-0": "j"} and ready(plane) == 1, "it has changed")
        await plane.until(lambda: len(plane.runner.pods.items) == 1, "no other pod")
        await plane.until(lambda: not (Path(root) / "default/data-db-1").exists(), "the spare claim is gone")
        made.update(one.metadata.name for one in await cri.list_sandboxes())

    assert made == {"db-0": 1}
    assert (Path(root) / "default/data-db-0").exists()


async def test_templates_are_remembered_and_the_oldest_are_forgotten(cri: Slow, tmp_path: Path) -> None:
    """WL-23"""
    files = files_of(deployment(1, more="  revisionHistoryLimit: 1\n"))
    async with running(cri, files, tmp_path) as plane:
        for image in ("i", "j", "k"):
            files.put(FILE, deployment(1, image, more="  revisionHistoryLimit: 1\n"))
            await until_ready(plane, 1, image)
        await plane.until(lambda: len(history(plane, DEPLOYMENT).revisions) == 2, "the oldest is forgotten")
        known = [(one.number, one.template.spec.containers[0].image) for one in history(plane, DEPLOYMENT).revisions]
        assert known == [(2, "j"), (3, "k")]
        files.put(FILE, deployment(1, "j", more="  revisionHistoryLimit: 1\n"))
        await until_ready(plane, 1, "j")
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 1, "j")
        known = [(one.number, one.template.spec.containers[0].image) for one in history(plane, DEPLOYMENT).revisions]

    assert known == [(3, "k"), (4, "j")]


async def test_a_paused_deployment_keeps_its_template_and_follows_its_number(cri: Slow, tmp_path: Path) -> None:
    """WL-24"""
    files = files_of(deployment(2))
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 2)
        files.put(FILE, deployment(3, "j", more="  paused: true\n"))
        await until_ready(plane, 3, "i")
        progressing = next(one for one in status(plane)["conditions"] if one["type"] == "Progressing")
        assert (progressing["status"], progressing["reason"]) == ("Unknown", "DeploymentPaused")
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 3, "i")
        files.put(FILE, deployment(3, "j"))
        await until_ready(plane, 3, "j")


class HeldFiles(FakeStateFiles):
    """The first write into a folder waits until the test says so."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self.is_asked, self.may_write = asyncio.Event(), asyncio.Event()

    async def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None:
        if name.startswith(self._folder):
            self.is_asked.set()
            await self.may_write.wait()
        await super().write(name, content, is_durable=is_durable)


@pytest.mark.parametrize(
    ("folder", "content"),
    [("revisions", deployment(2)), ("revisions", stateful(2)), ("jobs", job())],
    ids=["Deployment", "StatefulSet", "Job"],
)
async def test_a_manifest_that_goes_while_its_record_is_written_leaves_no_pod(
    cri: Slow, tmp_path: Path, folder: str, content: bytes
) -> None:
    """WL-3, WL-23: nothing is made for what nobody wants any more."""
    files = files_of(content)
    held = DISKS[tmp_path] = HeldFiles(folder)
    async with running(cri, files, tmp_path) as plane:
        await held.is_asked.wait()
        files.put(FILE, None)
        await plane.until(lambda: not plane.runner.wants.reading.workloads, "its manifest is gone")
        held.may_write.set()
        await plane.until(lambda: not [name for name in held.files if name.startswith(folder)], "its record is gone")
        await plane.rounds()
        assert not plane.runner.pods.items
        assert "RunPodSandbox" not in cri.calls


@pytest.mark.parametrize("trouble", ["no directory", "an unread file", "a fault", "a rival"])
async def test_no_pod_ends_and_no_claim_goes_for_want_of_a_file_that_says_so(
    cri: Slow, tmp_path: Path, trouble: str
) -> None:
    """While kepd runs, and over a restart."""
    folder, root, logs = tmp_path / "manifests", tmp_path / "claims", tmp_path / "logs"
    folder.mkdir()
    file = folder / "w.yaml"
    file.write_bytes(claimed(2, scaled="Delete", deleted="Delete"))

    @asynccontextmanager
    async def living() -> AsyncIterator[Any]:
        database = tmp_path / "objects.db"
        async with (
            following(folder, database, reading_at(root), rescan_s=0.2) as (source,),
            running(cri, source, logs, claim_directory=str(root)) as plane,
        ):
            yield plane

    async with living() as plane:
        await until_ready(plane, 2)
        before = {one.uid for one in pods(plane)}
        if trouble == "no directory":
            folder.rename(tmp_path / "aside")
        elif trouble == "an unread file":
            file.chmod(0o666)
        elif trouble == "a fault":
            file.write_bytes(claimed(2, scaled="Delete", deleted="Delete").replace(b"serviceName", b"serviceNmae"))
        else:
            (folder / "a.yaml").write_bytes(claimed(0, scaled="Delete", deleted="Delete"))
        await plane.until(lambda: plane.runner.wants.reading.findings, "the trouble is told")
    async with living() as plane:
        await until_ready(plane, 2)
        await plane.until(lambda: plane.runner.wants.reading.findings, "the trouble is told")

        assert {one.uid for one in pods(plane)} >= before
        assert len(list(root.rglob("data-db-*"))) == 2


async def test_claims_of_one_that_may_not_run_here_any_more_stay(cri: Slow, tmp_path: Path) -> None:
    """WL-25: nobody has scaled it."""
    content, root = claimed(2, scaled="Delete"), tmp_path / "claims"
    files = files_of(content)
    async with running(cri, files, tmp_path / "logs", claim_directory=str(root)) as plane:
        await until_ready(plane, 2)
        files.put(FILE, content.replace(b"      containers:", b"      nodeSelector: {disk: ssd}\n      containers:"))
        await plane.until(lambda: not plane.runner.pods.items, "its pods are gone")
        files.put(FILE, content)
        await until_ready(plane, 2)

        assert sorted(path.name for path in root.rglob("data-db-*")) == ["data-db-0", "data-db-1"]
        files.put(FILE, claimed(1, scaled="Delete"))
        await plane.until(lambda: len(list(root.rglob("data-db-*"))) == 1, "what is scaled down loses its claim")


async def test_a_disk_that_is_mounted_late_ends_nothing_where_nothing_is_remembered_yet(
    cri: Slow, tmp_path: Path
) -> None:
    """As at the first start of a version that remembers; nor does the start after that."""
    folder, root, logs = tmp_path / "manifests", tmp_path / "claims", tmp_path / "logs"
    files = FakeManifestDirectory({str(folder / "w.yaml"): claimed(2, deleted="Delete")})
    async with running(cri, files, logs, claim_directory=str(root)) as plane:
        await until_ready(plane, 2)
        before = {one.uid for one in pods(plane)}
    database = tmp_path / "objects.db"
    for _ in range(2):
        async with (
            following(folder, database, reading_at(root), rescan_s=0.2) as (source,),
            running(cri, source, logs, claim_directory=str(root)) as plane,
        ):
            await until_ready(plane, 2)
            await plane.rounds()

            assert {one.uid for one in pods(plane)} == before
            assert len(list(root.rglob("data-db-*"))) == 2
    folder.mkdir()
    async with (
        following(folder, database, reading_at(root), rescan_s=0.2) as (source,),
        running(cri, source, logs) as plane,
    ):
        await plane.until(lambda: not plane.runner.pods.items, "an empty directory is believed")

# SPDX-License-Identifier: Apache-2.0
"""Objects of the manifest directory: each is applied and deleted by itself."""

import json
import stat
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from agent.config.document import Configuration, ManifestsSection
from agent.drivers.manifests.driver import read_manifests
from agent.drivers.manifests.source_folders import read_source_folders
from agent.host.joints.manifests import faults_of, wire_objects
from agent.model.refused import Refused
from agent.objects.run.applying import ManifestObjects
from tests.fakes.power import Disk, disk

__all__ = ["disk"]
POD = b"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: 'i:1'}]}\n"
SERVICE = b"---\n# its way in\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n"
SECRET = b"---\napiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {password: hush}\n"
DEPLOYMENT = (
    b"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {selector: {matchLabels: {a: b}}, template: "
    b"{metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: 'i:1', env: [{name: A, value: hush}]}]}}}\n"
)


def objects_in(
    directory: Path,
    ended: list[str] | None = None,
    status: Any = lambda _: None,
    created_s: Any = lambda _: 0.0,
    jobs: Any = None,
) -> ManifestObjects:
    async def end_pod(namespace: str, name: str, grace_s: float | None, _evicts: bool) -> None:
        assert ended is not None
        ended.append(f"{namespace}/{name} {grace_s}")

    return ManifestObjects(
        lambda: directory,
        lambda: read_manifests(directory).files,
        lambda: list(read_source_folders(directory, {}).folders.values()),
        lambda content: faults_of(content, Configuration()),
        end_pod if ended is not None else None,
        lambda: "-n1",
        status=status,
        created_s=created_s,
        jobs=jobs,
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def mode_of(directory: Path, name: str) -> int:
    return stat.S_IMODE((directory / name).stat().st_mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


async def test_every_object_of_a_manifest_gets_a_file_of_its_own(folder: Path) -> None:
    """CL-6: apply took pods only."""
    applied = await objects_in(folder).apply(POD + SERVICE + SECRET, dry_run=False)

    assert [(one.kind, one.result) for one in applied] == [
        ("Pod", "created"),
        ("Service", "created"),
        ("Secret", "created"),
    ]
    assert contents(folder) == {
        "kepctl-Secret.default.key.yaml": SECRET.removeprefix(b"---\n"),
        "kepctl-Service.default.web.yaml": SERVICE.removeprefix(b"---\n"),
        "kepctl-default-web.yaml": POD.replace(b"{name: web}", b'{uid: "%s", name: web}' % uid_of(folder).encode()),
    }
    assert mode_of(folder, "kepctl-Secret.default.key.yaml") == 0o600


def uid_of(folder: Path, name: str = "kepctl-default-web.yaml") -> str:
    made = yaml.safe_load((folder / name).read_bytes())
    return str(UUID(made["metadata"]["uid"]))


async def test_a_pod_has_one_uid_from_its_first_manifest_on(folder: Path) -> None:
    """A pod without one is another pod after any edit."""
    objects = objects_in(folder)
    block = POD.replace(b"metadata: {name: web}", b"metadata:\n  # its name\n  name: web")
    await objects.apply(block, dry_run=False)
    first = uid_of(folder)
    await objects.apply(POD.replace(b"{name: web}", b"{name: web, labels: {a: b}}"), dry_run=False)
    labelled = uid_of(folder)
    (again,) = await objects.apply(POD.replace(b"{name: web}", b"{name: web, labels: {a: b}}"), dry_run=False)

    assert (labelled, again.result) == (first, "unchanged")


async def test_a_running_pod_keeps_its_uid_when_its_manifest_is_written(folder: Path) -> None:
    (folder / "web.yaml").write_bytes(POD)
    objects = objects_in(folder)
    objects._uid_of = lambda namespace, name: f"runs-as-{namespace}.{name}"
    await objects.apply(POD.replace(b"{name: web}", b"{name: web, labels: {a: b}}"), dry_run=False)

    assert b"uid: runs-as-default.web" in contents(folder)["web.yaml"].replace(b'"', b"")


async def test_a_write_that_follows_a_read_is_refused_after_another_change(folder: Path) -> None:
    (folder / "shop.yaml").write_bytes(SERVICE)
    objects = objects_in(folder)
    key = ("Service", "default", "web")
    version = (await objects.manifest(key))[2]
    await objects.apply(SERVICE.replace(b"80", b"81"), dry_run=False, version=version)
    for write in (
        lambda: objects.apply(SERVICE.replace(b"80", b"82"), dry_run=False, version=version),
        lambda: objects.delete(key, None, dry_run=False, version=version),
    ):
        with pytest.raises(Refused, match="changed meanwhile") as refused:
            await write()
        assert refused.value.kind == "conflict"

    assert contents(folder) == {"shop.yaml": SERVICE.replace(b"80", b"81")}


@pytest.mark.parametrize("is_renamed", [True, False])
async def test_an_edit_by_hand_between_read_and_write_stays(folder: Path, is_renamed: bool) -> None:
    """Once to write and once to delete."""
    place = folder / "shop.yaml"
    place.write_bytes(POD + SERVICE)
    objects, read, edits = objects_in(folder), None, [b"# one\n", b"# two\n"]
    read = objects._read

    def edited() -> Any:
        files = read()
        if edits:
            target = folder / ".edit" if is_renamed else place
            target.write_bytes(edits.pop() + files[str(place)])
            if is_renamed:
                target.rename(place)
        return files

    objects._read = edited
    (one,) = await objects.apply(SERVICE.replace(b"80", b"81"), dry_run=False)

    assert (one.result, edits) == ("configured", [])
    assert contents(folder) == {"shop.yaml": b"# one\n# two\n" + POD + SERVICE.replace(b"80", b"81")}


SHOWN_ONLY = {
    "Secret": SECRET,
    "Pod": POD.replace(b"'i:1'", b"'i:1', env: [{name: A, value: hush}]"),
    "Deployment": DEPLOYMENT,
    "CronJob": b"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: web}\n"
    b"spec: {schedule: '* * * * *', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, "
    b"containers: [{name: a, image: 'i:1', env: [{name: A, value: hush}]}]}}}}}\n",
}


@pytest.fixture
def open_folder(folder: Path) -> Path:
    folder.chmod(0o1777)
    return folder


@pytest.mark.parametrize("kind", SHOWN_ONLY)
async def test_what_a_list_shows_without_values_is_never_written(folder: Path, kind: str) -> None:
    """It emptied them."""
    objects = objects_in(folder)
    await objects.apply(SHOWN_ONLY[kind], dry_run=False)
    (listed,) = await objects.listed(kind)
    (whole,) = await objects.listed(kind, is_whole=True)
    made = json.loads(listed.content)
    unmarked = json.loads(listed.content)
    del unmarked["metadata"]["annotations"]
    before = contents(folder)
    for text in (made, unmarked):
        text["metadata"].pop("generation", None)
        text.pop("status", None)
        with pytest.raises(Refused, match="kepctl edit") as refused:
            await objects.apply(json.dumps(text).encode(), dry_run=False)
        assert refused.value.findings[0].path

    assert contents(folder) == before
    assert ("hush" in listed.content.decode(), "hush" in whole.content.decode()) == (False, True)
    assert listed.version == whole.version
    generations = [json.loads(one.content)["metadata"].get("generation") for one in (listed, whole)]
    assert generations[0] == generations[1], "the status is about the whole"


async def test_a_value_may_be_emptied_on_purpose(folder: Path) -> None:
    objects = objects_in(folder)
    await objects.apply(SHOWN_ONLY["Pod"] + SECRET, dry_run=False)
    pod = SHOWN_ONLY["Pod"].replace(b"value: hush", b"value: ''")
    emptied = SECRET.replace(b"hush", b"''")
    applied = await objects.apply(pod + emptied, dry_run=False)

    assert [one.result for one in applied] == ["configured", "configured"]


async def test_a_directory_that_is_refused_takes_and_shows_nothing(open_folder: Path) -> None:
    """What was written there was never read."""
    configuration = Configuration(manifests=ManifestsSection(directory=str(open_folder)))
    objects = wire_objects(lambda: configuration, None)
    for call in (lambda: objects.apply(SERVICE, dry_run=False), lambda: objects.listed("")):
        with pytest.raises(Refused, match="only root may write manifests"):
            await call()

    assert contents(open_folder) == {}


async def test_an_object_is_changed_where_it_stands(folder: Path) -> None:
    (folder / "shop.yaml").write_bytes(POD + SERVICE)
    (folder / "shop.yaml").chmod(0o600)
    changed = SERVICE.replace(b"80", b"81")
    objects = objects_in(folder)
    first = await objects.apply(changed, dry_run=False)
    again = await objects.apply(changed, dry_run=False)

    assert [(one.result, one.path) for one in (*first, *again)] == [
        ("configured", str(folder / "shop.yaml")),
        ("unchanged", str(folder / "shop.yaml")),
    ]
    assert contents(folder) == {"shop.yaml": POD + changed}
    assert mode_of(folder, "shop.yaml") == 0o600


async def test_a_dry_run_writes_nothing_and_shows_what_would_differ(folder: Path) -> None:
    (folder / "shop.yaml").write_bytes(POD + SERVICE)
    (one,) = await objects_in(folder).apply(SERVICE.replace(b"80", b"81"), dry_run=True)

    assert "-spec: {ports: [{port: 80}]}\n+spec: {ports: [{port: 81}]}" in one.diff
    assert contents(folder) == {"shop.yaml": POD + SERVICE}


async def test_no_difference_and_no_list_has_the_value_of_a_secret(folder: Path) -> None:
    objects = objects_in(folder)
    await objects.apply(SECRET, dry_run=False)
    (one,) = await objects.apply(SECRET.replace(b"hush", b"loud"), dry_run=True)
    (listed,) = await objects.listed("Secret")

    assert "+  password: '*** (changed)'" in one.diff
    assert not {"hush", "loud"} & {word for word in ("hush", "loud") if word in one.diff + listed.content.decode()}
    assert b'"data":{"password":""}' in listed.content


async def test_a_slip_in_a_secret_and_kubectls_copy_of_it_show_no_value(folder: Path) -> None:
    copy = "annotations: {a: b, kubectl.kubernetes.io/last-applied-configuration: 'hush'}"
    slip = f"kind: Secret\nmetadata: {{name: a, {copy}}}\nstrongData: {{password: hush}}\n---\n"
    (folder / "a.yaml").write_text(slip + "kind: secret\nmetadata: {name: b}\ndata: {password: hush}\n")
    (listed,) = await objects_in(folder).listed("")

    assert b"hush" not in listed.content
    assert b'"a":"b"' in listed.content


async def test_no_list_has_the_value_of_a_variable(folder: Path) -> None:
    """PRT-5: kubectl's copy has it once more."""
    copy = "metadata: {name: web, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{hush}'}}"
    text = POD.decode().replace("metadata: {name: web}", copy)
    pod = text.replace(
        "'i:1'", "'i:1', env: [{name: A, value: hush}, {name: B, valueFrom: {fieldRef: {fieldPath: p}}}]"
    )
    objects = objects_in(folder)
    (folder / "web.yaml").write_text(pod)

    (listed,) = await objects.listed("Pod")

    assert b"hush" not in listed.content
    assert b'"env":[{"name":"A"},{"name":"B","valueFrom":{"fieldRef":{"fieldPath":"p"}}}]' in listed.content


@pytest.mark.parametrize(
    "slip",
    [
        "containers: [{name: a, image: i, Env: [{name: A, value: hush}]}]",
        "Containers: [{name: a, env: [{name: A, value: hush}]}], containers: [{name: a, image: i}]",
        "containers: [{name: a, env: {A: hush}}]",
        "containers: [{name: a, env: [A=hush]}]",
        "containers: {name: a, env: [{Name: A, Value: hush}]}",
    ],
)
@pytest.mark.parametrize("job", ["", "jobTemplate: {}, "])
async def test_a_slip_in_a_template_shows_no_value_of_a_variable(folder: Path, slip: str, job: str) -> None:
    spec = f"{{metadata: {{labels: {{env: prod}}}}, spec: {{{slip}}}}}"
    (folder / "a.yaml").write_text(f"kind: Deployment\nmetadata: {{name: a}}\nspec: {{{job}template: {spec}}}\n")
    objects = objects_in(folder)
    ((listed,), (whole,)) = await objects.listed(""), await objects.listed("", is_whole=True)

    assert (b"hush" in listed.content, b"hush" in whole.content) == (False, True)
    assert b'"env":"prod"' in listed.content
    assert b"values-left-out" in listed.content


async def test_a_directory_that_is_not_there_is_told(folder: Path) -> None:
    with pytest.raises(Refused, match="cannot be written: No such file or directory"):
        await objects_in(folder / "none").apply(SERVICE, dry_run=False)


async def test_one_fault_keeps_everything_out(folder: Path) -> None:
    with pytest.raises(Refused, match="prots: unknown field"):
        await objects_in(folder).apply(POD + SERVICE.replace(b"ports", b"prots"), dry_run=False)

    assert contents(folder) == {}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the manifest has no object"),
        (SERVICE + SERVICE, "Service default/web is there twice"),
        (b"kind: Deploymint\n", "is not known here"),
        (b"{", "not YAML"),
    ],
)
async def test_what_cannot_be_applied_is_refused(folder: Path, content: bytes, text: str) -> None:
    with pytest.raises(Refused, match=text):
        await objects_in(folder).apply(content, dry_run=False)


async def test_create_refuses_what_is_there(folder: Path) -> None:
    objects = objects_in(folder)
    await objects.apply(SERVICE, dry_run=False, create_only=True)
    with pytest.raises(Refused, match="Service default/web is already in"):
        await objects.apply(SERVICE, dry_run=False, create_only=True)


async def test_a_file_loses_only_the_object_that_is_deleted(folder: Path) -> None:
    """CL-6: a whole file went with the pod that was deleted."""
    (folder / "shop.yaml").write_bytes(POD + SERVICE + SECRET)
    objects = objects_in(folder)
    dry = await objects.delete(("Service", "default", "web"), None, dry_run=True)
    before = contents(folder)
    await objects.delete(("Service", "default", "web"), None, dry_run=False)
    after = contents(folder)
    await objects.delete(("Secret", "default", "key"), None, dry_run=False)
    await objects.delete(("Pod", "default", "web"), None, dry_run=False)

    assert (dry, before) == (str(folder / "shop.yaml"), {"shop.yaml": POD + SERVICE + SECRET})
    assert after == {"shop.yaml": POD + SECRET}
    assert contents(folder) == {}


async def test_a_pod_is_ended_by_the_plane_that_runs_it(folder: Path) -> None:
    (folder / "shop.yaml").write_bytes(POD)
    ended: list[str] = []
    for name in ("web", "web-n1"):
        await objects_in(folder, ended).delete(("Pod", "default", name), 5.0, dry_run=False)

    assert ended == ["default/web-n1 5.0"] * 2


async def test_what_is_not_there_is_told_with_the_nearest_name(folder: Path) -> None:
    (folder / "shop.yaml").write_bytes(SERVICE)
    with pytest.raises(Refused, match='no Service default/webb is in the manifests; did you mean "web"') as refused:
        await objects_in(folder).delete(("Service", "default", "webb"), None, dry_run=False)

    assert refused.value.kind == "not_found"


async def test_a_directory_of_keys_is_listed_and_left_to_its_author(folder: Path) -> None:
    keys = folder / "configmaps" / "default" / "settings"
    keys.mkdir(parents=True)
    (keys / "a").write_text("1")
    objects = objects_in(folder)
    (one,) = await objects.listed("ConfigMap")

    assert b'"data":{"a":"1"}' in one.content
    with pytest.raises(Refused, match="is the directory"):
        await objects.delete(("ConfigMap", "default", "settings"), None, dry_run=False)


async def test_the_text_of_one_object_is_that_of_its_file(folder: Path) -> None:
    (folder / "shop.yaml").write_bytes(POD + SERVICE)

    text, where, _ = await objects_in(folder).manifest(("Service", "default", "web"))

    assert (text, where) == (SERVICE.removeprefix(b"---\n").decode(), f"{folder}/shop.yaml:7")


class MadeJobs:
    """Of a CronJob, as the pods plane has them."""

    def __init__(self) -> None:
        head = b'{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "b-1"}, '
        self.files = {"CronJob default/b": head + b'"spec": {"template": {"spec": {}}}}'}
        self.dropped: list[tuple[str, str, str]] = []

    async def drop(self, key: tuple[str, str, str]) -> bool:
        self.dropped.append(key)
        return key[0] == "Job"


async def test_a_job_that_is_in_no_file_is_listed_read_and_deleted_and_not_edited(folder: Path) -> None:
    """CJ-6."""
    (folder / "web.yaml").write_bytes(POD.replace(b"Pod", b"ConfigMap").replace(b"spec: {", b"data: {}\n#"))
    made = MadeJobs()
    objects = objects_in(folder, jobs=made)
    key = ("Job", "default", "b-1")

    assert [(one.name, one.source) for one in await objects.listed("Job")] == [("b-1", "CronJob default/b:1")]
    assert '"name": "b-1"' in (await objects.manifest(key))[0]
    edited = b"apiVersion: batch/v1\nkind: Job\nmetadata: {name: b-1}\nspec: {suspend: true, template: {spec: "
    edited += b"{restartPolicy: Never, containers: [{name: a, image: i}]}}}\n"
    with pytest.raises(Refused, match="Job default/b-1 was made by CronJob default/b; change that one"):
        await objects.apply(edited, dry_run=False)
    with pytest.raises(Refused, match="Job default/b-1 is already in CronJob default/b"):
        await objects.apply(edited, dry_run=False, create_only=True)
    await objects.delete(key, None, dry_run=True)
    assert made.dropped == []
    await objects.delete(key, None, dry_run=False)
    await objects.delete(("ConfigMap", "default", "web"), None, dry_run=False)
    assert made.dropped == [key, ("ConfigMap", "default", "web")]
    assert contents(folder) == {}


async def test_a_claim_that_was_made_for_somebody_can_be_written_by_them(folder: Path) -> None:
    """As after `kubectl get pvc -o yaml`, and back."""
    claim = (
        b"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data-db-0}\n"
        b"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"
    )
    made = MadeJobs()
    made.files = {"StatefulSet default/db": claim.replace(b"1Gi", b"2Gi")}
    objects = objects_in(folder, jobs=made)
    (applied,) = await objects.apply(claim, dry_run=False)
    (listed,) = await objects.listed("PersistentVolumeClaim")

    assert applied.result == "created"
    assert (b"1Gi" in listed.content, str(folder) in listed.source) == (True, True)


async def test_a_cron_job_is_listed_without_the_values_of_its_variables(folder: Path) -> None:
    env = b'containers: [{name: a, image: i, env: [{name: P, value: "hush"}]}]'
    job = b"{spec: {template: {spec: {restartPolicy: Never, " + env + b"}}}}"
    head = b"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: b}\n"
    await objects_in(folder).apply(head + b"spec: {schedule: '@daily', jobTemplate: " + job + b"}\n", dry_run=False)
    (listed,) = await objects_in(folder).listed("CronJob")

    assert (b"hush" in listed.content, b'"name":"P"' in listed.content) == (False, True)


CONFIG = (b"apiVersion: v1\n", b"kind: ConfigMap\nmetadata: {name: c}\n", b"data: {a: '1', b: '2'}\n")
PATCHES: tuple[tuple[str, Any, dict[str, str]], ...] = (
    ("merge", {"data": {"a": None, "c": "3"}}, {"b": "2", "c": "3"}),
    ("strategic", {"data": {"a": "0"}}, {"a": "0", "b": "2"}),
    ("json", [{"op": "move", "from": "/data/a", "path": "/data/z"}], {"b": "2", "z": "1"}),
)


@pytest.mark.parametrize(("how", "patch", "data"), PATCHES)
async def test_a_patch_changes_one_object_where_it_stands(folder: Path, how: str, patch: Any, data: Any) -> None:
    (folder / "mine.yaml").write_bytes(b"# kept\n" + b"".join(CONFIG) + SERVICE)
    objects = objects_in(folder)
    key = "ConfigMap", "default", "c"

    dry = await objects.patch(key, patch, how, dry_run=True)
    assert dry.result == "configured"
    assert b"a: '1'" in (folder / "mine.yaml").read_bytes()
    applied = await objects.patch(key, patch, how, dry_run=False)

    text = (folder / "mine.yaml").read_bytes()
    assert yaml.safe_load(text.partition(b"---")[0])["data"] == data
    assert text.endswith(SERVICE)
    again = await objects.patch(key, {}, "merge", dry_run=False, version=applied.version)
    assert again.result == "unchanged"


@pytest.mark.parametrize(
    ("how", "patch", "text"),
    [
        ("merge", [], "a merge patch is an object"),
        ("strategic", None, "a strategic patch is an object"),
        ("json", {}, "a list of operations"),
        ("json", [{"op": "remove", "path": "/x"}], "does not fit"),
        ("merge", {"metadata": {"name": "other"}}, "another object"),
        ("merge", {"kind": "Secret"}, "another object"),
        ("merge", {"metadata": None}, "another object"),
        ("merge", {"data": {"a": 5}}, "data.a"),
    ],
)
async def test_a_patch_that_makes_no_such_object_changes_nothing(folder: Path, how: str, patch: Any, text: str) -> None:
    (folder / "mine.yaml").write_bytes(b"".join(CONFIG))

    with pytest.raises(Refused, match=text):
        await objects_in(folder).patch(("ConfigMap", "default", "c"), patch, how, dry_run=False)

    assert (folder / "mine.yaml").read_bytes() == b"".join(CONFIG)


async def test_a_patch_is_made_again_on_top_of_an_edit_by_hand(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.yaml").write_bytes(b"".join(CONFIG))
    objects, key = objects_in(folder), ("ConfigMap", "default", "c")
    find, edits = objects._find, [b"data: {a: '1', b: '9'}\n"]

    def edited(files: Any, key: Any) -> Any:
        placed = find(files, key)
        if edits:
            (folder / "mine.yaml").write_bytes(b"".join(CONFIG[:2]) + edits.pop())
        return placed

    monkeypatch.setattr(objects, "_find", edited)
    await objects.patch(key, {"data": {"a": "0"}}, "merge", dry_run=False)
    assert yaml.safe_load((folder / "mine.yaml").read_bytes())["data"] == {"a": "0", "b": "9"}

    edits.append(b"data: {a: '7'}\n")
    with pytest.raises(Refused, match="changed meanwhile"):
        await objects.patch(key, {"data": {"a": "5"}}, "merge", dry_run=False, version=version_now(objects, key))


def version_now(objects: ManifestObjects, key: Any) -> str:
    return next(placed.version for placed in objects._placed(objects.files()) if placed.found.key == key)


async def test_what_was_acknowledged_is_on_the_disk(folder: Path, disk: Disk) -> None:
    objects = objects_in(folder)
    await objects.apply(POD, dry_run=False)
    assert disk.lost(folder) == []
    await objects.apply(SERVICE + SECRET, dry_run=False)
    assert disk.lost(folder) == []
    await objects.patch(("Service", "default", "web"), {"spec": {"type": "NodePort"}}, "merge", dry_run=False)
    await objects.apply(POD.replace(b"i:1", b"i:2") + SECRET.replace(b"hush", b"psst"), dry_run=False)
    (folder / "both.yaml").write_bytes(SERVICE.replace(b"web", b"a") + SERVICE.replace(b"web", b"b"))
    await objects.delete(("Service", "default", "a"), None, dry_run=False)

    assert disk.lost(folder) == []

# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps and Secrets from directories: what counts, what stays, and whom a change concerns (VOL-06, VOL-07)."""

from pathlib import Path
from typing import Any

import pytest

from agent.model.finding import Finding
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder
from agent.pods.manifest.objects import NodeIdentity, parse_objects
from agent.pods.manifest.reading import ReadManifest, changed_sources, source_references
from agent.pods.runtime.environment import EnvironmentSource, PodFacts
from agent.pods.runtime.volume_plan import plan_updates
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Slow, manifest, running
from tests.pods.pods import container, make_pod
from tests.pods.reading import read_pods

NODE = NodeIdentity("n", has_name_suffix=True)
KEY = ("ConfigMap", "default", "c")


def folder(name: str = "c", *problems: str, kind: str = "ConfigMap", **values: Any) -> dict[str, SourceFolder]:
    path = f"/m/configmaps/default/{name}"
    data = {key: value if isinstance(value, bytes) else value.encode() for key, value in values.items()}
    told = tuple(Finding(f"{path}/{one}", "", "cannot be read") for one in problems)
    return {path: SourceFolder(kind=kind, namespace="default", name=name, path=path, values=data, problems=told)}


def read(*looks: dict[str, SourceFolder]) -> ReadManifest:
    reading = ReadManifest()
    for folders in looks:
        reading = read_pods(ManifestSnapshot(folders=folders), reading, NODE)
    return reading


def test_a_directory_with_a_fault_keeps_what_it_had() -> None:
    """MAN-07 for sources: half of a ConfigMap would be worse than an old one."""
    good = read(folder(a="1"))
    broken = read(folder(a="1"), folder("c", "b", a="2"), folder("c", "b", a="3"))
    healed = read(folder(a="1"), folder("c", "b", a="2"), folder(a="2", b="3"))

    assert broken.sources == good.sources
    assert [str(one) for one in broken.findings] == ["/m/configmaps/default/c/b: cannot be read"]
    assert (healed.sources[KEY].data, healed.findings) == ({"a": b"2", "b": b"3"}, ())
    assert read(folder(a="1"), {}).sources == {}
    assert read(folder("c", "b", a="1")).sources == {}, "what was never whole is not there"


@pytest.mark.parametrize(
    ("name", "key", "complaint"),
    [
        ("c", "a b", "/m/configmaps/default/c/a b: is not the name of a key"),
        ("c", "a~", "/m/configmaps/default/c/a~: is not the name of a key"),
        ("c", "\udcff", "/m/configmaps/default/c/?: is not the name of a key"),
        ("C", "a", '/m/configmaps/default/C: name: Invalid value: "C"'),
        ("c_d", "a", '/m/configmaps/default/c_d: name: Invalid value: "c_d"'),
    ],
)
def test_names_that_cannot_be_are_told(name: str, key: str, complaint: str) -> None:
    reading = read(folder(name, **{key: "1"}))

    assert reading.sources == {}
    assert str(reading.findings[0]).startswith(complaint)


def test_a_document_comes_before_a_directory() -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: document}\n"
    reading = read_pods(ManifestSnapshot({"/m/a.yaml": text}, folders=folder(a="directory")), ReadManifest(), NODE)

    assert reading.sources[KEY].data == {"a": b"document"}
    assert "ConfigMap default/c is already in /m/a.yaml:1; this one is ignored" in str(reading.findings[0])


def test_what_is_no_text_is_for_volumes_only() -> None:
    reading = read(folder(a="1", b=b"\xff"))
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: x}\nbinaryData: {b: eA==}\n"
    (document,) = parse_objects("f", text, NODE).sources

    assert reading.sources[KEY].binary == document.binary == {"b"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("data: {../../x: a}", 'f:4: data[../../x]: Invalid value: "../../x": a key must consist of'),
        ("data: {..: a}", 'f:4: data[..]: Invalid value: "..": a key must consist of'),
        ("data: {a: b}\nbinaryData: {a: eA==}", 'f:5: binaryData[a]: Invalid value: "a": is in both data and'),
        (
            f"data: {{a: {'x' * 1048577}}}",
            "f:1: data: Too long: all values together have 1048577 bytes; at most 1048576",
        ),
    ],
)
def test_keys_of_documents_become_names_of_files(text: str, complaint: str) -> None:
    found = parse_objects("f", f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n{text}\n".encode(), NODE)

    assert found.sources == []
    assert str(found.findings[0]).startswith(complaint)


def test_only_other_content_is_a_change() -> None:
    one, two = read(folder(a="1")), read(folder(a="2"))
    moved = read_pods(
        ManifestSnapshot({"/m/a.yaml": b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: '1'}\n"}),
        one,
        NODE,
    )

    assert changed_sources(one, two) == {KEY}
    assert changed_sources(ReadManifest(), one) == changed_sources(one, ReadManifest()) == {KEY}
    assert changed_sources(one, moved) == frozenset()


def test_a_pod_speaks_of_its_sources_in_volumes_and_variables() -> None:
    env = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "e", "key": "k"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "f", "key": "k"}}},
    ]
    volumes = [
        {"name": "a", "configMap": {"name": "a"}}, {"name": "b", "secret": {"secretName": "b"}},
        {"name": "c", "projected": {"sources": [{"configMap": {"name": "c"}}, {"secret": {"name": "d"}}]}},
    ]  # fmt: skip
    whole = [{"configMapRef": {"name": "g"}}, {"secretRef": {"name": "h"}}]
    pod = make_pod([container("app", env=env, envFrom=whole)], volumes=volumes)

    assert {f"{kind}/{name}" for kind, _, name in source_references(pod)} == {
        "ConfigMap/a", "Secret/b", "ConfigMap/c", "Secret/d", "ConfigMap/e", "Secret/f", "ConfigMap/g", "Secret/h",
    }  # fmt: skip


def test_secrets_that_others_may_read_are_told() -> None:
    secret = SourceFolder(kind="Secret", namespace="d", name="s", path="/m/secrets/d/s", exposed="/m/secrets/d/s/word")
    text = b"apiVersion: v1\nkind: Secret\nmetadata: {name: x}\nstringData: {a: b}\n"
    files = {"/m/a.yaml": text, "/m/b.yaml": manifest()}
    reading = read_pods(
        ManifestSnapshot(files, folders={secret.path: secret}, exposed=frozenset(files)), ReadManifest(), NODE
    )  # fmt: skip

    assert [one.where for one in reading.warnings] == ["/m/a.yaml", "/m/secrets/d/s/word"]
    assert all("chmod 600" in one.text for one in reading.warnings)


def test_a_volume_without_its_source_stops_no_other() -> None:
    volumes = [{"name": "gone", "configMap": {"name": "none"}}, {"name": "there", "configMap": {"name": "c"}}]
    source = EnvironmentSource(kind="ConfigMap", namespace="default", name="c", data={"a": b"1"})
    updates = plan_updates(make_pod(volumes=volumes), {source.key: source}, PodFacts())

    assert [one.name for one in updates.volumes] == ["there"]
    assert updates.problems == ('volume "gone" keeps its content: configmap "none" not found',)


async def test_pods_wait_for_directories_and_follow_them(tmp_path: Path) -> None:
    text = manifest("web", "i").decode()
    text += "  volumes: [{name: v, configMap: {name: c}}]\n"
    manifests = FakeManifestDirectory({"/m/web.yaml": text.encode(), "/m/db.yaml": manifest("db", "i")})
    ((path, first),) = folder(a="1").items()
    cri = Slow()
    async with running(cri, manifests, tmp_path / "logs") as plane:
        await plane.until(lambda: any(one.reason == "FailedMount" for one in plane.events), "told")
        await plane.until(lambda: plane.phases.get("db-n") == "Running", "the other does not wait")
        woken: list[str] = []
        for keeper in plane.runner.keepers.values():
            usual = keeper.sources_changed
            name = keeper.run.pod.name

            def noted(usual: Any = usual, name: str = name) -> None:
                woken.append(name)
                usual()

            keeper.sources_changed = noted  # type: ignore[method-assign]
        manifests.put_folder(path, first)
        await plane.until_phases(web="Running", db="Running")
        (mounted,) = (tmp_path / "logs-pods" / "pods").glob("*/volumes/*configmap/v")
        assert (mounted / "a").read_text() == "1"
        manifests.put_folder(path, folder(a="2")[path])
        await plane.until(lambda: (mounted / "a").read_text() == "2", "it follows")
        manifests.put_folder(path, None)
        await plane.until(lambda: any("keeps its content" in one.message for one in plane.events), "told")

        assert (mounted / "a").read_text() == "2"
        assert set(woken) == {"web-n"}


async def test_what_changed_while_kepd_was_away_is_seen_by_the_next_one(tmp_path: Path) -> None:
    """VOL-07: without a restart of what runs."""
    text = manifest("web", "i").decode() + "  volumes: [{name: v, configMap: {name: c}}]\n"
    manifests = FakeManifestDirectory({"/m/web.yaml": text.encode()})
    ((path, first),) = folder(a="1").items()
    manifests.put_folder(path, first)
    cri = Slow()
    async with running(cri, manifests, tmp_path / "logs") as plane:
        await plane.until_phases(web="Running")
    (mounted,) = (tmp_path / "logs-pods" / "pods").glob("*/volumes/*configmap/v")
    assert (mounted / "a").read_text() == "1"
    manifests.put_folder(path, folder(a="2")[path])
    async with running(cri, manifests, tmp_path / "logs") as plane:
        await plane.until(lambda: (mounted / "a").read_text() == "2", "it follows")
        await plane.until_phases(web="Running")

    assert cri.calls.count("CreateContainer") == 1

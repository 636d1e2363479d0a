# SPDX-License-Identifier: Apache-2.0
"""All manifests together, over time."""

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.model.finding import Finding
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.pods.manifest.objects import NodeIdentity
from agent.pods.manifest.reading import ReadManifest
from tests.pods.plane import manifest
from tests.pods.reading import read_pods

NODE = NodeIdentity("n", has_name_suffix=False)
BROKEN = b"kind: ["


def read(*looks: Mapping[str, bytes]) -> ReadManifest:
    """What the last of these looks gives after the ones before."""
    reading = ReadManifest()
    for files in looks:
        reading = read_pods(ManifestSnapshot(files), reading, NODE)
    return reading


def sources(reading: ReadManifest) -> dict[str, str]:
    return {pod.name: pod.source.rpartition("/")[2] for pod in reading.pods.values()}


def test_one_bad_file_does_not_stop_the_others() -> None:
    reading = read({"/a": b"\xff", "/b": manifest(), "/d": b"kind: Service\n"})

    assert sources(reading) == {"web": "b:1"}
    assert [finding.where for finding in reading.findings] == ["/a"]
    assert reading.unread == {"/a"}


def test_a_file_with_a_fault_keeps_its_last_good_pods() -> None:
    """MAN-07."""
    good = read({"/a": manifest()})
    broken = read({"/a": manifest()}, {"/a": BROKEN}, {"/a": BROKEN + b" "})
    healed = read({"/a": manifest()}, {"/a": BROKEN}, {"/a": manifest("db")})
    gone = read({"/a": manifest()}, {"/a": BROKEN}, {})

    assert broken.pods == good.pods
    assert [str(one).split(":")[0] for one in broken.findings] == ["/a"]
    assert all(broken.is_stale(pod) for pod in broken.pods.values())
    assert (sources(healed), healed.findings) == ({"db": "a:1"}, ())
    assert (gone.pods, gone.findings) == ({}, ())
    assert broken.unread == healed.unread == frozenset(), "what was read once is known"


def test_in_a_file_with_a_fault_the_good_documents_count_and_the_missing_stay() -> None:
    before = {"/a": manifest() + b"---\n" + manifest("db")}
    changed = manifest(grace_s=5)
    reading = read(before, {"/a": changed + b"---\n" + manifest("db").replace(b"image", b"imgae")})
    half = read({"/a": changed + b"---\nkind: Pod\n"})

    assert sorted(reading.pods) == ["default/db", "default/web"]
    assert reading.pods["default/web"].grace_s == 5
    assert (reading.is_stale(reading.pods["default/web"]), reading.is_stale(reading.pods["default/db"])) == (
        False,
        True,
    )
    assert list(half.pods) == ["default/web"]
    assert half.unread == {"/a"}


def test_a_file_that_is_emptied_ends_nothing() -> None:
    """A full disk and an editor that truncates leave such files."""
    emptied = read({"/a": manifest()}, {"/a": b" \n"})
    never_full = read({"/a": b""})
    commented_out = read({"/a": manifest()}, {"/a": b"# later\n"})

    assert sources(emptied) == {"web": "a:1"}
    assert [str(one) for one in emptied.findings] == ["/a: is empty; what it had ends when the file is removed"]
    assert (never_full.pods, never_full.findings) == ({}, ())
    assert (commented_out.pods, commented_out.findings) == ({}, ())


class TestTwoOfOneName:
    """MAN-03."""

    def test_the_first_file_wins(self) -> None:
        reading = read({"/a": manifest(), "/b": manifest()})

        assert sources(reading) == {"web": "a:1"}
        assert [str(one) for one in reading.findings] == [
            "/b:1: metadata.name: Pod default/web is already in /a:1; this one is ignored"
        ]

    def test_the_one_in_force_wins_over_a_file_that_comes_later(self) -> None:
        reading = read({"/b": manifest()}, {"/a": manifest(), "/b": manifest(grace_s=5)})
        alone = read({"/b": manifest()}, {"/a": manifest(), "/b": manifest()}, {"/a": manifest()})

        assert sources(reading) == {"web": "b:1"}
        assert reading.pods["default/web"].grace_s == 5
        assert (sources(alone), alone.findings) == ({"web": "a:1"}, ())

    def test_the_one_in_force_wins_while_its_file_has_a_fault(self) -> None:
        assert sources(read({"/b": manifest()}, {"/a": manifest(), "/b": BROKEN})) == {"web": "b:1"}

    def test_who_takes_the_name_of_another_keeps_what_ran(self) -> None:
        """A copy in which the name was not changed, or was changed to one that is taken."""
        reading = read({"/a": manifest(), "/b": manifest("db")}, {"/a": manifest(), "/b": manifest()})

        assert sources(reading) == {"web": "a:1", "db": "b:1"}
        assert len(reading.findings) == 1

    def test_two_of_one_uid_are_told(self) -> None:
        first, second = manifest(more=", uid: u"), manifest("db", more=", uid: u")
        reading = read({"/a": first, "/b": second})
        later = read({"/b": second}, {"/a": first, "/b": second})

        assert (sources(reading), sources(later)) == ({"web": "a:1"}, {"db": "b:1"})
        assert [str(one) for one in reading.findings] == [
            "/b:1: metadata.uid: a pod with uid u is already in /a:1; this one is ignored"
        ]

    def test_who_takes_the_uid_of_another_keeps_what_ran(self) -> None:
        before = {"/a": manifest(more=", uid: u"), "/b": manifest("db")}
        reading = read(before, {**before, "/b": manifest("db", more=", uid: u")})

        assert reading.pods == read(before).pods
        assert reading.is_stale(reading.pods["default/db"])


def test_problems_of_reading_are_complaints_and_the_unknown_is_remembered() -> None:
    problem = Finding("/m", "", "cannot be read: input/output error")
    reading = read_pods(ManifestSnapshot({"/m/a": manifest()}, (problem,), frozenset({"/m/b"})), ReadManifest(), NODE)

    assert reading.complaints_about("/m/a") == reading.complaints_about("/m/b") == (problem,)
    assert reading.complaints_about("/other/a") == ()
    assert [reading.is_unread(file) for file in ("/m/a", "/m/b", "/m/bb", "")] == [False, True, False, False]


def test_names_that_are_no_utf8_are_found_again_as_an_annotation_has_them() -> None:
    reading = read({"/m/\udcff.yaml": BROKEN})

    assert reading.is_unread("/m/?.yaml")
    assert str(reading.findings[0]).startswith("/m/?.yaml")


def test_what_did_not_change_is_not_parsed_again() -> None:
    one = read({"/a": manifest(), "/b": manifest("db")})
    two = read_pods(ManifestSnapshot({"/a": manifest(), "/b": BROKEN}), one, NODE)

    assert two.in_force.files["/a"] is one.in_force.files["/a"]


CONTENTS = st.sampled_from([
    manifest(), manifest("db"), manifest(grace_s=5), manifest(more=", uid: u"), manifest("db", more=", uid: u"),
    manifest() + b"---\n" + manifest("db"), BROKEN, b"", b"kind: Service\n", manifest() + b"---\nkind: Pod\n",
])  # fmt: skip
LOOKS = st.lists(st.dictionaries(st.sampled_from(["/a", "/b", "/c"]), CONTENTS), min_size=1, max_size=5)


@given(LOOKS)
@example([{"/b": manifest(more=", uid: u")}, {"/a": manifest("db", more=", uid: u"), "/b": manifest("db")}])
def test_whatever_happens_names_and_uids_are_unique_and_faults_end_nothing(looks: list[dict[str, bytes]]) -> None:
    before = ReadManifest()
    for files in looks:
        reading = read_pods(ManifestSnapshot(files), before, NODE)
        uids = [pod.uid for pod in reading.pods.values()]
        assert len(uids) == len(set(uids))
        assert read_pods(ManifestSnapshot(files), reading, NODE).pods == reading.pods
        for key in before.pods.keys() - reading.pods.keys():
            pod = before.pods[key]
            assert pod.file not in files or not reading.complaints.get(pod.file) or pod.uid in uids, "or taken over"
        before = reading


def test_what_is_right_and_yet_unwise_is_told_beside_the_faults() -> None:
    """VAL-01: it changes nothing."""
    reading = read({"/a": manifest(grace_s=0)})

    assert list(reading.pods) == ["default/web"]
    assert reading.findings == ()
    assert [str(one) for one in reading.warnings] == [
        "/a:1: spec.terminationGracePeriodSeconds: 0 ends containers without hooks, order or time"
    ]


def test_what_of_a_container_is_right_and_yet_unwise_is_told() -> None:
    """NM-8."""
    container = (
        "{name: a, image: k8s.gcr.io/pause, env: [{name: A}, {name: B}, {name: A}], "
        "ports: [{containerPort: 80}, {containerPort: 80}]}"
    )
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{container}]}}\n"

    assert [str(one).removeprefix("/a:1: spec.containers[0].") for one in read({"/a": text.encode()}).warnings] == [
        "image: k8s.gcr.io gets no new images; registry.k8s.io has them",
        "env[2]: A is also that of spec.containers[0].env[0]; the last one counts",
        "ports[1]: 80/TCP is also that of spec.containers[0].ports[0]; one of them says nothing",
    ]


@pytest.mark.parametrize("content", [b"", b"  \n", b"# only a comment\n", b"---\n---\n...\n"])
def test_a_file_that_says_nothing_is_told_of(content: bytes) -> None:
    """NP-8: it is no fault, for it may be written in a moment."""
    found = read_pods(ManifestSnapshot(files={"/a": content}), ReadManifest(), NODE)

    assert [str(one) for one in found.warnings] == ["/a: says nothing: it holds no object, so nothing comes of it"]
    assert found.findings == ()


def test_a_file_of_other_planes_is_not_told_of() -> None:
    service = b"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Service, metadata: {name: s}}]\n"

    assert read_pods(ManifestSnapshot(files={"/a": service}), ReadManifest(), NODE).warnings == ()


def test_what_is_wrong_with_a_directory_concerns_what_lies_in_it() -> None:
    """NP-8: asked for each pod and each finding."""
    broken = Finding("/m/dir", "", "cannot be read")
    reading = ReadManifest(complaints={"/m/dir": (broken,)}, unread=frozenset({"/m/dir"}))

    for file, concerned in (("/m/dir", True), ("/m/dir/a.yaml", True), ("/m/directory.yaml", False), ("/m", False)):
        assert (reading.complaints_about(file) == (broken,), reading.is_unread(file)) == (concerned, concerned)

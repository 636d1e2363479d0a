# SPDX-License-Identifier: Apache-2.0
"""`kepctl what-if` on files: order of changes, exit codes, and input that is wrong."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from packages.rehearsal.tests.clusters import WEB, deployment, node
from tests.host.forked_kepctl import forked_kepctl


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": WEB}))
    return path


def test_changes_are_told_in_the_order_in_which_they_are_written(dump: Path) -> None:
    words = ("--lose-zone", "b", "--scale=web=9", "--drain", "n0", "--traffic", "web=PreferClose")
    words = (*words, "--roll", "web", "--image=web:2")
    done = forked_kepctl("what-if", "--from-files", str(dump), *words, "-o", "json")
    told = json.loads(done.stdout)["rehearsals"]

    assert [one["change"] for one in told] == [
        "lose zone b", "scale default/web to 9", "drain n0", "give default/web PreferClose",
        "roll default/web to web:2",
    ]  # fmt: skip
    assert told[1]["services"][0]["after"]["ready"] == 9


def test_a_pipeline_fails_on_what_it_was_told_to(dump: Path) -> None:
    quiet = forked_kepctl("what-if", "--from-files", str(dump), "--drain", "n0", "--fail-on", "dark,pending")
    loud = forked_kepctl("what-if", "--from-files", str(dump), "--scale", "web=500", "--fail-on", "dark,pending")

    assert quiet.returncode == 0, quiet.stderr
    assert "n3" in quiet.stdout
    assert loud.returncode == 1
    assert "pods wait" in loud.stderr
    assert "have too little" in loud.stdout


def test_advice_comes_with_its_proof(dump: Path) -> None:
    done = forked_kepctl("what-if", "--from-files", str(dump), "--lose-node", "n1", "--want", "hints")

    assert "default/web: hints holds if you scale default/web to 5" in done.stdout
    assert done.stdout.count("WHAT IF:") == 2


def test_a_picture_is_whole_and_shows_what_crosses_zones(dump: Path) -> None:
    done = forked_kepctl("what-if", "--from-files", str(dump), "--drain", "n0", "-o", "svg")
    page = forked_kepctl("what-if", "--from-files", str(dump), "--drain", "n0", "-o", "html").stdout
    drawn = ET.fromstring(done.stdout)  # our own

    assert drawn.tag.endswith("svg")
    assert "80% away" in done.stdout
    assert page.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "nothing was to be changed; expected one of --scale"),
        (("--scale", "web"), "no number of pods"),
        (("--drain", "n9"), "no node n9 is there"),
        (("--fail-on", "darkness", "--drain", "n0"), "nothing to fail on; expected dark, pending, budget"),
        (("--image", "web:2", "--roll", "web"), "--image web:2 has no roll"),
        (("--roll", "web", "--image", "web:2", "--image", "web:3"), "--image web:3 has no roll"),
        (("--want", "peace"), "is no goal; expected one of hints"),
    ],
)
def test_what_cannot_be_meant_exits_with_2_and_a_line(dump: Path, words: tuple[str, ...], expected: str) -> None:
    done = forked_kepctl("what-if", "--from-files", str(dump), *words)

    assert (done.returncode, expected in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "is no JSON object"),
        ("[1, 2]", "is no JSON object"),
        ('{"kind": "List", "items": [3]}', "3 is not an object"),
        ('{"apiVersion": "v1", "kind": "Node", "metadata": {"name": 3}}', "metadata.name"),
        ('{"apiVersion": "v2", "kind": "Node", "metadata": {"name": "n"}}', "apiVersion"),
        ('{"kind": "List", "items": [{"kind": "List", "items": [{"kind": 7}]}]}', "7 is not a kind"),
    ],
)
def test_a_file_that_is_no_dump_is_named(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "cut.json"
    path.write_text(content)
    done = forked_kepctl("what-if", "--from-files", str(path), "--drain", "n")

    assert (done.returncode, expected in done.stderr) == (2, True), done.stderr
    assert "cut.json" in done.stderr


def test_what_is_missing_is_assumed_aloud(tmp_path: Path) -> None:
    path = tmp_path / "sparse.json"
    bare = {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "spec": {"futureField": 1},
        "status": {"capacity": {"cpu": "2"}},
    }  # fmt: skip
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [bare, *deployment("web", ["n0"])]}))
    done = forked_kepctl("what-if", "--from-files", str(path), "--scale", "web=2")

    assert done.returncode == 0, done.stderr
    assert "spec.futureField: unknown field; it is not looked at" in done.stderr
    assert "status.allocatable.memory: missing; memory of this node is not looked at" in done.stderr


def test_what_is_so_of_many_objects_is_said_once(tmp_path: Path) -> None:
    """A thousand nodes without a number of pods are one line."""
    items = [node(f"n{place}", "a") for place in range(9)]
    for one in items:
        del one["status"]["allocatable"]["pods"]
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    told = forked_kepctl("what-if", "--from-files", str(path), "--drain", "n1").stderr

    assert told.count("110 are assumed") == 1
    assert "items[0] and 8 more: status.allocatable.pods: missing" in told


def test_edits_that_are_nowhere_are_an_error_and_other_kinds_are_none(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    )
    nothing = forked_kepctl("what-if", "--from-files", str(dump), "-f", str(tmp_path / "empty"))
    other = forked_kepctl("what-if", "--from-files", str(dump), "-f", str(tmp_path / "other.json"))

    assert (nothing.returncode, other.returncode) == (2, 0)
    assert "has no object; expected manifests" in nothing.stderr


@pytest.mark.parametrize("output", ["table", "json", "yaml", "html", "svg"])
def test_no_value_of_a_variable_is_shown(tmp_path: Path, output: str) -> None:
    """An edited template is compared with the whole one that is there."""
    old, new = deployment("web", ["n0", "n1"]), deployment("web", ["n0", "n1"])[0]
    for made, value in ((old[0], "old-secret"), (new, "new-secret")):
        made["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": value}]
    dump, edited = tmp_path / "c.json", tmp_path / "e.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*WEB[:6], *old]}))
    edited.write_text(json.dumps(new))
    done = forked_kepctl("what-if", "--from-files", str(dump), "-f", str(edited), "--roll", "web", "-o", output)

    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stdout + done.stderr

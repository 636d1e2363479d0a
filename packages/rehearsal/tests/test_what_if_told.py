# SPDX-License-Identifier: Apache-2.0
"""What `kepctl what-if` tells of ends, pulls and connections, and what a pipeline fails on."""

import json
from pathlib import Path
from typing import Any

import pytest

from packages.rehearsal.tests.clusters import Object, deployment, node, service
from tests.host.forked_kepctl import forked_kepctl

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return written(tmp_path / "cluster.json", app())


def app(name: str = "app", seconds: int = 5) -> list[Object]:
    made = deployment("web", ["n0", "n0"], skew=None)
    for one in made:
        spec = one["spec"] if one["kind"] == "Pod" else one["spec"]["template"]["spec"]
        hook = {"preStop": {"sleep": {"seconds": seconds}}}
        spec["containers"] = [
            {"name": name, "image": "web:1", "imagePullPolicy": "IfNotPresent", "lifecycle": hook},
        ]
    for place, one in enumerate(made[2:]):
        one["status"] = {**one["status"], "podIP": f"10.0.0.{place}"}
    return made


def written(path: Path, pods: list[Object]) -> Path:
    full, empty = node("n0", "a"), node("n1", "b")
    full["status"]["images"] = [{"names": ["docker.io/library/web:1"], "sizeBytes": 600 << 20}]
    items = [full, empty, *pods, service("web")]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


def rehearsed(dump: Path, *words: str) -> dict[str, Any]:
    done = forked_kepctl("what-if", "--from-files", str(dump), *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["rehearsals"][0]
    return found


def test_a_drain_tells_ends_and_pulls_as_text_and_as_json(dump: Path) -> None:
    text = forked_kepctl("what-if", "--from-files", str(dump), "--drain", "n0").stdout
    told = rehearsed(dump, "--drain", "n0")
    end, pull = told["ends"][0], told["pulls"]["nodes"][0]

    assert (end["pods"], end["killed_s"]) == (["default/web-1-0", "default/web-1-1"], 30)
    assert end["containers"][0]["signal_first_s"] == 5
    assert (pull["node"], pull["size_bytes"], pull["seconds"]) == ("n1", 600 << 20, 6)
    assert "2     Deployment default/web  30 s   sleep 5 s  5 s" in text
    assert "the slowest is n1; a prefetch before the change saves 6s there" in text
    assert "connections that are open (see --connections)" in text.splitlines()[-1]


def test_bandwidth_and_sizes_are_what_the_user_says(dump: Path) -> None:
    told = rehearsed(dump, "--drain", "n0", "--bandwidth", "10Mi", "--image-size", "web:1=1Gi", "--parallel-pulls", "3")
    pulls = told["pulls"]

    assert (pulls["bandwidth"], pulls["parallel"], pulls["nodes"][0]["seconds"]) == (10 << 20, 3, 102.4)


@pytest.mark.parametrize("change", [("--lose-node", "n0"), ("--lose-zone", "a")])
def test_pods_of_a_lost_node_have_no_time_to_end(dump: Path, change: tuple[str, str]) -> None:
    told = rehearsed(dump, *change)
    text = forked_kepctl("what-if", "--from-files", str(dump), *change).stdout

    assert (told["ends"], told["ended_at_once"]) == ([], 2)
    assert "pods that end with their nodes, 2: no hook, signal or grace comes before" in text


def test_each_number_of_an_hpa_is_rehearsed_from_the_cluster_as_it_is(dump: Path) -> None:
    done = forked_kepctl("what-if", "--from-files", str(dump), "--hpa", "web=0..1", "-o", "json")
    told = json.loads(done.stdout)["rehearsals"]

    assert [[len(end["pods"]) for end in one["ends"]] for one in told] == [[2], [1]]


def test_edited_manifests_end_pods_too(dump: Path, tmp_path: Path) -> None:
    edited = tmp_path / "web.json"
    made = app()[0]
    edited.write_text(json.dumps({**made, "spec": {**made["spec"], "replicas": 0}}))

    assert len(rehearsed(dump, "-f", str(edited))["ends"][0]["pods"]) == 2


@pytest.mark.parametrize(
    ("seconds", "wanted", "expected"),
    [
        (5, "grace", ""),
        (30, "grace", "drain n0: Deployment default/web: preStop of app sleeps 30 s"),
        (5, "pull>6s", ""),
        (5, "pull>5s", "drain n0: n1 pulls for 6s, longer than 5s"),
        (30, "dark,pull>5s,grace", "preStop of app sleeps 30 s"),
    ],
)
def test_a_pipeline_fails_on_ends_and_on_long_pulls(tmp_path: Path, seconds: int, wanted: str, expected: str) -> None:
    path = written(tmp_path / "cluster.json", app(seconds=seconds))
    done = forked_kepctl("what-if", "--from-files", str(path), "--drain", "n0", "--fail-on", wanted)

    assert (done.returncode, expected in done.stderr) == (1 if expected else 0, True), done.stderr


def test_a_size_that_nobody_tells_keeps_no_limit(tmp_path: Path) -> None:
    items = [node("n0", "a"), node("n1", "b"), *app()]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    words = ("what-if", "--from-files", str(path), "--drain", "n0", "--fail-on", "pull>1h")
    unknown, known = forked_kepctl(*words), forked_kepctl(*words, "--image-size", "web:1=1Gi")

    assert (unknown.returncode, known.returncode) == (1, 0)
    assert "no node says the size of docker.io/library/web:1" in unknown.stderr


def test_a_page_has_the_tables_and_runs_nothing_that_names_say(tmp_path: Path) -> None:
    pods = app(HOSTILE, seconds=30)
    pods[0]["spec"]["template"]["spec"]["containers"][0]["image"] = HOSTILE
    path = written(tmp_path / "cluster.json", pods)
    page = forked_kepctl("what-if", "--from-files", str(path), "--drain", "n0", "-o", "html").stdout

    assert page.count("<table>") == 4
    assert HOSTILE not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") >= 2


def answer(path: Path, *ends: str, **more: object) -> str:
    made = [{"family": "IPv4", "client": f"10.1.0.1:{4000 + place}", "target": "10.96.0.1:80", "endpoint": one}
            for place, one in enumerate(ends)]  # fmt: skip
    path.write_text(json.dumps({"connections": made, "total": len(made), **more}))
    return str(path)


def test_open_connections_are_counted_once_for_each_pod_that_ends(dump: Path, tmp_path: Path) -> None:
    first = answer(tmp_path / "a.json", "10.0.0.0:80", "10.0.0.0:80", "10.9.9.9:80")
    second = answer(tmp_path / "b.json", "10.0.0.0:80", "10.0.0.0:80", "10.0.0.1:80", total=7)
    words = ("--connections", first, "--connections", second)
    told = rehearsed(dump, "--drain", "n0", *words)
    text = forked_kepctl("what-if", "--from-files", str(dump), "--drain", "n0", *words).stdout

    assert told["connections"] == {"default/web-1-0": 2, "default/web-1-1": 1}
    assert told["connections_left_out"] == 4
    assert "open connections to pods that end, 3: 2 to default/web-1-0, 1 to default/web-1-1" in text
    assert "see --connections" not in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--bandwidth", "fast"), "is not a quantity"),
        (("--bandwidth", "0"), "expected at least 1, such as 100Mi"),
        (("--parallel-pulls", "0"), "not in the range"),
        (("--image-size", "web:1"), "has no size; expected IMAGE=SIZE"),
        (("--image-size", "web:1=much"), "is not a quantity"),
        (("--fail-on", "pull>long"), "is not a duration"),
        (("--fail-on", "graces"), "nothing to fail on; expected dark, pending, budget, grace"),
        (("--connections", "no-such-file"), "does not exist"),
    ],
)
def test_what_cannot_be_meant_exits_with_2_and_a_line(dump: Path, words: tuple[str, ...], expected: str) -> None:
    done = forked_kepctl("what-if", "--from-files", str(dump), "--drain", "n0", *words)

    assert (done.returncode, expected in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("content", ["[]", "{", '{"kind": "List", "items": []}', '{"connections": [{"client": 3}]}'])
def test_a_file_without_connections_is_named(dump: Path, tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    done = forked_kepctl("what-if", "--from-files", str(dump), "--drain", "n0", "--connections", str(path))

    assert (done.returncode, "other.json: has no connections" in done.stderr) == (2, True), done.stderr


def test_a_grace_of_weeks_is_written_out(tmp_path: Path) -> None:
    pods = app()
    pods[2]["spec"]["terminationGracePeriodSeconds"] = 1_234_567
    path = written(tmp_path / "cluster.json", pods)
    text = forked_kepctl("what-if", "--from-files", str(path), "--drain", "n0").stdout

    assert text.count("1234567 s") == 3

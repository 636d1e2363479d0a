# SPDX-License-Identifier: Apache-2.0
"""The door of a real kepd: what clients write and watch, and what those get who mean no good."""

import json
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from kepd_door.run.kinds.lasting import AUTHORITY
from kepd_door.shape.resources import RESOURCES
from packages.door.tests.door_process import DoorProcess, config_map
from tests.host.process import ROOT
from tests.ports import take_port

MAPS = "/api/v1/namespaces/default/configmaps"
RESTARTS = 24
METHODS = ("POST", "PUT", "PATCH", "DELETE")


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorProcess]:
    with DoorProcess(tmp_path_factory.mktemp("d"), (take_port(), take_port())) as opened:
        yield opened


def events(answer: Any, count: int) -> list[tuple[str, str, str]]:
    """So many of a watch, each with the name and the version of its object."""
    found = []
    while len(found) < count:
        made = json.loads(answer.readline())
        metadata = made["object"]["metadata"]
        found.append((made["type"], metadata.get("name", ""), metadata["resourceVersion"]))
    return found


def test_an_object_is_made_changed_and_deleted(door: DoorProcess) -> None:
    assert door.ask("POST", MAPS, config_map("one", a="b"))[0] == 201
    assert door.ask("POST", MAPS, config_map("one", a="b"))[1]["reason"] == "AlreadyExists"
    assert (door.kepd.manifests / "kepctl-ConfigMap.default.one.yaml").exists()
    status, made = door.ask("PATCH", f"{MAPS}/one", {"data": {"c": "d"}}, kind="application/merge-patch+json")
    assert (status, made["data"]) == (200, {"a": "b", "c": "d"})
    stale = {**made, "data": {}}
    assert door.ask("PUT", f"{MAPS}/one", {**made, "data": {"x": "y"}})[1]["data"] == {"x": "y"}
    assert door.ask("PUT", f"{MAPS}/one", stale)[1]["reason"] == "Conflict"
    dry = door.ask("DELETE", f"{MAPS}/one?dryRun=All")
    assert dry[0] == 200
    assert door.ask("DELETE", f"{MAPS}/one", {"preconditions": {"uid": "other"}})[0] == 409
    assert door.ask("DELETE", f"{MAPS}/one")[1]["status"] == "Success"
    assert door.ask("GET", f"{MAPS}/one")[1]["reason"] == "NotFound"


def test_what_cannot_be_carried_out_is_refused_with_its_path(door: DoorProcess) -> None:
    pods = "/api/v1/namespaces/default/pods"
    status, said = door.ask("POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": "s"}, "data": {"a": 7}})
    assert (status, said["reason"]) == (422, "Invalid")
    assert said["details"]["causes"][0]["field"].startswith("data")
    assert door.ask("GET", pods)[0] == 404
    for body, code in (
        ({"metadata": {"generateName": ""}}, 422),
        ({"kind": "Pod", "metadata": {"name": "x"}}, 400),
        ({"metadata": {"name": "x", "namespace": "other"}}, 400),
        ([], 400),
        (b"{", 400),
        (b"[" * 100_000, 413),
        (b"[" * 10_000, 400),
        (b"\xff\xfe", 400),
    ):
        assert door.ask("POST", MAPS, body)[0] == code, body
    assert door.ask("PATCH", f"{MAPS}/x", {}, kind="text/plain")[0] == 415
    assert door.ask("DELETE", f"{MAPS}/x?propagationPolicy=Orphan")[0] == 422


def test_cron_jobs_are_served_and_a_job_is_made_of_one_as_kubectl_does_it(door: DoorProcess) -> None:
    """CJ-7. kubectl reads the CronJob and writes a Job with it as owner."""
    batch = "/apis/batch/v1/namespaces/default"
    pod = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}]}
    spec = {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": {"spec": pod}}}}
    made = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "b"}, "spec": spec}
    assert door.ask("POST", f"{batch}/cronjobs", made)[0] == 201
    status, wrong = door.ask(
        "POST", f"{batch}/cronjobs", {**made, "metadata": {"name": "c"}, "spec": {"schedule": "x"}}
    )
    assert (status, "spec.schedule" in wrong["message"]) == (422, True)
    status, patched = door.ask(
        "PATCH", f"{batch}/cronjobs/b", {"spec": {"suspend": True}}, kind="application/strategic-merge-patch+json"
    )
    assert (status, patched["spec"]["suspend"], patched["spec"]["concurrencyPolicy"]) == (200, True, "Allow")
    table = door.ask(
        "GET", f"{batch}/cronjobs", Accept="application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    )[1]
    assert [one["name"] for one in table["columnDefinitions"]][:5] == [
        "Name",
        "Schedule",
        "Timezone",
        "Suspend",
        "Active",
    ]
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "b", "uid": patched["metadata"]["uid"]}
    metadata = {
        "name": "now", "creationTimestamp": None, "annotations": {"cronjob.kubernetes.io/instantiate": "manual"},
        "ownerReferences": [{**owner, "controller": True}],
    }  # fmt: skip
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": spec["jobTemplate"]["spec"],
        "status": {},
    }
    assert door.ask("POST", f"{batch}/jobs?fieldManager=kubectl-create", job)[0] == 201
    assert door.ask("GET", f"{batch}/jobs/now")[1]["metadata"]["ownerReferences"] == [{**owner, "controller": True}]
    names = [one["name"] for one in door.ask("GET", "/apis/batch/v1")[1]["resources"]]
    assert {"cronjobs", "cronjobs/status", "jobs"} <= set(names)
    assert door.ask("DELETE", f"{batch}/cronjobs/b")[0] == 200
    assert door.ask("DELETE", f"{batch}/jobs/now")[0] == 200


def test_other_nodes_stand_in_manifests(door: DoorProcess) -> None:
    other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other", "labels": {"zone": "z"}}}
    assert door.ask("POST", "/api/v1/nodes", other)[0] == 201
    assert door.ask("GET", "/api/v1/nodes/other")[1]["metadata"]["labels"] == {"zone": "z"}
    assert door.ask("DELETE", "/api/v1/nodes/other")[0] == 200
    assert door.ask("GET", "/api/v1/nodes/n1")[0] == 200
    merge = "application/merge-patch+json"
    assert door.ask("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"a": "b"}}}, kind=merge)[0] == 422


def test_values_of_secrets_are_for_those_who_may_read_files(door: DoorProcess) -> None:
    path = "/api/v1/namespaces/default/secrets"
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"word": "hidden"}}
    assert door.ask("POST", path, made)[0] == 201
    try:
        for where in (path, f"{path}/s", f"{path}?watch=1&timeoutSeconds=1"):
            assert "hidden" not in str(door.ask("GET", where, level="read"))
            assert "aGlkZGVu" not in str(door.ask("GET", where, level="read"))
        assert door.ask("GET", f"{path}/s")[1]["data"] == {"word": "aGlkZGVu"}
        assert door.ask("GET", path)[1]["items"][0]["data"] == {"word": "aGlkZGVu"}
    finally:
        door.ask("DELETE", f"{path}/s")


def test_a_deletion_is_dry_and_has_preconditions_however_it_is_asked(door: DoorProcess) -> None:
    """Of one object and of a collection; client-go writes both into the body."""
    for name in ("a", "b"):
        door.ask("POST", MAPS, config_map(name))
    made = door.ask("GET", f"{MAPS}/a")[1]["metadata"]
    dry = {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}
    for path, body, code in (
        (MAPS, dry, 200), (f"{MAPS}?dryRun=All", None, 200), (f"{MAPS}/a", dry, 200),
        (f"{MAPS}/a?dryRun=All", None, 200),
        (MAPS, {"preconditions": {"uid": "x"}}, 409), (f"{MAPS}/a", {"preconditions": {"uid": "x"}}, 409),
        (MAPS, {"preconditions": {"resourceVersion": "1"}}, 409),
        (f"{MAPS}/a", {"preconditions": {"resourceVersion": "1"}}, 409),
        (f"{MAPS}/a", {"dryRun": ["Some"]}, 400), (f"{MAPS}/a", {"preconditions": 5}, 400),
    ):  # fmt: skip
        assert door.ask("DELETE", path, body)[0] == code, (path, body)
        assert {one["metadata"]["name"] for one in door.ask("GET", MAPS)[1]["items"]} >= {"a", "b"}
    wanted = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    assert door.ask("DELETE", f"{MAPS}/a", {"preconditions": wanted})[0] == 200
    node = "/api/v1/nodes/n1"
    merge = "application/merge-patch+json"
    cordon = door.ask("PATCH", f"{node}?dryRun=All", {"spec": {"unschedulable": True}}, kind=merge)
    assert (cordon[0], door.ask("GET", node)[1]["spec"]) == (200, {})
    assert door.ask("DELETE", MAPS)[0] == 200


def test_what_a_watch_shows_can_be_written_back(door: DoorProcess) -> None:
    """As every controller with a lister does; who may only read gets a text that is refused."""
    path = "/api/v1/namespaces/default/secrets"
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "w"}, "stringData": {"word": "hidden"}}
    door.ask("POST", path, made)
    try:
        for level, code in (("operate", 200), ("read", 422)):
            with closing(door.open()) as opened:
                opened.request("GET", f"{path}?watch=1", headers={"Authorization": f"Bearer {door.tokens[level]}"})
                shown = json.loads(opened.getresponse().readline())["object"]
            shown["metadata"].setdefault("labels", {})["seen-by"] = level
            del shown["metadata"]["resourceVersion"]
            status, said = door.ask("PUT", f"{path}/w", shown)
            assert status == code, said
        assert "values-left-out" in said["message"]
        merge = {"data": {"word": "bmV3"}}
        patched = door.ask("PATCH", f"{path}/w", merge, kind="application/merge-patch+json")[1]
        assert (patched["data"], "stringData" in patched) == ({"word": "bmV3"}, False)
        whole = door.ask("GET", f"{path}/w")[1]
        assert (whole["data"], whole["metadata"]["labels"]) == ({"word": "bmV3"}, {"seen-by": "operate"})
    finally:
        door.ask("DELETE", f"{path}/w")


def test_a_scale_is_written_from_what_was_read(door: DoorProcess) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "s"}, "spec": spec}
    assert door.ask("POST", deployments, made)[0] == 201
    path, merge = f"{deployments}/s/scale", "application/merge-patch+json"
    read = door.ask("GET", path)[1]
    door.ask("PATCH", f"{deployments}/s", {"metadata": {"labels": {"c": "d"}}}, kind=merge)
    stale = door.ask("PUT", path, {**read, "spec": {"replicas": 5}})
    without = door.ask("PATCH", path, {"spec": {}}, kind=merge)
    patch = [{"op": "replace", "path": "/spec/replicas", "value": 3}]
    by_operations = door.ask("PATCH", path, patch, kind="application/json-patch+json")
    fresh = door.ask("PUT", path, {**by_operations[1], "spec": {}})
    door.ask("DELETE", f"{deployments}/s")

    assert (stale[0], stale[1]["reason"]) == (409, "Conflict")
    assert [(code, said["spec"]["replicas"]) for code, said in (without, by_operations, fresh)] == [
        (200, 2), (200, 3), (200, 0),
    ]  # fmt: skip


def test_what_is_applied_may_be_larger_than_its_annotations(door: DoorProcess) -> None:
    path = "/api/v1/namespaces/default/configmaps/large?fieldManager=kubectl"
    made = config_map("large", a="x" * 700_000, b="y")
    codes = [
        door.ask("PATCH", path, each, kind="application/apply-patch+yaml")[0]
        for each in (made, made, config_map("large", a="z" * 700_000))
    ]

    last = door.ask("GET", path)[1]["data"]
    door.ask("DELETE", path)

    assert (codes, last) == ([200] * 3, {"a": "z" * 700_000})


def test_a_value_of_a_secret_can_be_emptied_as_text(door: DoorProcess) -> None:
    secrets, merge = "/api/v1/namespaces/default/secrets", "application/merge-patch+json"
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "e"}, "data": {"k": "djE="}}
    assert door.ask("POST", secrets, made)[0] == 201
    as_data = door.ask("PATCH", f"{secrets}/e", {"data": {"k": ""}}, kind=merge)
    as_text = door.ask("PATCH", f"{secrets}/e", {"stringData": {"k": ""}}, kind=merge)
    again = door.ask("PATCH", f"{secrets}/e", {"data": {"k": "djI="}}, kind=merge)

    no_text = door.ask("PATCH", f"{secrets}/e", {"stringData": {"k": ["x"]}}, kind=merge)
    door.ask("DELETE", f"{secrets}/e")

    assert (as_data[0], as_text[0], again[0], no_text[0]) == (422, 200, 200, 422)
    assert (as_text[1]["data"], again[1]["data"]) == ({"k": ""}, {"k": "djI="})


def test_what_is_written_by_hand_after_a_deletion_is_there(door: DoorProcess) -> None:
    maps = "/api/v1/namespaces/default/configmaps"
    door.ask("POST", maps, config_map("back", a="b"))
    assert door.ask("DELETE", f"{maps}/back")[0] == 200
    path = door.kepd.manifests / "back.yaml"
    path.write_text(json.dumps(config_map("back", a="c")))
    found = door.ask("GET", f"{maps}/back", level="read")
    path.unlink()

    assert (found[0], found[1].get("data")) == (200, {"a": "c"})


def test_a_browser_may_not_write(door: DoorProcess) -> None:
    """With a certificate of its user it would have all rights, and a plain type is sent without asking before."""
    foreign = {"Origin": "https://evil.example"}
    assert door.ask("POST", MAPS, config_map("x"), kind="text/plain")[0] == 415
    assert door.ask("POST", MAPS, config_map("x"), **foreign)[0] == 403
    assert door.ask("GET", "/api/v1/namespaces/default/pods/x/exec", Connection="Upgrade", **foreign)[0] == 403
    socket = {"Connection": "Upgrade", "Upgrade": "websocket", **foreign}
    assert door.ask("GET", "/api/v1/namespaces/default/pods/x/exec", level="", **socket)[0] == 403
    assert door.ask("GET", MAPS, **{"Impersonate-User": "nobody"})[0] == 403
    assert door.ask("GET", MAPS, Origin=f"https://127.0.0.1:{door.port}")[0] == 200
    assert door.ask("GET", MAPS, level="x\xff")[0] == 401


def test_what_is_no_request_leaves_one_line_a_minute(door: DoorProcess) -> None:
    before = door.kepd.log.stat().st_size
    for line in (b"GET http://[::1 HTTP/1.1\r\n", b"FOO / HTTP/1.1\r\nHost: x\r\n", b"GET /a HTTP/9.9\r\n") * 20:
        with closing(socket.create_connection(("127.0.0.1", door.port), 10)) as plain:
            client = door.context.wrap_socket(plain, server_hostname="localhost")
            client.sendall(line + b"\r\n")
            client.recv(500)
            client.close()

    assert door.kepd.log.stat().st_size - before < 2000


@pytest.mark.parametrize("level", ["", "wrong", "read"])
def test_nobody_does_more_than_the_level_allows(door: DoorProcess, level: str) -> None:
    door.ask("POST", MAPS, config_map("kept"))
    needed = 403 if level == "read" else 401
    tried = [
        ("POST", MAPS, config_map("x")),
        ("PUT", f"{MAPS}/kept", config_map("kept", a="b")),
        ("PATCH", f"{MAPS}/kept", {"data": {}}),
        ("DELETE", f"{MAPS}/kept", None),
        ("DELETE", MAPS, None),
        ("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}}),
    ]
    for method, path, body in tried:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        status, said = door.ask(method, path, body, level=level, kind=kind)
        assert (status, said["kind"]) == (needed, "Status"), (method, path, said)
    reads = door.ask("GET", MAPS, level=level)[0]

    assert reads == (200 if level == "read" else 401)
    assert door.ask("GET", f"{MAPS}/kept")[0] == 200


def test_a_reader_changes_no_kind_by_any_verb(door: DoorProcess) -> None:
    """Kinds whose plane is off are not there at all."""
    before = sorted(door.kepd.manifests.iterdir())
    found = set()
    for one in RESOURCES:
        if one.is_written:
            where = f"/apis/{one.group}/{one.version}" if one.group else f"/api/{one.version}"
            path = f"{where}/namespaces/default/{one.name}" if one.has_namespace else f"{where}/{one.name}"
            made = {"apiVersion": one.api_version, "kind": one.object_kind, "metadata": {"name": "x"}}
            works = [("POST", path, made), ("PUT", f"{path}/x", made), ("PATCH", f"{path}/x", {"metadata": {}})]
            for method, to, body in [*works, ("DELETE", f"{path}/x", None)]:
                kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
                found.add((method, door.ask(method, to, body, level="read", kind=kind)[0]))

    assert found == {*((one, 403) for one in METHODS), *((one, 404) for one in METHODS)}
    assert sorted(door.kepd.manifests.iterdir()) == before


@pytest.mark.timeout(240)
def test_a_watch_tells_each_change_once_over_restarts(short_path: Path) -> None:
    """As an informer does: list, watch from there, and when it ends list again and compare."""
    with DoorProcess(short_path, (take_port(), take_port())) as door:
        names: set[str] = set()
        for round_ in range(RESTARTS):
            listed = door.ask("GET", MAPS)[1]
            version, name = listed["metadata"]["resourceVersion"], f"round-{round_}"
            assert {one["metadata"]["name"] for one in listed["items"]} == names | {AUTHORITY}
            path = f"{MAPS}?watch=1&resourceVersion={version}"
            with closing(door.open()) as opened:
                answer = door.watch(opened, path)
                assert door.ask("POST", MAPS, config_map(name))[0] == 201
                names.add(name)
                assert [one[:2] for one in events(answer, 1)] == [("ADDED", name)]
                door.kepd.end()
                assert answer.read() == b""
            door.start()
            # Who saw nothing of it yet is told by the next process.
            with closing(door.open()) as opened:
                assert [told[:2] for told in events(door.watch(opened, path), 1)] == [("ADDED", name)]


def test_an_edit_of_a_file_is_seen_by_a_watch(door: DoorProcess) -> None:
    with closing(door.open()) as opened:
        path = f"{MAPS}?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&fieldSelector=metadata.name=file"
        answer = door.watch(opened, path)
        assert [one[0] for one in events(answer, 1)] == ["BOOKMARK"]
        path = door.kepd.manifests / "own.json"
        path.write_text(json.dumps(config_map("file", a="b")))
        first = events(answer, 1)[0]
        path.write_text(json.dumps(config_map("file", a="c")))
        second = events(answer, 1)[0]
        path.unlink()
        third = events(answer, 1)[0]

    assert [one[:2] for one in (first, second, third)] == [("ADDED", "file"), ("MODIFIED", "file"), ("DELETED", "file")]
    assert int(first[2]) < int(second[2])


def test_namespaces_come_and_go_with_what_is_in_them(door: DoorProcess) -> None:
    other = "/api/v1/namespaces/other/configmaps"
    made = config_map("inside")
    made["metadata"]["namespace"] = "other"
    with closing(door.open()) as opened:
        version = door.ask("GET", "/api/v1/namespaces")[1]["metadata"]["resourceVersion"]
        answer = door.watch(opened, f"/api/v1/namespaces?watch=1&resourceVersion={version}")
        assert door.ask("GET", "/api/v1/namespaces/other")[0] == 404
        assert door.ask("POST", other, made)[0] == 201
        first = events(answer, 1)[0]
        assert door.ask("GET", "/api/v1/namespaces/other")[1]["status"]["phase"] == "Active"
        assert door.ask("DELETE", f"{other}/inside")[0] == 200
        second = events(answer, 1)[0]

    assert [one[:2] for one in (first, second)] == [("ADDED", "other"), ("DELETED", "other")]


def test_lists_come_in_pages_and_versions_must_be_known(door: DoorProcess) -> None:
    for name in ("p1", "p2", "p3"):
        door.ask("POST", MAPS, config_map(name))
    names: list[str] = []
    begin = ""
    while begin or not names:
        _, found = door.ask("GET", f"{MAPS}?limit=2&labelSelector=!x&continue={begin}")
        assert len(found["items"]) <= 2
        names += [one["metadata"]["name"] for one in found["items"]]
        begin = found["metadata"].get("continue", "")

    assert {"p1", "p2", "p3"} <= set(names)
    assert len(names) == len(set(names))
    for query, code in (
        ("limit=x", 400),
        ("fieldSelector=x", 400),
        ("resourceVersion=1&resourceVersionMatch=Exact", 410),
    ):
        assert door.ask("GET", f"{MAPS}?{query}")[0] == code
    for query, code in (("resourceVersion=1", 410), ("resourceVersion=99999999999999", 504)):
        _, said = door.ask("GET", f"{MAPS}?watch=1&{query}")
        assert said["object"]["code"] == code
    assert door.ask("GET", f"{MAPS}?watch=1&resourceVersion=x")[0] == 400
    door.ask("DELETE", MAPS)


RECORDINGS = ROOT / "tests" / "drivers" / "kube" / "recordings"


def recorded(name: str) -> Any:
    """What a real API server answered, with other numbers."""
    return json.loads(numbers((RECORDINGS / f"{name}.txt").read_text().replace("\r", "").partition("\n\n")[2]))


def numbers(text: str) -> str:
    return re.sub(r"\d{4,}|: 1 \(\d+\)", "9", text)


@pytest.mark.parametrize(
    ("name", "path", "level"),
    [
        ("list-badtoken", MAPS, "bad"),
        ("list-notfound", "/apis/discovery.k8s.io/v9/endpointslices", "read"),
        ("list-too-old", f"{MAPS}?resourceVersion=1&resourceVersionMatch=Exact", "read"),
        ("list-future-rv", f"{MAPS}?resourceVersion=99999999999999", "read"),
        ("watch-too-old", f"{MAPS}?watch=1&resourceVersion=1", "read"),
    ],
)
def test_refusals_are_those_of_a_real_server(door: DoorProcess, name: str, path: str, level: str) -> None:
    assert json.loads(numbers(json.dumps(door.ask("GET", path, level=level)[1]))) == recorded(name)


def raw(door: DoorProcess, request: bytes) -> bytes:
    """What comes back on one connection."""
    with closing(socket.create_connection(("127.0.0.1", door.port), 10)) as client:
        client.settimeout(10)
        with door.context.wrap_socket(client, server_hostname="localhost") as opened:
            opened.sendall(request)
            found = b""
            try:
                while piece := opened.recv(65536):
                    found += piece
                    if b"Connection: close" not in found and found.count(b"HTTP/1.1") >= 1 and b"}" in found:
                        break
            except (OSError, ssl.SSLError):
                return found
            return found


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST {maps} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "GET {maps} HTTP/9.9\r\n\r\n",
        "GET {maps}\r\n\r\n",
        "BREW {maps} HTTP/1.1\r\nHost: x\r\n{mine}",
        "GET /api/v1/namespaces/default/configmaps/..%2f..%2fetc HTTP/1.1\r\nHost: x\r\n{mine}",
        "GET /%00 HTTP/1.1\r\nHost: x\r\n{mine}",
        "GET {maps} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic a2VwZDprZXBk\r\nConnection: close\r\n\r\n",
        "GET {maps} HTTP/1.1\r\nHost: x\r\nX: " + "y" * 40_000 + "\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_requests_that_are_none_change_nothing(door: DoorProcess, head: str) -> None:
    mine = f"Authorization: Bearer {door.tokens['operate']}\r\nConnection: close\r\n\r\n"

    answer = raw(door, head.replace("{maps}", MAPS).replace("{mine}", mine).encode())

    assert not answer or re.match(rb"HTTP/\d.\d (400|401|404|405|431|501|505)", answer), answer[:200]
    assert door.ask("GET", "/readyz")[0] == 200


def test_a_body_without_end_is_refused(door: DoorProcess) -> None:
    body = b'{"metadata": {"name": "large"}, "data": {"a": "' + b"x" * (11 << 20) + b'"}}'
    try:
        status, said = door.ask("POST", MAPS, body)
    except (BrokenPipeError, ConnectionResetError):
        return
    assert (status, said["reason"]) == (413, "RequestEntityTooLarge")


def test_clients_that_only_connect_keep_nobody_out(door: DoorProcess) -> None:
    """They get a handshake's time, and give way to the next: 10 000 of them, as many at once as there are files for."""
    for _ in range(20):
        with ExitStack() as held:
            for _ in range(500):
                held.enter_context(closing(socket.create_connection(("127.0.0.1", door.port), 10)))
            door.kepd.wait(lambda: answers(door), "an answer", 30.0)
    assert door.ask("GET", MAPS)[0] == 200


def test_clients_without_a_right_give_way(door: DoorProcess) -> None:
    """Each holds an encrypted connection and says nothing, as many as there is room for, and more."""
    with ExitStack() as held:
        for _ in range(300):
            client = held.enter_context(closing(socket.create_connection(("127.0.0.1", door.port), 30)))
            held.enter_context(closing(door.context.wrap_socket(client, server_hostname="localhost")))
        codes = [door.ask("GET", MAPS)[0] for _ in range(5)]

    assert codes == [200] * 5


def answers(door: DoorProcess) -> bool:
    try:
        return door.ask("GET", MAPS)[0] == 200
    except OSError:
        return False


def test_a_storm_of_watches_has_a_bound(door: DoorProcess) -> None:
    codes: list[int] = []

    def watch() -> None:
        try:
            codes.append(door.ask("GET", f"{MAPS}?watch=1&timeoutSeconds=3", level="admin")[0])
        except OSError:
            codes.append(0)
        except ValueError:
            # Of a watch there are as many lines as changes.
            codes.append(200)

    threads = [threading.Thread(target=watch) for _ in range(200)]
    for one in threads:
        one.start()
    assert door.ask("GET", f"{MAPS}?limit=1", level="read")[0] == 200
    for one in threads:
        one.join()
    assert 429 in codes
    assert 200 in codes


def test_certificates_of_clients_say_their_level(short_path: Path) -> None:
    def openssl(line: str) -> None:
        subprocess.run(["openssl", *line.split()], check=True, capture_output=True, cwd=short_path)

    new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    openssl(f"req -x509 {new} -days 9 -subj /CN=mine -out ca.pem -keyout ca.key")
    for name, organization, days in (("reader", "kepd:read", 9), ("other", "nobody", 9), ("old", "kepd:admin", -1)):
        openssl(f"req -new {new} -subj /CN={name}/O={organization} -out {name}.csr -keyout {name}.key")
        openssl(f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -days {days} -out {name}.pem")
    folder = short_path / "k"
    folder.mkdir()
    with DoorProcess(folder, (take_port(), take_port()), KEPD_API__DOOR__CLIENT_CA_FILE=f"{short_path}/ca.pem") as door:
        codes = []
        for name in ("reader", "other"):
            door.context.load_cert_chain(short_path / f"{name}.pem", short_path / f"{name}.key")
            codes += [door.ask("GET", MAPS, level="")[0], door.ask("POST", MAPS, config_map("x"), level="")[0]]
        assert codes == [200, 403, 401, 401]
        door.context.load_cert_chain(short_path / "old.pem", short_path / "old.key")
        with pytest.raises(OSError, match=r"(?i)expired|alert|closed|reset|EOF"):
            door.ask("GET", MAPS, level="")

# SPDX-License-Identifier: Apache-2.0
"""What people are told of a name: from files, by the search list of a pod, and with an answer on the way."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli.main import cli
from kepd_dns.handover.status import Explanation
from kepd_dns.view.from_files import UnreadableFile, explain_files
from kepd_dns.view.searching import Search, cluster_search, questions, search_of, step_of

FILES = {
    "a.yaml": b"""
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: later}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: pets}
spec: {clusterIP: None, selector: {app: web}}
---
apiVersion: v1
kind: Pod
metadata: {name: own}
spec:
  containers: [{name: main, image: x}]
  dnsConfig: {searches: [corp.example], options: [{name: ndots, value: "1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: outside}
spec: {dnsPolicy: Default, containers: [{name: main, image: x}]}
"""
}


def asked(name: str, kind: str = "A", pod: str = "default/any") -> list[tuple[str, str]]:
    return [(one.name, one.code) for one in explain_files(FILES, name, kind, pod).steps]


def test_files_tell_what_a_bare_node_would_answer() -> None:
    """DNS-101: each question of the search, the table of names, and what kepd gives only at run time."""
    found = explain_files(FILES, "web", "A", "default/any")
    later = explain_files(FILES, "later", "A", "default/any")
    pets = explain_files(FILES, "pets", "A", "default/any")

    assert (found.is_found, found.steps[0].records) == (True, ("web.default.svc.cluster.local. 5 A 10.96.0.10",))
    assert asked("web.default.svc.cluster.local", "SRV", "") == [("web.default.svc.cluster.local.", "NOERROR")]
    assert asked("nothing")[-1] == ("nothing.", "")
    assert [code for _, code in asked("nothing")[:3]] == ["NXDOMAIN"] * 3
    near, elsewhere = explain_files(FILES, "wep", "A", "default/any"), explain_files(FILES, "web", "A", "shop/any")
    right = "no Service has this name; there is web.default.svc.cluster.local"
    assert [right in one.steps[0].sentences for one in (near, elsewhere, pets)] == [True, True, False]
    assert not later.is_found
    assert "default/later has no address in the files; kepd gives it one" in later.steps[0].sentences
    assert "default/pets has no endpoints in the files; those are pods that run" in pets.steps[0].sentences


def test_a_name_that_is_denied_unasked_says_why() -> None:
    """DNS-78, DNS-101: no server is named that would not be asked."""
    found = step_of(Explanation(name="a.b.c.", zone="cluster.local", kind="denied", code=3), "A")

    assert (found.code, len(found.sentences)) == ("NXDOMAIN", 1)
    assert "dns.searchShortcut denies" in found.sentences[0]


def test_a_pod_is_asked_for_by_its_own_search_list() -> None:
    """DNS-101: dnsConfig and dnsPolicy count."""
    assert asked("web.example", pod="default/own")[0][0] == "web.example."
    assert [name for name, _ in asked("nothing", pod="default/own")][-2:] == ["nothing.corp.example.", "nothing."]
    assert [name for name, _ in asked("web", pod="default/outside")] == ["web."]
    assert questions("a.b", search_of(["x"], ["ndots:3", "rotate", "ndots:1"])) == ("a.b", "a.b.x")
    assert questions("a.", Search(("x",), 5)) == ("a",)
    assert cluster_search("n", "z").domains == ("n.svc.z", "svc.z", "z")


@pytest.mark.parametrize(
    ("name", "kind", "content", "problem"),
    [
        ("web", "NOPE", b"", "no type of records"),
        ("a..b", "A", b"", "is no name"),
        ("web", "A", b"kind: Service\nspec: {ports: 7}", "Service None: "),
        ("web", "A", b"a: [", "a.yaml"),
    ],
)
def test_what_cannot_be_read_is_told(name: str, kind: str, content: bytes, problem: str) -> None:
    with pytest.raises(UnreadableFile, match=problem):
        explain_files({"a.yaml": content}, name, kind, "")


def test_the_command_needs_no_daemon_for_files(tmp_path: Path) -> None:
    """DNS-101: its exit code says whether there is an address."""
    (tmp_path / "a.yaml").write_bytes(FILES["a.yaml"])
    run = CliRunner().invoke
    base = ["explain", "dns", "--from-files", str(tmp_path)]
    found, missing = run(cli, [*base, "web", "--from", "any"]), run(cli, [*base, "none", "--from", "any"])

    assert (found.exit_code, missing.exit_code) == (0, 1)
    assert "QUESTION web.default.svc.cluster.local.  zone cluster.local (own)  NOERROR" in found.output
    assert "expected one of --trace and --from-files" in str(run(cli, [*base, "web", "--trace"]).exception)

# SPDX-License-Identifier: Apache-2.0
"""`kepctl what-if --kubeconfig`: the same answers as from files, with list alone, and a line for each way to fail."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.drivers.kube.listing import PAGE_SIZE
from agent.model.exit_codes import DEADLINE, NOT_PERMITTED, UNREACHABLE, USAGE
from kepd_rehearsal.run.clusters.asking import ASKED
from packages.rehearsal.tests.clusters import WEB, budget, deployment, node
from tests.cli.api_cluster import kubeconfig, served
from tests.drivers.kube import api_answers as say
from tests.drivers.kube.api_server import ApiServer
from tests.drivers.kube.certificates import Certificates, make_certificates
from tests.host.forked_kepctl import forked_kepctl
from tests.host.process import ROOT

DRAIN = ("--drain", "n0", "-o", "json")
ITEMS = [*WEB, budget("web", maxUnavailable=0)]
TOKENS = ("good-token", "who-is-this-4711", "powerless-token")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("kube-ca"))


@pytest.fixture
def server(certificates: Certificates) -> Iterator[ApiServer]:
    with served(certificates, ITEMS) as running:
        yield running


def asked(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = forked_kepctl("what-if", "--kubeconfig", str(path), *(words or DRAIN))
    assert not [token for token in TOKENS if token in done.stdout + done.stderr]
    assert "Traceback" not in done.stderr
    return done


def test_a_server_is_read_as_a_dump_of_it_would_be(server: ApiServer, tmp_path: Path) -> None:
    dump = tmp_path / "cluster.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": ITEMS}))
    from_server = asked(kubeconfig(tmp_path, server))
    from_files = forked_kepctl("what-if", "--from-files", str(dump), *DRAIN)

    assert from_server.returncode == 0, from_server.stderr
    assert json.loads(from_server.stdout) == json.loads(from_files.stdout)
    assert json.loads(from_server.stdout)["rehearsals"][0]["held"]
    assert {one.verb for one in server.seen} == {"list"}
    assert {one.query["limit"] for one in server.seen} == {str(PAGE_SIZE)}


def test_the_role_of_the_manifest_is_what_is_asked_for(server: ApiServer, tmp_path: Path) -> None:
    asked(kubeconfig(tmp_path, server))
    role = yaml.safe_load((ROOT / "deploy/what-if.yaml").read_text())
    granted = {(plural, verb) for rule in role["rules"] for plural in rule["resources"] for verb in rule["verbs"]}
    groups = {(group, plural) for rule in role["rules"] for group in rule["apiGroups"] for plural in rule["resources"]}

    assert granted == {(one.plural, one.verb) for one in server.seen}
    assert groups == {(one.group, one.plural) for _, one in ASKED}


def test_pages_are_put_together_and_a_list_that_expired_begins_anew(certificates: Certificates, tmp_path: Path) -> None:
    many = [node("n0", "a"), *deployment("web", ["n0"] * (2 * PAGE_SIZE + 3))]
    with served(certificates, many) as server:

        async def expire(_request: object) -> None:
            server.expire_pages()

        quiet = asked(kubeconfig(tmp_path, server))
        before = sum(one.plural == "pods" for one in server.seen)
        # Of the lists before nothing has a second page.
        server.faults.extend([("list", _nothing), ("list", _nothing), ("list", expire)])
        again = asked(kubeconfig(tmp_path, server))
        pods = [one.query.get("continue", "") for one in server.seen if one.plural == "pods"][before:]

    assert before == 3
    assert [bool(one) for one in pods] == [False, True, False, True, True]
    assert len(json.loads(quiet.stdout)["rehearsals"][0]["ending"]) == 2 * PAGE_SIZE + 3
    assert again.stdout == quiet.stdout


async def _nothing(_request: object) -> None:
    """The request is answered as ever."""


def page(token: str, *items: Any) -> bytes:
    return say.compact({"kind": "NodeList", "apiVersion": "v1", "metadata": {"continue": token}, "items": list(items)})


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ([page("abc"), page("abc")], "a page names itself or one before as the next"),
        ([page("a"), page("b"), page("a")], "a page names itself or one before as the next"),
        ([page("", {"metadata": {"name": "n0"}})[:-9]], "list nodes: the answer is not a list"),
        ([b"<html>a proxy of the good-token</html>"], "list nodes: the answer is not a list"),
        ([page("", 3)], "list nodes: the answer is not a list: items[0]"),
        ([b'{"kind":"NodeList","metadata":{},"items":' + b"[" * 5000], "list nodes: the answer is not a list"),
    ],
)
def test_an_answer_that_cannot_be_is_no_cluster(
    server: ApiServer, tmp_path: Path, bodies: list[bytes], expected: str
) -> None:
    for body in bodies:
        server.answer_next(body, verb="list")
    done = asked(kubeconfig(tmp_path, server))

    assert (done.returncode, expected in done.stderr) == (UNREACHABLE, True), done.stderr


def test_a_context_by_name_keeps_to_its_own_user(server: ApiServer, tmp_path: Path) -> None:
    """After a 401 the file is read again, for the user of that context and not of the current one."""
    path = kubeconfig(tmp_path, server)
    done = asked(path, "--context", "broken", *DRAIN)
    none = asked(path, "--context", "hear", *DRAIN)

    assert (done.returncode, "401: Unauthorized" in done.stderr) == (NOT_PERMITTED, True), done.stderr
    assert none.returncode == USAGE
    assert "contexts: 'hear' is not there; did you mean \"here\"?; there are: here, broken" in none.stderr


def test_rights_that_are_missing_are_told_all_at_once_with_the_role(server: ApiServer, tmp_path: Path) -> None:
    server.denied = {("list", "pods"), ("list", "replicasets"), ("list", "poddisruptionbudgets")}
    done = asked(kubeconfig(tmp_path, server))

    assert done.returncode == NOT_PERMITTED
    assert done.stderr.count("403:") == 3
    assert 'cannot list resource "replicasets" in API group "apps"' in done.stderr
    assert "deploy/what-if.yaml, or: kubectl create clusterrole kepd-what-if --verb=list --resource=" in done.stderr
    assert "replicasets.apps" in done.stderr


def test_without_the_right_to_budgets_the_rest_is_told(server: ApiServer, tmp_path: Path) -> None:
    server.denied = {("list", "poddisruptionbudgets")}
    done = asked(kubeconfig(tmp_path, server))

    assert done.returncode == 0, done.stderr
    assert "budgets are not looked at" in done.stderr
    assert json.loads(done.stdout)["rehearsals"][0]["held"] == []


@pytest.mark.parametrize(
    ("place", "code", "expected"),
    [(0, UNREACHABLE, "list nodes at"), (9, 0, "has no poddisruptionbudgets; a rehearsal goes on without them")],
)
def test_a_kind_that_a_server_does_not_have(
    server: ApiServer, tmp_path: Path, place: int, code: int, expected: str
) -> None:
    server.faults.extend([("list", _nothing)] * place)
    server.fail_next(404, verb="list")
    done = asked(kubeconfig(tmp_path, server))

    assert (done.returncode, expected in done.stderr) == (code, True), done.stderr


def test_a_server_that_is_busy_is_asked_again_when_it_says(server: ApiServer, tmp_path: Path) -> None:
    server.fail_next(503, verb="list", retry_after_s=1)
    done = asked(kubeconfig(tmp_path, server))

    assert done.returncode == 0, done.stderr
    assert server.verbs()[:2] == ["list nodes", "list nodes"]


def test_a_server_that_does_not_answer_has_a_deadline(server: ApiServer, tmp_path: Path) -> None:
    server.hang_next(verb="list")
    done = asked(kubeconfig(tmp_path, server), *DRAIN, "--timeout", "0.2")

    assert (done.returncode, "--timeout allows more" in done.stderr) == (DEADLINE, True)


def test_a_server_that_is_away_or_shows_a_wrong_certificate_is_told(
    certificates: Certificates, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = make_certificates(tmp_path_factory.mktemp("other-ca"))
    with served(certificates, ITEMS) as server:
        path = kubeconfig(tmp_path, server, **{"certificate-authority": str(other.ca)})
        wrong = asked(path)
    away = asked(path)

    assert (wrong.returncode, away.returncode) == (UNREACHABLE, UNREACHABLE)
    assert "its certificate is refused" in wrong.stderr
    assert "Connection refused" in away.stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("kind: Pod\n", "'Pod' is not supported; expected Config"),
        ("token: [who-is-this-4711\n", "not YAML; expected a kubeconfig"),
        ("", "must be one document of kind Config"),
        ("kind: Config\ncurrent-context: a\n", "'a' is not in contexts"),
        ("kind: Config\n", "current-context: missing"),
    ],
)
def test_what_is_no_kubeconfig_is_told(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    done = asked(path)

    assert (done.returncode, expected in done.stderr) == (USAGE, True), done.stderr


def test_what_the_client_does_not_do_is_refused_by_name(server: ApiServer, tmp_path: Path) -> None:
    done = asked(kubeconfig(tmp_path, server, **{"proxy-url": "http://me:who-is-this-4711@proxy"}))

    assert (done.returncode, "proxy-url: proxies are not supported" in done.stderr) == (USAGE, True), done.stderr
    assert not server.seen

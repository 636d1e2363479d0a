# SPDX-License-Identifier: Apache-2.0
"""What `get` shows more or less of: labels, titles, fields, all workloads at once, and which kinds there are."""

from collections.abc import Iterator

import pytest

from tests.cli.node_in_process import Node, running_node
from tests.cli.test_grammar import fill


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("n"), fill) as found:
        yield found


def test_labels_are_a_column_of_all_or_of_each(node: Node) -> None:
    everything = node.out("get", "pods", "--show-labels").splitlines()
    one = node.out("get", "pods", "-L", "app,tier").splitlines()

    assert everything[0].split()[-1] == "LABELS"
    assert {line.split()[-1] for line in everything[1:]} == {"app=web", "app=db", "app=dns"}
    assert one[0].split()[-2:] == ["APP", "TIER"]
    assert {line.split()[-1] for line in one[1:]} == {"web", "db", "dns"}


def test_titles_can_be_left_out(node: Node) -> None:
    with_titles, without = (node.out("get", "pods", *more).splitlines() for more in ((), ("--no-headers",)))

    assert [line.split()[1] for line in without] == [line.split()[1] for line in with_titles[1:]]


@pytest.mark.parametrize(
    ("kind", "selector", "names"),
    [
        ("pods", "metadata.name=web", ["pod/default/web-n1"]),
        ("pods", "metadata.name=web-n1", ["pod/default/web-n1"]),
        ("pods", "metadata.namespace!=default", ["pod/kube-system/dns-n1"]),
        ("pods", "status.phase=Failed", []),
        ("pods", "status.phase==Running,metadata.namespace=kube-system", ["pod/kube-system/dns-n1"]),
        ("events", "involvedObject.name=web,type=Warning", ["event/e1"]),
        ("events", "involvedObject.kind=Service", []),
    ],
)
def test_fields_select(node: Node, kind: str, selector: str, names: list[str]) -> None:
    assert node.out("get", kind, "--field-selector", selector, "-o", "name").split() == names


def test_a_field_that_is_not_known_is_refused_with_those_that_are(node: Node) -> None:
    done = node.ctl("get", "pods", "--field-selector", "spec.secret=x")

    assert "metadata.name, metadata.namespace, status.phase" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("flags", [("--show-labels",), ("--no-headers",), ("--field-selector", "status.phase=Running")])
def test_a_watch_takes_none_of_them(node: Node, flags: tuple[str, ...]) -> None:
    done = node.ctl("get", "pods", "-w", *flags)

    assert "and -w exclude each other" in done.stderr
    assert done.returncode == 2


def test_all_are_those_of_kubectl_and_what_has_none_is_not_shown(node: Node) -> None:
    done = node.ctl("get", "all")
    titles = [line.split()[:3] for line in done.stdout.splitlines() if line.startswith("NAMESPACE")]

    assert done.returncode == 0, done.stderr
    assert titles == [["NAMESPACE", "NAME", "READY"], ["NAMESPACE", "NAME", "TYPE"]]
    assert {"pod/web-n1", "service/web"} <= set(done.stdout.split()), done.stdout


def test_the_kinds_are_listed_with_what_can_be_done(node: Node) -> None:
    rows = {line.split()[0]: line.split() for line in node.out("api-resources", "-o", "wide").splitlines()}

    assert rows["pods"] == ["pods", "po", "Pod", "true", "get,watch,describe,apply,edit,delete"]
    assert rows["nodes"][-1] == "get,describe"

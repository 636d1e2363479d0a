# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.pod import ContainerSpec
from agent.pods.manifest import read_pods

GOOD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - {name: main, image: "registry/web:1", command: [serve], args: ["-v"], env: [{name: A, value: "1"}, {name: B}]}
"""


def test_a_pod_is_read_with_the_node_in_its_name() -> None:
    """IDN-01."""
    (pod,), findings = read_pods({"/m/web.yaml": GOOD.encode()}, "n1", name_suffix=True)
    (plain,), _ = read_pods({"/m/web.yaml": GOOD.encode()}, "n1", name_suffix=False)

    assert findings == []
    assert (pod.namespace, pod.name, plain.name, pod.source) == ("default", "web-n1", "web", "/m/web.yaml:2")
    assert pod.containers == (
        ContainerSpec(
            name="main", image="registry/web:1", command=("serve",), args=("-v",), env=(("A", "1"), ("B", ""))
        ),
    )


def test_comments_and_key_order_do_not_change_the_identity() -> None:
    """MAN-10."""
    other = GOOD.replace("kind: Pod", "# a comment\nkind: Pod").replace("apiVersion: v1\n", "") + "apiVersion: v1\n"
    (one,), _ = read_pods({"p": GOOD.encode()}, "n", name_suffix=True)
    (two,), _ = read_pods({"p": other.encode()}, "n", name_suffix=True)
    (three,), _ = read_pods({"q": GOOD.encode()}, "n", name_suffix=True)

    assert one.uid == two.uid
    assert one.uid != three.uid


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("image:", "imagePullPolicy: Always, image:", "spec.containers[0].imagePullPolicy: not supported"),
        ("{name: web", "{name: Web_", "metadata.name: 'Web_' is not a DNS name in lower case"),
        ("name: main, ", "", "spec.containers[0].name: is missing"),
        ('value: "1"', "value: 1", "spec.containers[0].env[0].value: 1 must be text; put it in quotes"),
        ('["-v"]', "[1]", "spec.containers[0].args[0]: 1 must be text; put it in quotes"),
        ("app: web", "app: 1", "metadata.labels.app: 1 must be text; put it in quotes"),
        ("apiVersion: v1", "apiVersion: v2", "apiVersion: must be v1"),
        ("spec:", "spec: {}\nstatus:", "spec.containers: must be a list with at least one container"),
        ("name: B", "valueFrom: {}", "spec.containers[0].env[1]: must be a name with a value"),
    ],
)
def test_a_wrong_pod_is_told_with_its_place_and_does_not_run(old: str, new: str, complaint: str) -> None:
    pods, findings = read_pods({"/m/web.yaml": GOOD.replace(old, new).encode()}, "n", name_suffix=True)

    assert pods == []
    assert any(complaint in str(finding) for finding in findings), [str(finding) for finding in findings]
    assert all(str(finding).startswith("/m/web.yaml:") for finding in findings)


def test_one_bad_file_does_not_stop_the_others() -> None:
    files = {"a.yaml": b"\xff", "b.yaml": GOOD.encode(), "c.yaml": GOOD.encode(), "d.yaml": b"kind: Service\n"}
    pods, findings = read_pods(files, "n", name_suffix=True)

    assert [pod.source for pod in pods] == ["b.yaml:2"]
    assert [finding.where for finding in findings] == ["a.yaml", "c.yaml:2"]
    assert "stands in b.yaml:2 already" in findings[1].text


@given(st.binary(max_size=200) | st.text(alphabet="kindPo: -{}[]\n,name", max_size=200).map(str.encode))
def test_no_bytes_make_the_reader_fail(content: bytes) -> None:
    read_pods({"f": content, "g": b"kind: Pod\n" + content}, "n", name_suffix=True)

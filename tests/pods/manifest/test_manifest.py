# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.finding import Finding
from agent.model.pods.container_fields import Container, Env
from agent.model.pods.fields import EmptyDir
from agent.model.pods.pod import PodSpec
from agent.pods.manifest.objects import NodeIdentity, parse_objects

GOOD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - {name: main, image: "registry/web:1", command: [serve], args: ["-v"], env: [{name: A, value: "1"}, {name: B}]}
"""
NODE = NodeIdentity("n1", has_name_suffix=True)


def read(text: str, path: str = "/m/web.yaml", identity: NodeIdentity = NODE) -> tuple[tuple[PodSpec, ...], list[str]]:
    found = parse_objects(path, text.encode(), identity)
    return tuple(found.pods), [str(finding) for finding in found.findings]


def test_a_pod_is_read_with_the_node_in_its_name() -> None:
    """IDN-01."""
    (pod,), findings = read(GOOD)
    (plain,), _ = read(GOOD, identity=NodeIdentity("n1", has_name_suffix=False))

    assert findings == []
    assert (pod.key, plain.name, pod.source) == ("default/web-n1", "web", "/m/web.yaml:2")
    assert (pod.file, pod.grace_s) == ("/m/web.yaml", 30)
    assert pod.spec.containers == (
        Container(
            name="main",
            image="registry/web:1",
            command=("serve",),
            args=("-v",),
            env=(Env(name="A", value="1"), Env(name="B")),
        ),
    )


def test_comments_and_key_order_do_not_change_the_identity() -> None:
    """MAN-10."""
    other = GOOD.replace("kind: Pod", "# a comment\nkind: Pod").replace("apiVersion: v1\n", "") + "apiVersion: v1\n"
    (one,), _ = read(GOOD)
    (two,), _ = read(other)
    (three,), _ = read(GOOD, "/m/other.yaml")
    (four,), _ = read(GOOD.replace("serve", "server"))

    assert one.version == two.version
    assert (one.uid != three.uid, one.hash) == (True, three.hash)
    assert one.hash != four.hash


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("image:", "imagePullPolice: Always, image:", "spec.containers[0].imagePullPolice: not supported"),
        ("{name: web", "{name: Web_", 'metadata.name: Invalid value: "Web_": a lowercase RFC 1123 subdomain'),
        ("name: main, ", "", "spec.containers[0].name: Required value"),
        ('value: "1"', "value: 1", "spec.containers[0].env[0].value: a value must be text; put it in quotes"),
        ('{name: A, value: "1"}', "A=hush", "spec.containers[0].env[0]: must be a map, not a value"),
        ('["-v"]', "[1]", "spec.containers[0].args[0]: 1 must be text; put it in quotes"),
        ('["-v"]', "-v", "spec.containers[0].args: must be a list"),
        ("[{name: A", "A #", "spec.containers[0].env: must be a list"),
        ("app: web", "app: 1", "metadata.labels.app: 1 must be text; put it in quotes"),
        ("{app: web}", "[app]", "metadata.labels: must be a map"),
        ("apiVersion: v1", "apiVersion: v2", "apiVersion: must be v1"),
        ("spec:", "spec: {}\nstatus:", "spec.containers: Required value"),
        (
            "name: B",
            "name: B, valueFrom: {}",
            'spec.containers[0].env[1].valueFrom: Invalid value: "": must specify one',
        ),
        ("name: web,", "name: web, uid: 7,", "metadata.uid: 7 must be text; put it in quotes"),
        ("name: web,", "name: web, uid: [a],", "metadata.uid: a list must be text"),
        ("name: web,", "name: web, uid: a/../../b,", 'metadata.uid: Invalid value: "a/../../b": must be up to 64'),
        ("name: web,", 'name: web, uid: "a\\n",', 'metadata.uid: Invalid value: "a?": must be up to 64'),
        ("name: web,", f"name: web, uid: {'u' * 65},", "must be up to 64 letters"),
        ("{name: web,", f"{{name: {'w' * 251},", "metadata.name: with the name of the node it has 254 characters"),
        ("{name: web,", f"{{name: {'w' * 250},", "metadata.name: with namespace and uid it has 294 characters"),
    ],
)
def test_a_wrong_pod_is_told_with_its_place_and_does_not_run(old: str, new: str, complaint: str) -> None:
    changed = GOOD.replace(old, new)
    if new == "A #":
        changed = GOOD.replace('env: [{name: A, value: "1"}, {name: B}]', "env: A")
    pods, findings = read(changed)

    assert pods == ()
    assert any(complaint in finding for finding in findings), findings
    assert all(finding.startswith("/m/web.yaml:") for finding in findings)


@pytest.mark.parametrize("grace", ["1.5", '"30"', "true", "[]", "1000000000000000000"])
def test_a_grace_that_is_no_number_of_seconds_is_told(grace: str) -> None:
    pods, findings = read(GOOD.replace("spec:", f"spec:\n  terminationGracePeriodSeconds: {grace}"))

    assert pods == ()
    assert any("spec.terminationGracePeriodSeconds: " in finding for finding in findings), findings


def test_a_grace_is_read() -> None:
    for grace_s in (0, 5, 2**31 - 1):
        (pod,), _ = read(GOOD.replace("spec:", f"spec:\n  terminationGracePeriodSeconds: {grace_s}"))
        assert pod.grace_s == grace_s


@pytest.mark.parametrize(("mode", "value"), [("0400", 0o400), ("0o400", 0o400), ("256", 256), ("0777", 0o777)])
def test_modes_are_octal_where_they_look_so(mode: str, value: int) -> None:
    """NP-11: as documents of Kubernetes write them, and as YAML 1.1 and 1.2 do."""
    volumes = f"""
  volumes:
  - {{name: a, secret: {{secretName: s, defaultMode: {mode}, items: [{{key: k, path: p, mode: {mode}}}]}}}}
  - {{name: b, projected: {{defaultMode: {mode}, sources: [{{configMap: {{name: c}}}}]}}}}
"""
    (pod,), findings = read(GOOD.rstrip("\n") + volumes)
    first, second = pod.spec.volumes

    assert findings == []
    assert first.secret is not None
    assert second.projected is not None
    assert (first.secret.default_mode, first.secret.items[0].mode, second.projected.default_mode) == (value,) * 3


@pytest.mark.parametrize("mode", ["0888", "01000", "rwx", "0o"])
def test_what_is_no_mode_is_refused(mode: str) -> None:
    """NP-11."""
    _, findings = read(GOOD.rstrip("\n") + f"\n  volumes: [{{name: a, configMap: {{name: c, defaultMode: {mode}}}}}]\n")

    assert "configMap.defaultMode" in findings[0]


@pytest.mark.parametrize("volume", ["{name: v, emptyDir: }", "{name: v}", "{name: v, emptyDir: {}}"])
def test_a_volume_without_a_source_is_an_empty_directory(volume: str) -> None:
    """NP-14: as a kubelet has it."""
    (pod,), findings = read(GOOD.rstrip("\n") + f"\n  volumes: [{volume}]\n")

    assert (findings, pod.spec.volumes[0].empty_dir) == ([], EmptyDir())


def test_a_uid_may_be_given() -> None:
    """IDN-02."""
    (pod,), findings = read(GOOD.replace("name: web,", "name: web, uid: Ab-1.2,"))

    assert (pod.uid, findings) == ("Ab-1.2", [])


def test_names_that_just_fit_are_fine() -> None:
    (pod,), findings = read(GOOD.replace("{name: web,", f"{{name: {'w' * 200}, namespace: {'s' * 18},"))

    assert (len(f"{pod.namespace}_{pod.name}_{pod.uid}"), findings) == (255, [])


class TestKinds:
    """MAN-04."""

    def test_sources_are_read_and_their_values_shown_nowhere(self) -> None:
        """VOL-06; no secret is ever rendered."""
        text = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: aGlkZGVu}\nstringData: {b: hidden}\n"
        found = parse_objects("/m/s.yaml", text.encode(), NODE)
        broken = parse_objects("/m/s.yaml", text.replace("aGlkZGVu", "'hidden!'").encode(), NODE)

        (source,) = found.sources
        assert (source.key, dict(source.data)) == (("Secret", "default", "s"), {"a": b"hidden", "b": b"hidden"})
        assert "hidden" not in repr(source)
        assert [str(one) for one in broken.findings] == ["/m/s.yaml:4: data.a: Invalid value: must be base64"]

    @pytest.mark.parametrize("kind", ["Service", "EndpointSlice", "Node", "ServiceCIDR"])
    def test_kinds_of_other_planes_are_left_to_them(self, kind: str) -> None:
        assert read(f"kind: {kind}\nspec: {{nonsense: true}}\n") == ((), [])

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("apiVersion: v1\n", "/m/web.yaml:1: kind: is missing; known are Pod, Deployment"),
            ("a: 1\nkind: pod\n", "/m/web.yaml:2: kind: 'pod' is not known here; did you mean \"Pod\"?"),
            ("kind: Depolyment\n", "/m/web.yaml:1: kind: 'Depolyment' is not known here; did you mean \"Deployment\"?"),
            ("kind: Pods\n", "kind: 'Pods' is not known here; did you mean \"Pod\"?"),
            ("kind: 1\n", "kind: 1 is not known here"),
            ("kind: [Pod]\n", "kind: ['Pod'] is not known here"),
            ("kind:\n", "kind: None is not known here"),
            ("- a\n", "/m/web.yaml:1: must be a map with apiVersion, kind and metadata"),
            ("just text\n", "/m/web.yaml:1: must be a map"),
        ],
    )
    def test_what_is_no_known_kind_is_told(self, text: str, complaint: str) -> None:
        pods, (finding,) = read(text)

        assert pods == ()
        assert complaint in finding

    def test_lists_are_taken_apart(self) -> None:
        items = "".join(f"- {part}" for part in (indented(GOOD), indented(GOOD.replace("name: web", "name: db"))))
        pods, findings = read(f"apiVersion: v1\nkind: List\nmetadata: {{resourceVersion: ''}}\nitems:\n{items}")
        untyped = items.replace("kind: Pod", "").replace("apiVersion: v1", "")
        same, same_findings = read(f"apiVersion: v1\nkind: PodList\nitems:\n{untyped}")

        assert ([pod.name for pod in pods], findings) == (["web-n1", "db-n1"], [])
        assert ([pod.name for pod in same], same_findings) == (["web-n1", "db-n1"], [])

    def test_faults_in_lists_have_their_place(self) -> None:
        text = "apiVersion: v1\nkind: List\nitems:\n- kind: Service\n- {kind: Pod}\n- 7\n- {name: x}\n"
        pods, findings = read(text)
        _, podlist = read("apiVersion: v1\nkind: PodList\nitems: {}\nitem: []\n")

        assert pods == ()
        assert "/m/web.yaml:5: items[1].apiVersion: must be v1" in findings
        assert any(finding.startswith("/m/web.yaml:6: items[2]: must be a map") for finding in findings)
        assert any(finding.startswith("/m/web.yaml:7: items[3].kind: is missing") for finding in findings)
        assert [line.split(": ", 1)[1] for line in podlist] == [
            'item: not supported by this version; did you mean "items"?',
            "items: must be a list",
        ]

    def test_one_document_with_a_fault_does_not_stop_its_neighbours(self) -> None:
        pods, findings = read(f"{GOOD}---\nkind: Pod\n---\n{GOOD.replace('name: web', 'name: db')}")

        assert [pod.name for pod in pods] == ["web-n1", "db-n1"]
        assert findings


def indented(text: str) -> str:
    return text.strip().replace("\n", "\n  ") + "\n"


@given(st.binary(max_size=200) | st.text(alphabet="kindPoLst: -{}[]\n,name", max_size=200).map(str.encode))
def test_no_bytes_make_the_reader_fail(content: bytes) -> None:
    for head in (b"", b"kind: Pod\n", b"kind: List\nitems:\n"):
        findings = parse_objects("f", head + content, NODE).findings
        assert all(isinstance(finding, Finding) for finding in findings)


def test_what_only_a_scheduler_reads_is_taken_and_has_no_effect() -> None:
    """MAN-12: a manifest out of a cluster may have all of it; there is no API server that it could mean."""
    spec = "nodeName: other, tolerations: [{operator: Exists}], affinity: {}, serviceAccountName: s, schedulerName: x"
    head = "apiVersion: v1\nkind: Pod\nmetadata: {name: w, creationTimestamp: null, deletionTimestamp: null}\n"
    text = f"{head}spec: {{{spec}, containers: [{{name: a, image: i}}]}}\nstatus: {{}}\n"
    found = parse_objects("f", text.encode(), NODE)

    assert (found.findings, len(found.pods)) == ([], 1)


def test_a_field_nobody_knows_is_named() -> None:
    """MAN-05: half of what a manifest says would be worse than nothing."""
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: w}\nspec: {contaners: [], containers: [{name: a, image: i}]}\n"
    found = parse_objects("f", text.encode(), NODE)

    assert [str(one) for one in found.findings] == [
        'f:4: spec.contaners: not supported by this version; did you mean "containers"?'
    ]

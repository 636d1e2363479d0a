# SPDX-License-Identifier: Apache-2.0
"""apply, delete, edit, create, run and validate as people use them, against the real API server and a directory."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.objects.manifest_files import ManifestFile, check_file
from agent.model.pods.state import Condition, PodState
from agent.model.services.report import ServiceReport
from tests.cli.node_in_process import Node, running_node
from tests.host.process import kepctl
from tests.objects.test_applying import POD, SECRET, SERVICE, contents, objects_in

CONFIG = b"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, labels: {app: web}}\ndata: {a: '1'}\n"


class Shop:
    def __init__(self, node: Node, manifests: Path, work: Path) -> None:
        self.node, self.manifests, self.work = node, manifests, work

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.node.ctl(*arguments)

    def out(self, *arguments: str) -> list[str]:
        return self.node.out(*arguments).splitlines()

    def file(self, name: str, content: bytes) -> str:
        path = self.work / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)
        return str(path)


@pytest.fixture
def shop(short_path: Path, tmp_path: Path) -> Iterator[Shop]:
    manifests = tmp_path / "manifests"
    manifests.mkdir(mode=0o755)

    def fill(node: Node) -> None:
        node.objects = lambda: objects_in(manifests)
        for name in ("web", "db"):
            pod = PodState(
                namespace="default",
                name=f"{name}-n1",
                manifest_name=name,
                uid=name,
                phase="Running",
                conditions=(Condition(type="Ready", is_true=True),),
            )
            node.pods.pods.put(pod.key, pod)
        node.services.reports = [ServiceReport(namespace="default", name="web", type="ClusterIP")]

    with running_node(short_path, fill) as node:
        yield Shop(node, manifests, tmp_path / "work")


def test_files_directories_and_standard_input_are_applied_with_all_kinds(shop: Shop) -> None:
    """CL-6."""
    shop.file("d/one.yaml", POD + SERVICE)
    shop.file("d/two.yml", CONFIG)
    shop.file("d/notes.txt", b"no manifest")
    applied = shop.out("apply", "-f", str(shop.work / "d"), "--wait")
    command = [sys.executable, "-m", "agent.cli.main", "--endpoint", str(shop.node.path), "apply", "-f", "-"]
    piped = subprocess.run(command, input=SECRET, capture_output=True, check=True)

    assert applied == [
        "pod/default/web created",
        "service/default/web created",
        "configmap/default/settings created",
        "pod/default/web is ready",
    ]
    assert piped.stdout == b"secret/default/key created\n"
    assert len(contents(shop.manifests)) == 4


def test_a_service_that_kepd_never_reads_is_told_by_its_cause(shop: Shop) -> None:
    """CL-6: of those in files it reads none while an API server is their source."""
    other = shop.file("other.yaml", SERVICE.replace(b"web", b"other"))
    done = shop.ctl("--timeout", "1", "apply", "-f", other, "--wait")

    assert done.returncode != 0
    assert (
        "service/default/other: kepd has not read its manifest yet; while services.source is kubernetes" in done.stderr
    )


def test_a_dry_run_shows_what_would_differ(shop: Shop) -> None:
    path = shop.file("s.yaml", SERVICE)
    shop.out("apply", "-f", path)
    changed = shop.file("s.yaml", SERVICE.replace(b"80", b"81"))
    server, client = (
        shop.out("apply", "-f", changed, "--dry-run=server"),
        shop.out("apply", "-f", changed, "--dry-run=client"),
    )

    assert server[0] == "service/default/web configured (dry run)"
    assert "+spec: {ports: [{port: 81}]}" in server
    assert client == ["service/default/web is valid (dry run)"]
    assert b"80" in contents(shop.manifests)["kepctl-Service.default.web.yaml"]


def test_objects_are_deleted_by_kind_name_label_and_file(shop: Shop) -> None:
    (shop.manifests / "all.yaml").write_bytes(POD + SERVICE + CONFIG + SECRET)
    without_service = shop.out("delete", "svc", "web")
    after = contents(shop.manifests)
    by_label = shop.out("delete", "cm", "-l", "app=web")
    by_file = shop.out("delete", "-f", shop.file("key.yaml", SECRET))

    assert without_service == ["service/default/web deleted"]
    assert after == {"all.yaml": POD + CONFIG + SECRET}
    assert by_label == ["configmap/default/settings deleted"]
    assert by_file == ["secret/default/key deleted"]
    assert contents(shop.manifests) == {"all.yaml": POD}


def test_pods_are_deleted_by_any_of_their_names(shop: Shop) -> None:
    assert shop.out("delete", "web", "--grace", "3") == ["pod/default/web-n1 ends"]
    assert shop.out("delete", "pod", "web-n1", "db") == ["pod/default/web-n1 ends", "pod/default/db-n1 ends"]
    assert shop.out("delete", "po/web", "--dry-run=client") == ["pod/default/web-n1 ends (dry run)"]
    assert shop.node.pods.asked == [
        "delete default/web-n1 3.0",
        "delete default/web-n1 None",
        "delete default/db-n1 None",
    ]


@pytest.mark.parametrize("kind", ["hpa", "roles", "gateway", "hpa/web"])
def test_an_unknown_kind_deletes_no_pod_that_is_called_so(shop: Shop, kind: str) -> None:
    done = shop.ctl("delete", kind, "web")

    assert f'no kind "{kind.partition("/")[0]}" here' in done.stderr
    assert (done.returncode, done.stdout, shop.node.pods.asked) == (2, "", [])


@pytest.mark.parametrize("words", [("web", "wob"), ("wob", "web"), ("po/web", "svc/wob"), ("wob", "web", "--dry-run")])
def test_a_name_that_is_missing_deletes_none_of_the_others(shop: Shop, words: tuple[str, ...]) -> None:
    done = shop.ctl("delete", *words)

    assert 'wob"; did you mean "web"?; nothing was deleted' in done.stderr or 'no service "wob"; noth' in done.stderr
    assert (done.returncode, done.stdout, shop.node.pods.asked) == (3, "", [])


def test_what_is_missing_can_be_ignored_beside_what_is_there(shop: Shop) -> None:
    assert shop.out("delete", "wob", "web", "--ignore-not-found") == ["pod/default/web-n1 ends"]


def test_a_wait_for_an_unknown_kind_does_not_end_at_once(shop: Shop) -> None:
    done = shop.ctl("wait", "gateway", "web", "--for=delete")

    assert (done.returncode, 'no kind "gateway" here' in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("delete", "svc", "wob"), 3, 'no service "wob"'),
        (("delete", "pods"), 2, "no name is given; expected names, -l LABELS or --all"),
        (("delete", "images", "x"), 2, "images cannot be deleted"),
        (("delete",), 2, "expected either KIND and NAME, or -f"),
        (("apply", "-f", "/nowhere.yaml"), 2, "there is no such file"),
        (("edit", "pods"), 2, "expected KIND NAME"),
        (("run", "x", "--image", "i", "--rm"), 2, "--rm needs -i"),
        (("create", "configmop", "x"), 2, 'did you mean "configmap"?'),
        (("create", "cm", "x", "--from-literal", "a"), 2, "expected KEY=VALUE"),
        (("create", "secret", "tls", "x", "--from-literal", "a=b"), 2, "--from-literal is an option of generic"),
        (("create", "secret", "tls", "x", "--docker-server", "r"), 2, "those of tls are --cert, --key"),
        (("create", "secret", "generic", "x", "--docker-password", "h"), 2, "--docker-password is an option of docker"),
        (("create", "secret", "docker-registry", "x", "--type", "t"), 2, "--type is an option of generic"),
    ],
)
def test_what_cannot_be_done_says_what_is_right(shop: Shop, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = shop.ctl(*arguments)

    assert says in done.stderr
    assert done.returncode == code
    assert contents(shop.manifests) == {}


def test_what_is_gone_can_be_ignored(shop: Shop) -> None:
    assert shop.ctl("delete", "svc", "x", "--ignore-not-found").returncode == 0


def test_an_object_is_edited_in_its_file(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop.manifests / "all.yaml").write_bytes(POD + SERVICE)
    shop.work.mkdir()
    monkeypatch.setenv("TMPDIR", str(shop.work))
    monkeypatch.setenv("KUBE_EDITOR", "sed -i s/80/82/")
    edited, again = shop.out("edit", "svc/web"), shop.out("edit", "svc", "web")
    monkeypatch.setenv("KUBE_EDITOR", "sed -i s/ports/prots/")
    faulty = shop.ctl("edit", "svc/web")
    monkeypatch.setenv("KUBE_EDITOR", "sed -i s/web/other/")
    renamed = shop.ctl("edit", "svc/web")

    assert (edited, again) == (["service/default/web configured"], ["nothing has changed"])
    assert contents(shop.manifests) == {"all.yaml": POD + SERVICE.replace(b"80", b"82")}
    assert "prots: unknown field" in faulty.stderr
    kept = Path(faulty.stderr.rpartition("your text is kept in ")[2].strip())
    assert b"prots" in kept.read_bytes()
    assert "expected service/default/web. Use apply for other objects" in renamed.stderr


@pytest.mark.parametrize("editor", ["false", "/no/such/editor"])
def test_an_editor_that_fails_leaves_no_copy_of_a_secret(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, editor: str
) -> None:
    (shop.manifests / "all.yaml").write_bytes(SECRET)
    shop.work.mkdir()
    monkeypatch.setenv("TMPDIR", str(shop.work))
    monkeypatch.setenv("KUBE_EDITOR", editor)
    done = shop.ctl("edit", "secret", "key")

    assert done.returncode != 0
    assert not list(shop.work.glob("kepctl-*"))


def test_config_maps_and_secrets_are_made_of_literals_and_files(shop: Shop) -> None:
    file, env = shop.file("motd", b"hello\n"), shop.file("vars.env", b"# some\nA=1\n")
    made = shop.out("create", "configmap", "c", "--from-literal", "k=v", "--from-file", file, "--from-env-file", env)
    shown = json.loads("".join(shop.out("get", "cm", "c", "-o", "json")))
    shop.out("create", "secret", "generic", "s", "-n", "shop", "--from-literal", "p=hush")
    hidden = "".join(shop.out("get", "secret", "s", "-n", "shop", "-o", "json"))
    again = shop.ctl("create", "cm", "c")

    assert made == ["configmap/default/c created"]
    assert shown["data"] == {"k": "v", "motd": "hello\n", "A": "1"}
    assert json.loads(hidden)["data"] == {"p": ""}, "who may read sees no values"
    assert b"p: aHVzaA==" in contents(shop.manifests)["kepctl-Secret.shop.s.yaml"]
    assert (again.returncode, "is already in" in again.stderr) == (6, True)


def test_a_file_of_variables_that_cannot_be_read_is_named(shop: Shop) -> None:
    binary = shop.file("vars.env", b"A=\xff\n")
    gone = shop.ctl("create", "configmap", "c", "--from-env-file", f"{binary}.gone")
    done = shop.ctl("create", "configmap", "c", "--from-env-file", binary)

    assert (gone.returncode, gone.stderr) == (2, f"kepctl: {binary}.gone: cannot be read: No such file or directory\n")
    assert (done.returncode, done.stderr) == (2, f"kepctl: {binary}: cannot be read: it is no text in UTF-8\n")


def test_run_writes_the_manifest_of_a_pod(shop: Shop) -> None:
    done = shop.out(
        "run", "box", "--image", "busybox:1", "--env", "A=b", "--port", "80", "--restart", "Never", "--", "sleep", "9"
    )
    content = contents(shop.manifests)["kepctl-default-box.yaml"]
    printed = shop.out("run", "x", "--image", "i", "--dry-run=client", "-o", "yaml", "--command", "--", "a")

    assert done == ["pod/default/box created"]
    assert check_file(ManifestFile("f", content)).findings == []
    assert b"args:\n    - sleep\n    - '9'" in content
    assert "    command:" in printed
    assert len(contents(shop.manifests)) == 1


def test_config_maps_are_kubernetes_objects_and_listed(shop: Shop) -> None:
    (shop.manifests / "all.yaml").write_bytes(POD + CONFIG + SERVICE)
    listed = shop.out("get", "cm")
    service = json.loads("".join(shop.out("get", "svc", "web", "-o", "json")))

    assert [line.split() for line in listed] == [["NAMESPACE", "NAME", "DATA"], ["default", "settings", "1"]]
    assert service["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}], (
        "what the manifest has is the object"
    )


def test_validate_says_all_faults_of_all_files_and_what_is_good(tmp_path: Path) -> None:
    """CL-10, FS-21."""
    (tmp_path / "a.yaml").write_bytes(POD + SERVICE)
    (tmp_path / "b.yaml").write_bytes(POD.replace(b"spec", b"spek"))
    (tmp_path / "c.yaml").write_bytes(b"{")
    (tmp_path / "d.yaml").write_bytes(SERVICE.replace(b"ports", b"prots"))
    (tmp_path / "readme.md").write_text("{")
    done = kepctl("validate", "-f", str(tmp_path))
    good = kepctl("validate", str(tmp_path / "a.yaml"))
    (tmp_path / "e.yaml").write_bytes(SERVICE.replace(b"spec: {", b"spec: {clusterIP: 10.96.0.9, "))
    outlook = "its address comes from services.serviceCIDRs or a ServiceCIDR: without either it is not served"
    addressed = kepctl("validate", str(tmp_path / "e.yaml"))

    assert done.returncode == 1
    assert [line.split(":")[0].rpartition("/")[2] for line in done.stderr.splitlines()[:-1]] == [
        "b.yaml", "b.yaml", "c.yaml", "d.yaml", "d.yaml",
    ]  # fmt: skip
    assert done.stderr.splitlines()[-1] == "kepctl: 3 of 4 files have faults"
    assert done.stdout.splitlines() == [
        f"{tmp_path}/a.yaml:1: pod/default/web is valid",
        f"{tmp_path}/a.yaml:7: service/default/web is valid; {outlook}",
    ]
    assert addressed.stdout.splitlines()[0].endswith("service/default/web is valid")
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "all is valid; objects: 2, files: 1")


FAULTY_SERVICE = b"""
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: Nodeport
  trafficDistribution: PreferZone
  sessionAffinity: Client
  externalTrafficPolicy: local
  selectr: {app: web}
  ports:
  - {port: 80, protocol: HTTP, name: web}
  - {port: 80, name: web}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [300.1.1.1]}]
ports: [{port: 70000}, {port: 80, name: web}]
---
apiVersion: v1
kind: Service
metadata: {name: old}
spec: {clusterIP: 010.096.000.009, topologyKeys: ["*"], ports: [{port: 80}]}
"""


@pytest.mark.parametrize("verb", ["validate", "apply", "create"])
def test_services_are_checked_as_closely_as_pods_before_anything_is_made(tmp_path: Path, verb: str) -> None:
    """`type: Nodeport` was valid and created."""
    path = tmp_path / "web.yaml"
    path.write_bytes(FAULTY_SERVICE)
    done = kepctl(verb, "-f", str(path))

    assert done.returncode == 1
    said = done.stdout + done.stderr
    for fault in (
        ":2: spec.selectr: unknown field", ":2: spec.type: 'Nodeport' is not known", 'did you mean "NodePort"?',
        ":2: spec.sessionAffinity: 'Client'", ":2: spec.externalTrafficPolicy: 'local'",
        ":2: spec.ports[0].protocol: 'HTTP'", ":2: spec.ports[1].name: 'web' is also that of spec.ports[0]",
        ":15: endpoints[0].addresses[0]: '300.1.1.1' is not an address", ":15: ports[0].port: 70000 is not a port",
        ":2: spec.trafficDistribution: warning: 'PreferZone' is not supported",
        ":22: spec.topologyKeys: unknown field; annotation kepd.dev/topology-keys does the same",
        ":22: spec.clusterIP: warning: 010.096.000.009 is read as 10.96.0.9; write that",
    ):  # fmt: skip
        assert fault in said, fault


FOREIGN = b"""
apiVersion: apps/v1
kind: ControllerRevision
metadata: {name: shop}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
"""


def test_endpoints_of_a_file_are_applied_changed_and_deleted_like_any_object(shop: Shop) -> None:
    text = (
        b"apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\n"
        b"subsets: [{addresses: [{ip: 192.0.2.4}], ports: [{port: 80}]}]\n---\n"
    )
    file = shop.file("ends.yaml", text + SERVICE)
    applied = shop.out("apply", "-f", file)
    changed = shop.out("apply", "-f", shop.file("ends.yaml", text.replace(b"2.4", b"2.5") + SERVICE))
    shop.out("delete", "-f", file)

    assert applied == ["endpoints/default/web created", "service/default/web created"]
    assert changed[0] == "endpoints/default/web configured"
    assert contents(shop.manifests) == {}


def test_what_is_not_carried_out_here_holds_up_nothing_and_is_told(shop: Shop) -> None:
    file = shop.file("shop.yaml", FOREIGN + SERVICE)
    strict = shop.ctl("apply", "--no-allow-unknown", "-f", file)
    applied = shop.ctl("apply", "-f", file)
    alone = shop.ctl("apply", "-f", shop.file("foreign.yaml", FOREIGN))
    checked, refused = kepctl("validate", file), kepctl("validate", "--strict", file)

    assert strict.returncode == refused.returncode == alone.returncode == 1
    assert (applied.returncode, applied.stdout) == (0, "service/default/web created\n"), applied.stderr
    revision, address = applied.stderr.splitlines()
    assert revision.startswith(
        f"{file}:2: kind: 'ControllerRevision' is not carried out here; kepd keeps the revisions"
    )
    assert address.startswith(f"{file}:6: kind: 'HTTPRoute' is not carried out here; a Deployment")
    assert "nothing is left that is carried out here" in alone.stderr
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (0, "all is valid; objects: 1, files: 1")

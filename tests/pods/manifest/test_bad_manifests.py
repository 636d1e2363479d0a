# SPDX-License-Identifier: Apache-2.0
"""The corpus of manifests that must be refused, each with the line that says why.

`bad_manifests.txt` has one manifest per line: a path in a good pod, `=` and what is put there (in YAML's flow style,
`-` takes the path away), `=>` and a part of the expected complaint.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.config.shape import place_of
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.pod import container_hash
from agent.pods.manifest.objects import NodeIdentity, parse_objects
from agent.pods.manifest.reading import ReadManifest
from tests.pods.reading import read_pods

HERE = Path(__file__).parent
NODE = NodeIdentity("n", has_name_suffix=True)
GOOD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}, annotations: {note: text}}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 30
  dnsPolicy: ClusterFirst
  dnsConfig: {nameservers: [192.0.2.1], searches: [example.org], options: [{name: ndots, value: "2"}]}
  hostAliases: [{ip: 192.0.2.9, hostnames: [other]}]
  securityContext:
    {runAsUser: 1000, fsGroup: 2000, supplementalGroups: [3], sysctls: [{name: kernel.shm_rmid_forced, value: "1"}]}
  volumes:
  - {name: cache, emptyDir: {sizeLimit: 1Gi}}
  - {name: host, hostPath: {path: /tmp, type: Directory}}
  - {name: conf, configMap: {name: c, items: [{key: k, path: p}]}}
  - {name: hidden, secret: {secretName: s, defaultMode: 256}}
  - {name: facts, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - {name: all, projected: {sources: [{configMap: {name: c}}, {secret: {name: s}}]}}
  initContainers:
  - {name: setup, image: "i:1"}
  - name: proxy
    image: i:1
    restartPolicy: Always
    startupProbe: {tcpSocket: {port: 80}}
    lifecycle: {preStop: {sleep: {seconds: 5}}}
  containers:
  - name: app
    image: registry.example/app:1
    imagePullPolicy: IfNotPresent
    ports: [{name: http, containerPort: 80, hostPort: 8080}]
    env: [{name: A, value: a}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    envFrom: [{configMapRef: {name: c}}]
    resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}
    volumeMounts: [{name: cache, mountPath: /cache}, {name: conf, mountPath: /etc/app, readOnly: true}]
    livenessProbe: {httpGet: {path: /, port: http, httpHeaders: [{name: X-A, value: b}]}}
    readinessProbe: {exec: {command: [check]}}
    lifecycle: {postStart: {exec: {command: [begin]}}, preStop: {httpGet: {port: 80}}}
    securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}, capabilities: {drop: [ALL]}}
  - name: side
    image: i:1
    restartPolicy: Never
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
"""


def lines() -> list[tuple[str, str, str]]:
    found = []
    for line in (HERE / "bad_manifests.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            change, _, complaint = line.partition(" => ")
            path, _, value = change.partition(" = ")
            found.append((path.strip(), value.strip(), complaint.strip()))
    return found


def changed(path: str, value: str) -> str:
    document = yaml.load(GOOD, yaml.CSafeLoader)
    *parents, last = parts(path)
    holder: Any = document
    for part in parents:
        holder = holder.setdefault(part, {}) if isinstance(holder, dict) else holder[int(part)]
    if value == "-":
        del holder[last]
    elif isinstance(holder, list) and int(last) == len(holder):
        holder.append(yaml.safe_load(value))
    else:
        holder[last] = yaml.safe_load(value)
    return yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False)  # type: ignore[no-any-return]


def parts(path: str) -> list[Any]:
    found: list[Any] = []
    for word in path.split("."):
        name, *indexes = word.split("[")
        found += [name, *(int(index.rstrip("]")) for index in indexes)]
    return found


CASES = lines()


def test_the_good_one_is_good() -> None:
    found = parse_objects("/m/web.yaml", GOOD.encode(), NODE)

    assert [str(one) for one in found.findings] == []
    assert len(found.pods) == 1


def test_the_corpus_is_large_and_has_nothing_twice() -> None:
    assert len(CASES) >= 150
    assert len({(path, value) for path, value, _ in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("path", "value", "complaint"), CASES, ids=[f"{path}={value}"[:60] for path, value, _ in CASES]
)
def test_a_bad_manifest_is_refused_with_its_line(path: str, value: str, complaint: str) -> None:
    found = parse_objects("/m/web.yaml", changed(path, value).encode(), NODE)
    told = [str(one) for one in found.findings]

    assert found.pods == []
    assert any(complaint in line for line in told), told
    assert all(line.startswith("/m/web.yaml:") for line in told)


def test_one_bad_file_never_affects_another_pod() -> None:
    files = {f"/m/{index}.yaml": changed(path, value).encode() for index, (path, value, _) in enumerate(CASES)}
    files["/m/good.yaml"] = GOOD.encode()
    reading = read_pods(ManifestSnapshot(files), ReadManifest(), NODE)

    assert [pod.file for pod in reading.pods.values()] == ["/m/good.yaml"]
    assert reading.complaints.keys() == files.keys() - {"/m/good.yaml"}


def test_all_faults_of_a_manifest_are_told_together() -> None:
    text = changed("spec.containers[0].name", "App").replace("dnsPolicy: ClusterFirst", "dnsPolicy: Often")
    told = [str(one).split(": ")[1] for one in parse_objects("/m/web.yaml", text.encode(), NODE).findings]

    assert told == ["spec.containers[0].name", "spec.dnsPolicy"]


@pytest.mark.parametrize(
    ("spec", "complaints"),
    [
        ("dnsPolicy: None", ["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"]),
        (
            "hostUsers: false, hostNetwork: true, hostPID: true, hostIPC: true",
            [
                *(
                    f"spec.{name}: Forbidden: when `hostUsers` is false"
                    for name in ("hostNetwork", "HostPID", "HostIPC")
                ),
            ],
        ),
        (
            "hostIPC: true, securityContext: {sysctls: [{name: kernel/shmmax, value: '1'}]}",
            [
                (
                    'spec.securityContext.sysctls[0].name: Invalid value: "kernel/shmmax": '
                    "may not be specified when 'hostIPC' is true"
                )
            ],
        ),
        (
            "hostPID: true, shareProcessNamespace: true",
            [
                (
                    "spec.shareProcessNamespace: Invalid value: true: "
                    "ShareProcessNamespace and HostPID cannot both be enabled"
                )
            ],
        ),
    ],
)
def test_what_does_not_go_together_is_told(spec: str, complaints: list[str]) -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: w}}\nspec: {{containers: [{{name: a, image: i}}], {spec}}}\n"
    found = parse_objects("f", text.encode(), NODE)

    assert [str(one) for one in found.findings] == [f"f:4: {complaint}" for complaint in complaints]


def test_a_complaint_has_the_line_of_what_it_is_about() -> None:
    from agent.config.strict_yaml import parse_documents

    (tree,), _ = parse_documents(GOOD, "f")

    assert place_of(tree, "spec.containers[0].env[1].valueFrom") == "f:32"
    assert place_of(tree, "spec.containers[0].nothing.there") == "f:28"


def test_a_new_version_of_kepd_gives_an_old_manifest_the_same_hashes() -> None:
    """ADO-02: another hash would restart every container of every node. Never change these figures."""
    (pod,) = parse_objects("/m/web.yaml", GOOD.encode(), NODE).pods

    assert (pod.hash, pod.uid) == ("ed68db5cffa622f2f580304b98f1fcee", "db4553b7ed11e32bb1f9f98e02565910")
    assert [container_hash(one.fields) for one in pod.containers] == [
        "1d72f01238cdf915", "fbe903de6dbfadee", "fb67ccfe9fcbde2d", "fdfcf3b0c6ab26f5",
    ]  # fmt: skip

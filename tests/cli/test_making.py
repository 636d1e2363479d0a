# SPDX-License-Identifier: Apache-2.0
"""Objects without a file: workloads, Services, and what a plain kustomization makes."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from agent.cli.objects.kustomization import built
from agent.cli.session import CommandFailed
from tests.cli.test_objects import Shop, shop
from tests.host.forked_kepctl import forked_kepctl
from tests.objects.test_applying import POD, contents

__all__ = ["shop"]
WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: "r.test/web:1", ports: [{containerPort: 8080}], envFrom: [{configMapRef: {name: set}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
"""
RULES = """
resources: [web.yaml]
namespace: shop
namePrefix: a-
nameSuffix: -z
commonLabels: {team: t}
commonAnnotations: {note: n}
images: [{name: r.test/web, newTag: "2"}]
replicas: [{name: web, count: 3}]
configMapGenerator:
- {name: set, literals: [color=blue], files: [words.txt], options: {disableNameSuffixHash: true}}
"""


def made(*words: str) -> list[dict]:
    flags = ("--dry-run=client", "-o", "yaml")
    done: subprocess.CompletedProcess[str] = forked_kepctl(*words[:2], *flags, *words[2:])
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_a_deployment_a_job_and_a_service_are_made_of_words() -> None:
    (web,) = made("create", "deployment", "web", "--image", "i:1", "--replicas", "2", "--port", "80")
    (work,) = made("create", "job", "work", "--image", "i:1", "--", "sh", "-c", "true")
    (service,) = made("create", "service", "nodeport", "web", "--tcp", "80:http", "-n", "shop")

    assert web["spec"]["selector"]["matchLabels"] == web["spec"]["template"]["metadata"]["labels"] == {"app": "web"}
    assert (web["apiVersion"], web["spec"]["replicas"]) == ("apps/v1", 2)
    assert work["spec"]["template"]["spec"]["containers"][0]["command"] == ["sh", "-c", "true"]
    assert service["metadata"] == {"name": "web", "namespace": "shop"}
    assert service["spec"]["ports"] == [{"name": "80-http", "port": 80, "targetPort": "http"}]


def test_a_workload_is_exposed_by_its_own_labels_and_port(shop: Shop) -> None:
    shop.out("apply", shop.file("web.yaml", WEB.partition("---")[0].encode()))
    shown = shop.out("expose", "deploy/web", "--port", "80", "--target-port", "8080", "--name", "front")
    (written,) = [text for name, text in contents(shop.manifests).items() if "Service" in name]
    service = yaml.safe_load(written)

    assert shown == ["service/default/front created"]
    assert service["spec"]["selector"] == {"app": "web"}
    assert service["spec"]["ports"] == [{"port": 80, "targetPort": 8080}]


def test_a_file_is_applied_without_a_flag_too(shop: Shop) -> None:
    assert shop.out("apply", shop.file("pod.yaml", POD)) == ["pod/default/web created"]


def kustomized(folder: Path, rules: str) -> list[dict]:
    (folder / "web.yaml").write_text(WEB)
    (folder / "words.txt").write_text("so")
    (folder / "kustomization.yaml").write_text(rules)
    return list(yaml.safe_load_all(built(folder)))


def test_a_plain_kustomization_is_built(tmp_path: Path) -> None:
    deployment, service, config = kustomized(tmp_path, RULES)
    container = deployment["spec"]["template"]["spec"]["containers"][0]

    assert [one["metadata"]["name"] for one in (deployment, service, config)] == ["a-web-z", "a-web-z", "a-set-z"]
    assert {one["metadata"]["namespace"] for one in (deployment, service, config)} == {"shop"}
    assert deployment["spec"]["selector"]["matchLabels"] == {"app": "web", "team": "t"}
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {"note": "n"}
    assert service["spec"]["selector"] == {"app": "web", "team": "t"}
    assert (container["image"], deployment["spec"]["replicas"]) == ("r.test/web:2", 3)
    assert container["envFrom"] == [{"configMapRef": {"name": "a-set-z"}}]
    assert config["data"] == {"color": "blue", "words.txt": "so"}


@pytest.mark.parametrize(
    ("rules", "key"),
    [
        ("patches: [{path: x}]", "patches"),
        ("resources: [https://r.test/x]", "resource https://r.test/x"),
        ("configMapGenerator: [{name: set, literals: [a=b]}]", "a name with a hash"),
        ("labels: [{pairs: {a: b}, fields: []}]", "labels: fields"),
    ],
)
def test_what_is_more_than_that_is_refused_with_the_way_out(tmp_path: Path, rules: str, key: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        kustomized(tmp_path, rules)

    assert key in str(refused.value)
    assert f"kubectl kustomize {tmp_path} | kepctl apply -f -" in str(refused.value)


@pytest.mark.parametrize(("words", "says"), [(("apply", "-k", "/nowhere"), "there is no kustomization.yaml")])
def test_a_folder_without_rules_says_so(words: Sequence[str], says: str) -> None:
    done = forked_kepctl(*words)

    assert (says in done.stderr, done.returncode) == (True, 2)


def test_fields_labels_and_annotations_are_changed_in_the_manifest(shop: Shop) -> None:
    shop.out("apply", "-f", shop.file("web.yaml", WEB.encode()))
    port = '[{"op": "add", "path": "/spec/ports/0/targetPort", "value": 8080}]'

    assert shop.out("label", "svc", "web", "tier=front", "team=a") == ["service/default/web labeled"]
    assert shop.out("annotate", "svc/web", "note=it's", "-n", "default") == ["service/default/web annotated"]
    assert shop.out("label", "svc/web", "tier=front") == ["service/default/web unchanged"]
    shop.out("label", "svc/web", "tier=back", "team-", "--overwrite")
    assert shop.out("patch", "svc/web", "-p", "spec: {type: NodePort}", "--dry-run") == [
        "service/default/web patched (dry run)"
    ]
    shop.out("patch", "svc/web", "-p", '{"spec": {"ports": [{"port": 80, "name": "http"}]}}')
    shop.out("patch", "svc/web", "--type", "json", "-p", port)

    documents = [each for text in contents(shop.manifests).values() for each in yaml.safe_load_all(text)]
    (service,) = [each for each in documents if each["kind"] == "Service"]
    assert service["metadata"] == {"name": "web", "labels": {"tier": "back"}, "annotations": {"note": "it's"}}
    assert service["spec"] == {"selector": {"app": "web"}, "ports": [{"port": 80, "name": "http", "targetPort": 8080}]}
    for words, text in (
        (("label", "svc/web", "tier=front"), "--overwrite"),
        (("label", "svc/web"), "KEY=VALUE"),
        (("patch", "svc/web", "-p", "[]"), "is an object"),
        (("patch", "svc/web", "-p", "a: ["), "patch"),
        (("patch", "images", "x", "-p", "{}"), "no manifest"),
        (("patch", "svc/none", "-p", "{}"), "none"),
    ):
        done = shop.ctl(*words)
        assert done.returncode, words
        assert text in done.stderr, (words, done.stderr)

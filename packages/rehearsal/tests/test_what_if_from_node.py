# SPDX-License-Identifier: Apache-2.0
"""`kepctl what-if` of a bare node and of plain manifests: what kepd runs by its configuration is the cluster."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.model.exit_codes import BAD_CONFIGURATION, USAGE
from agent.model.pods.state import ContainerState, PodState
from packages.rehearsal.tests.clusters import WEB, node, service, template
from tests.cli.node_in_process import Node, running_node
from tests.host.forked_kepctl import forked_kepctl

HEAD = {"apiVersion": "config.kepd.dev/v1beta1", "kind": "KepdConfiguration"}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": "hush-4711"}}


def deployment(name: str, count: int) -> dict[str, Any]:
    spec = {
        "replicas": count,
        "selector": {"matchLabels": {"app": name}},
        "template": template(name, cpu="10m", skew=None),
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "lone"},
        "spec": template("lone", cpu="10m", skew=None)["spec"],
    }
    pod["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hush-4711"}]
    objects = [deployment("web", 3), service("web"), pod, SECRET, node("other", "b")]
    (manifests / "all.yaml").write_text(yaml.safe_dump_all(objects))
    (manifests / ".unfinished.yaml").write_text("kind: [")
    path = tmp_path / "kepd.yaml"
    section = {"name": "here", "labels": {"topology.kubernetes.io/zone": "a"}}
    path.write_text(yaml.safe_dump({**HEAD, "node": section, "manifests": {"directory": str(manifests)}}))
    return path


def asked(config: Path, *words: str, endpoint: str = "/nowhere/kepd.sock") -> subprocess.CompletedProcess[str]:
    given = ("--from-node", "--config", str(config), *words, "-o", "json")
    done = forked_kepctl("--endpoint", endpoint, "what-if", *given)
    assert "hush-4711" not in done.stdout + done.stderr
    return done


def test_a_node_is_one_host_with_the_pods_that_its_manifests_make(config: Path) -> None:
    done = asked(config, "--drain", "here")
    (told,) = json.loads(done.stdout)["rehearsals"]

    assert done.returncode == 0, done.stderr
    assert sorted(one["pod"] for one in told["ending"]) == [
        "default/lone-here", *(f"default/web-assumed-{place}" for place in range(3)),
    ]  # fmt: skip
    assert told["services"][0]["before"]["ready"] == 3
    assert {one["why"] for one in told["pending"]} == {"0 of 1 nodes: 1 cordoned"}
    assert "no daemon answers, so pods are taken to run as the manifests say" in done.stderr
    assert "1 other nodes of the manifests run pods of their own" in done.stderr
    assert "3 pods of default/web are not in the files" in done.stderr


def fill(found: Node) -> None:
    container = ContainerState(name="m", image="i", started_at_s=1.0, is_ready=True)
    pod = PodState(
        namespace="default", name="web-x-here", uid="u", phase="Running", created_at_s=1.0, labels={"app": "web"},
        containers=(container,),
    )  # fmt: skip
    found.pods.pods.put(pod.key, pod)


def test_a_daemon_that_answers_knows_which_pods_there_are(config: Path, short_path: Path) -> None:
    with running_node(short_path, fill) as found:
        done = asked(config, "--drain", "here", endpoint=str(found.path))

    assert done.returncode == 0, done.stderr
    assert [one["pod"] for one in json.loads(done.stdout)["rehearsals"][0]["ending"]] == ["default/web-x-here"]
    assert "taken" not in done.stderr


def test_changes_and_edited_manifests_work_as_in_a_cluster(config: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited.yaml"
    edited.write_text(yaml.safe_dump(deployment("web", 5)))
    done = asked(config, "--scale", "web=1", "--roll", "web", "-f", str(edited))

    assert [one["services"][0]["after"]["ready"] for one in json.loads(done.stdout)["rehearsals"]] == [1, 1, 5]


def test_what_kepd_would_not_read_is_told_with_its_place(config: Path) -> None:
    broken = config.parent / "manifests/broken.yaml"
    broken.write_text("kind: [")
    unread = asked(config, "--drain", "here")
    broken.write_text("kind: Pod")
    broken.chmod(0o666)
    distrusted = asked(config, "--drain", "here")
    config.write_text("node: {nome: a}")
    misconfigured = asked(config, "--drain", "here")

    assert (unread.returncode, "broken.yaml" in unread.stderr) == (USAGE, True)
    assert (distrusted.returncode, "only root may write manifests" in distrusted.stderr) == (USAGE, True)
    assert (misconfigured.returncode, "unknown key" in misconfigured.stderr) == (BAD_CONFIGURATION, True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "no cluster is named; expected exactly one of --from-files, --kubeconfig, --from-node"),
        (("--from-node", "--kubeconfig", "{}"), "--kubeconfig and --from-node name 2 clusters; expected exactly one"),
        (("--from-node", "--context", "a"), "--context is for --kubeconfig, and --from-node is given"),
        (("--from-files", "{}", "--config", "{}"), "--config is for --from-node, and --from-files is given"),
    ],
)
def test_a_cluster_is_named_once(config: Path, words: tuple[str, ...], expected: str) -> None:
    done = forked_kepctl("what-if", *(word.format(config) for word in words), "--drain", "here")

    assert (done.returncode, expected in done.stderr) == (USAGE, True), done.stderr


def test_a_folder_of_plain_manifests_is_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump_all(one for one in WEB if one["kind"] == "Node"))
    (tmp_path / "web.yaml").write_text(yaml.safe_dump_all([deployment("web", 6), service("web")]))
    done = forked_kepctl("what-if", "--from-files", str(tmp_path), "--drain", "n0", "-o", "json")

    assert len(json.loads(done.stdout)["rehearsals"][0]["ending"]) == 1
    assert "6 pods of default/web are not in the files; they are taken as placed" in done.stderr
